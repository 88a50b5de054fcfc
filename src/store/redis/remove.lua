-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- remove: deletes a record for administration.  Wakes its waiters, and tells
-- the hosts that cache it: the message is the key, followed by "-".
--
-- A tombstone is left: an expired record with a token that no holder has (not
-- that of zeros, which marks a released lock).  A begin takes it as if there
-- were no record.  A renewal, a commit, and a commit that an outbox repeats
-- find another writer's token and write nothing.  The tombstone of a lock
-- lives as long as the lock would have, that of any other record for a while.
-- It is also left if there is no record: a host that is down may have the
-- record in its outbox, and would write it later.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 number of first bytes to return
--          3 channel for wake-ups   4 life of the tombstone of a record that
--          is not in progress, ms   5 the same if there is no record, ms
--          6 for the latter: version, first bytes of the id, empty claim
--          7 state and time of the record that was listed, which may have
--          changed since; or its time alone, whatever its state; "": whatever
--          there is
--
-- Returns  as get.lua, for the deleted record; tag "2": it was deleted before;
-- the tombstone of none has no time in its claim
--
-- Offsets, counted from 1: 4 state (1: in progress), 5 reason, 6 kind, 7 mark
-- of a waiter, 9 to 16 grace, 17 to 24 id, 25 to 40 token, 41 to 109 claim, 46
-- to 53 time, 110 to 117 lengths of details and response.

local key, listed = KEYS[1], ARGV[7]
local kind = redis.call('TYPE', key).ok

-- 3, 6: unusable, deleted
local function bury(head, life)
    redis.pcall('SET', key,
                string.sub(head, 1, 3) .. '\3\6\0\0\0'
                .. struct.pack('>I8', 100 * 365 * 24 * 3600 * 1000)
                .. string.sub(head, 17, 24) .. string.rep('\255', 16)
                .. string.sub(head, 41, 109) .. string.rep('\0', 8),
                'PX', math.max(life, 1))
    redis.call('PUBLISH', ARGV[3], key .. '-')
end

if kind == 'none' and #listed == 9 then
    return ARGV[1] .. '0'
end

if kind == 'none' then
    local empty = ARGV[6]

    bury('id' .. string.sub(empty, 1, 1) .. string.rep('\0', 13)
         .. string.sub(empty, 2, 9) .. string.rep('\0', 16)
         .. string.sub(empty, 10), tonumber(ARGV[5]))

    return ARGV[1] .. '0'
end

if kind ~= 'string' then
    -- a record of another version, or not a record
    return redis.error_reply('WRONGTYPE it is no record')
end

local life = redis.call('PTTL', key)
local size = redis.call('STRLEN', key)
local head = redis.call('GETRANGE', key, 0, ARGV[2] - 1)
local reply = ARGV[1] .. '1' .. struct.pack('>i8I4', life, size) .. head

if size < 117 or string.sub(head, 1, 2) ~= 'id' then
    return reply
end

local state, reason, kind, waited = string.byte(head, 4, 7)
local lease = state == 1 or (state == 3 and reason == 1 and kind % 2 == 0)

-- expired, and kept for its grace: counts as none
if not lease and life <= struct.unpack('>I8', head, 9) then
    local was = reason == 6 and string.sub(head, 46, 53) ~= string.rep('\0', 8)

    return ARGV[1] .. (was and '2' or '0')
end

if listed ~= ''
   and string.sub(string.sub(head, 4, 4) .. string.sub(head, 46, 53), -#listed)
       ~= listed
then
    return ARGV[1] .. '0'
end

-- DEL first: at maxmemory it allows the script to write
redis.call('DEL', key)

if state ~= 1 then
    life = math.min(life, tonumber(ARGV[4]))
end

if waited == 1 then
    redis.call('PUBLISH', ARGV[3], key)
end

bury(head, life)

return reply
