-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- remove: a record is taken away by hand.  Wakes who waits for it, and tells
-- those who keep a copy: the message is the key, with "-" behind it.
--
-- What stays is a record that has expired, under a token that nobody has (not
-- that of zeros, which is of a lock that was given back): a begin takes it as
-- if nothing were there, while a renewal, a commit and what an outbox tries
-- again find somebody else's and write nothing.  Of a lock it stays as
-- long as that would have, of the rest for a while.  It is left also where
-- nothing is: a host whose outbox has the record writes it when it is back.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 how many of its first bytes
--          3 channel of the wake-ups   4 how long it stays of what is over, ms
--          5 ... where nothing is, ms   6 version, beginning of the id and an
--          empty claim, for that
--
-- Returns  as get.lua, of the record as it was; tag "2": it was deleted before
--
-- Of a record, counted from 1: 4 state (1: in progress), 5 reason, 6 kind,
-- 7 waited for, 9 to 16 grace, 17 to 24 id, 25 to 40 token, 41 to 109 claim,
-- 110 to 117 lengths of details and response.

local key = KEYS[1]
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

if kind == 'none' then
    local empty = ARGV[6]

    bury('id' .. string.sub(empty, 1, 1) .. string.rep('\0', 13)
         .. string.sub(empty, 2, 9) .. string.rep('\0', 16)
         .. string.sub(empty, 10), tonumber(ARGV[5]))

    return ARGV[1] .. '0'
end

if kind ~= 'string' then
    -- of another version, or of somebody else
    return redis.error_reply('WRONGTYPE it is no record')
end

local life = redis.call('PTTL', key)
local size = redis.call('STRLEN', key)
local head = redis.call('GETRANGE', key, 0, ARGV[2] - 1)
local reply = ARGV[1] .. '1' .. struct.pack('>i8I4', life, size) .. head

if size < 117 or string.sub(head, 1, 2) ~= 'id' then
    return reply
end

local state, reason, hold, waited = string.byte(head, 4, 7)
local lease = state == 1 or (state == 3 and reason == 1 and hold ~= 1)

-- expired, and remembered for its grace: it is none
if not lease and life <= struct.unpack('>I8', head, 9) then
    return ARGV[1] .. (reason == 6 and '2' or '0')
end

-- first of all room: at maxmemory the rest is allowed then
redis.call('DEL', key)

if state ~= 1 then
    life = math.min(life, tonumber(ARGV[4]))
end

if waited == 1 then
    redis.call('PUBLISH', ARGV[3], key)
end

bury(head, life)

return reply
