-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- release: it did not run, or may run again.  Wakes the waiters, if there are
-- any; then a lock whose lease is over and whose token is zeros stays for a
-- while, so that they can tell a record that was given back from one that this
-- server lost, whose holder may still run.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 token   3 channel of the wake-ups
--
-- Returns  tag "1": released, or gone already
--          tag "0": somebody else's, or committed
--
-- Of a record, counted from 1: 4 state (1: in progress), 5 reason, 6 kind,
-- 7 waited for, 9 to 16 grace, 25 to 40 token, 41 to 109 claim, 110 to 117
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

-- What was taken over may have run before: then another request must not find
-- nothing.  Its outcome is unknown, with a lease that is over.

if string.byte(lock, 6) == 2 then
    local life = math.max(redis.call('PTTL', key), 1)

    -- at maxmemory SET is refused, unless something was written before
    redis.call('PEXPIRE', key, life)
    redis.call('SET', key,
               string.sub(lock, 1, 3) .. '\3\1\2\0\0'
               .. struct.pack('>I8', life) .. string.sub(lock, 17),
               'PX', life)
else
    redis.call('DEL', key)

    -- Those who wait look once a second at least
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
