-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- Every request has a key that was never used.

dofile((os.getenv("BENCH_LUA") or "bench") .. "/common.lua")

local count = 0
local head, tail

function init(args)
    head, tail = around()
    head = head .. prefix .. "-"
end

function request()
    count = count + 1
    return head .. count .. tail
end
