-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- release: the request did not run, or may run again.  Wakes the waiters, if
-- there are any.  In this case a lock with an expired lease and a token of
-- zeros is left for a while: it shows the waiters that the record was
-- released, and not lost by this server while its holder may still be running.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 token   3 channel for wake-ups
--
-- Returns  tag "1": released, or gone already
--          tag "0": the record has another holder, or is committed
--
-- Offsets, counted from 1: 4 state (1: in progress), 5 reason, 6 kind, 7 mark
-- of a waiter, 9 to 16 grace, 25 to 40 token, 41 to 109 claim, 110 to 117
-- lengths of details and response.

local key = KEYS[1]
local lock = redis.call('GET', key)

if not lock then
    return ARGV[1] .. '1'
end

if string.byte(lock, 4) ~= 1 or string.sub(lock, 25, 40) ~= ARGV[2] then
    return ARGV[1] .. '0'
end

local waited = string.sub(lock, 7, 7) == '\1'

-- A lock that was taken over may have run before, so the record must stay for
-- other requests: as an unknown outcome with an expired lease.

if string.byte(lock, 6) >= 2 then
    local life = math.max(redis.call('PTTL', key), 1)

    -- at maxmemory SET is refused, unless the script has written before
    redis.call('PEXPIRE', key, life)
    redis.call('SET', key,
               string.sub(lock, 1, 3) .. '\3\1\2\0\0'
               .. struct.pack('>I8', life) .. string.sub(lock, 17),
               'PX', life)
else
    redis.call('DEL', key)

    -- waiters poll at least once a second
    if waited then
        redis.pcall('SET', key,
                    string.sub(lock, 1, 3) .. '\1\0\0\1\0'
                    .. struct.pack('>I8', 100 * 365 * 24 * 3600 * 1000)
                    .. string.sub(lock, 17, 24) .. string.rep('\0', 16)
                    .. string.sub(lock, 41, 109) .. string.rep('\0', 8),
                    'PX', 5000)
    end
end

if waited then
    redis.call('PUBLISH', ARGV[3], key)
end

return ARGV[1] .. '1'
