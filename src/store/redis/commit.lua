-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- commit: stores the outcome.  Writes if the record is in progress with the
-- holder's own token, or is gone, or was left behind by another holder; wakes
-- the waiters, if there are any.  Used where SET ... IFEQ can't decide, or
-- where the server does not support it, see ..._redis_command.c.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 the new record   3 life, ms
--          4 channel for wake-ups
--
-- Returns  tag "1": committed, now or before
--          tag "2": there is no room; the record says that the request ran
--          tag "0": the record has another writer
--          tag "4": the record has another holder, which is still running
--
-- Offsets, counted from 1: 4 state (1: in progress), 5 reason, 6 kind, 7 mark
-- of a waiter, 9 to 16 grace, 25 to 40 token, 42 to 101 scheme, time,
-- fingerprint and identity, 110 to 113 length of the details, 114 to 117 of
-- the response, from 118 on the details and the response.

local key, record = KEYS[1], ARGV[2]
local old = redis.call('GET', key)
local waited = old and string.byte(old, 7) == 1

if old and string.sub(old, 25, 40) ~= string.sub(record, 25, 40) then

    local function part(from, to)
        return string.sub(old, from, to) == string.sub(record, from, to)
    end

    -- include lapsed.lua

    -- a record that another holder released or left behind counts as none

    if string.sub(old, 25, 40) ~= string.rep('\0', 16) and not lapsed() then
        return ARGV[1] .. (string.byte(old, 4) == 1 and '4' or '0')
    end

    redis.call('DEL', key)

elseif old then

    -- committed before, perhaps on another connection: WAIT covers only the
    -- writes of its own connection, so write something
    if string.byte(old, 4) ~= 1 then
        redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), 1))
        return ARGV[1] .. '1'
    end

    -- keep the details of the record if the commit has none; a lock that is
    -- longer or shorter than it says is corrupt
    if #old > 117 and string.sub(record, 110, 113) == '\0\0\0\0'
       and #old == 117 + struct.unpack('>I4', old, 110)
    then
        record = string.sub(record, 1, 109) .. string.sub(old, 110, 113)
                 .. string.sub(record, 114, 117) .. string.sub(old, 118)
                 .. string.sub(record, 118)
    end
end

local result = '1'
local set = redis.pcall('SET', key, record, 'PX', ARGV[3])

if set.err then

    if not string.find(set.err, 'OOM', 1, true) then
        return set
    end

    -- At maxmemory the server refuses SET, but not PEXPIRE; and a script that
    -- has written once may go on writing.  3, 4: unusable, no room.

    result = '2'
    redis.call('PEXPIRE', key, ARGV[3])

    if string.byte(record, 4) == 2 then
        local details = struct.unpack('>I4', record, 110)

        record = string.sub(record, 1, 3) .. '\3\4'
                 .. string.sub(record, 6, 113) .. '\0\0\0\0'
                 .. string.sub(record, 118, 117 + details)
    end

    redis.call('SET', key, record, 'PX', ARGV[3])
end

if waited then
    redis.call('PUBLISH', ARGV[4], key)
end

return ARGV[1] .. result
