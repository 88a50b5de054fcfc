-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- A fixed set of keys, over and over.  The first turn runs them.

dofile((os.getenv("BENCH_LUA") or "bench") .. "/common.lua")

local ready = {}
local at = 0

function init(args)
    local head, tail = around()

    for i = 1, keys do
        ready[i] = head .. prefix .. "-" .. i .. tail
    end
end

function request()
    at = at % keys + 1
    return ready[at]
end
