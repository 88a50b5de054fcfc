-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- Keys of an earlier fresh.lua run with the same prefix, all of them, in no
-- order: what is looked up is not in the processor's cache.

dofile((os.getenv("BENCH_LUA") or "bench") .. "/common.lua")

local head, tail

function init(args)
    head, tail = around()
    head = head .. prefix .. "-"
    math.randomseed(1)
end

function request()
    return head .. math.random(keys) .. tail
end
