-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- For the wrk scripts: the request around a key, and the end of a run.  The
-- line that done() prints is read by bench/lib/Bench.pm.

local body = os.getenv("BENCH_BODY")

prefix = os.getenv("BENCH_PREFIX")
keys = tonumber(os.getenv("BENCH_KEYS"))


-- what stands before and behind the key: formatting by wrk.format() for each
-- request would make the client the slowest part

function around()
    local whole = wrk.format("POST", nil, {
        ["Host"] = "bench",
        ["Content-Type"] = "application/json",
        ["Idempotency-Key"] = "@KEY@"
    }, body)

    local from, to = whole:find("@KEY@", 1, true)

    return whole:sub(1, from - 1), whole:sub(to + 1)
end


function done(summary, latency, requests)
    local e = summary.errors

    print(string.format("result: %d requests, %d us, %d bad",
          summary.requests, summary.duration,
          e.connect + e.read + e.write + e.status + e.timeout))
end
