-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- upgrade: a record in the form of the version before this one, which was a
-- list.  One that is over becomes a string, and so does a lock whose lease is
-- over; one whose holder may still run is told and left as it is, since a host
-- of that version would not find its own lock any more.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 "0": who asks would not wait
--
-- Returns  tag "5": it is a string by now, or gone: begin once more
--          { tag "2" ms to live, record }: in progress, in the new form
--          an error: it is no record
--
-- A list is { lock, token } in progress, { lock, outcome, token } after that,
-- and "w" behind it if somebody waits.  Counted from 1: 3 version; of a lock
-- 4 kind, 5 to 12 grace, 13 to 20 id, 21 to 89 claim, then details; of an
-- outcome 4 state, 5 reason, 6 to 13 grace, from 18 on the response.

local key = KEYS[1]
local kind = redis.call('TYPE', key).ok

if kind == 'string' or kind == 'none' then
    return ARGV[1] .. '5'
end

local list = kind == 'list' and redis.call('LRANGE', key, 0, -1) or {}
local waited = list[#list] == 'w'
local token = list[waited and #list - 1 or #list]
local lock, outcome = list[1], list[2]

if #list < 2 or #lock < 89 or string.sub(lock, 1, 3) ~= 'id\1'
   or #token ~= 16 or (#outcome ~= 16 and #outcome < 17)
then
    return redis.error_reply('WRONGTYPE it is no record')
end

local life = redis.call('PTTL', key)
local runs = #outcome == 16
local details = string.sub(lock, 90)
local response = runs and '' or string.sub(outcome, 18)

local record = 'id\2' .. (runs and '\1\0' or string.sub(outcome, 4, 5))
    .. string.sub(lock, 4, 4) .. (runs and waited and '\1' or '\0') .. '\0'
    .. (runs and string.sub(lock, 5, 12) or string.sub(outcome, 6, 13))
    .. string.sub(lock, 13, 20) .. token .. string.sub(lock, 21, 89)
    .. struct.pack('>I4I4', #details, #response) .. details .. response

if life < 0 or (runs and life > struct.unpack('>I8', lock, 5)) then

    -- then a commit of that version publishes
    if ARGV[2] ~= '0' and runs and not waited then
        redis.call('PEXPIRE', key, life)
        redis.pcall('RPUSH', key, 'w')
    end

    return { ARGV[1] .. '2' .. struct.pack('>i8', life), record }
end

-- first of all room: at maxmemory the rest is allowed then
redis.call('DEL', key)
redis.call('SET', key, record, 'PX', math.max(life, 1))

return ARGV[1] .. '5'
