-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- renew: the holder still runs.  For what SET ... IFEQ can't decide, or where
-- the server does not know it: see ..._redis_command.c.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 our lock   3 life, ms
--
-- Returns  tag "1": renewed, or laid anew where the record is gone, or is of
--          another one that is gone
--          tag "0": somebody else's, or over
--
-- Of a record, counted from 1: 4 state (1: in progress), 5 reason, 6 kind,
-- 7 waited for, 9 to 16 grace, 25 to 40 token, 42 to 101 scheme, time,
-- fingerprint and identity.  With a token of zeros it was given back, by
-- another one who took over and is through.

local key, lock = KEYS[1], ARGV[2]
local old = redis.call('GETRANGE', key, 0, 116)

local function part(from, to)
    return string.sub(old, from, to) == string.sub(lock, from, to)
end

-- Whether a record of somebody else is to be had: its lease is over, it is not
-- under hold, and it is of the same request.  The same stands in commit.lua.

local function lapsed()
    if #old < 117 or string.sub(old, 1, 2) ~= 'id'
       or string.byte(old, 6) == 1
       or not (part(42, 45) and part(54, 101))
    then
        return false
    end

    -- in progress, or unusable, since the outcome is unknown
    return (string.byte(old, 4) == 1 or string.sub(old, 4, 5) == '\3\1')
           and redis.call('PTTL', key) <= struct.unpack('>I8', old, 9)
end

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

    -- the other one may have run: see begin.lua
    lock = string.sub(lock, 1, 5) .. '\2' .. string.sub(lock, 7)
end

redis.call('SET', key, lock, 'PX', ARGV[3])

return ARGV[1] .. '1'
