-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- renew: extends the lease of a holder that is still running.  Used where
-- SET ... IFEQ can't decide, or where the server does not support it, see
-- ..._redis_command.c.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 our lock   3 life, ms
--
-- Returns  tag "1": renewed; or locked again, if the record was gone or was
--          left behind by another holder
--          tag "0": the record has another holder, or is committed
--
-- Offsets, counted from 1: 4 state (1: in progress), 5 reason, 6 kind, 7 mark
-- of a waiter, 9 to 16 grace, 25 to 40 token, 42 to 101 scheme, time,
-- fingerprint and identity.  A token of zeros: another holder has taken over
-- and released the record.

local key, lock = KEYS[1], ARGV[2]
local old = redis.call('GETRANGE', key, 0, 116)

local function part(from, to)
    return string.sub(old, from, to) == string.sub(lock, from, to)
end

-- include lapsed.lua

if old ~= '' and string.byte(old, 4) == 1 and part(25, 40) then
    redis.call('PEXPIRE', key, ARGV[3])
    return ARGV[1] .. '1'
end

if old ~= '' and string.sub(old, 25, 40) == string.rep('\0', 16) then
    lock = string.sub(lock, 1, 6) .. string.sub(old, 7, 7)
           .. string.sub(lock, 8)

elseif old ~= '' then

    if not lapsed() then
        return ARGV[1] .. '0'
    end

    -- the other holder may have run: see begin.lua
    lock = string.sub(lock, 1, 5)
           .. string.char(bit.bor(string.byte(lock, 6), 2))
           .. string.sub(lock, 7)
end

redis.call('SET', key, lock, 'PX', ARGV[3])

return ARGV[1] .. '1'
