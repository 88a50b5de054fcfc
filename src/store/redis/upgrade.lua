-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- upgrade: converts a record of the previous version, which was a list.  A
-- record that is not in progress, and a lock with an expired lease, become a
-- string.  A lock whose holder may still be running is returned in the new
-- form but not changed, since a host of that version would not find its lock.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 "0": the request would not wait
--
-- Returns  tag "5": the record is a string now, or gone: repeat the begin
--          { tag "2" ms to live, record }: in progress, in the new form
--          an error: this is not a record
--
-- The list is { lock, token } in progress and { lock, outcome, token } after
-- that, followed by "w" if a request is waiting.  Offsets, counted from 1:
-- 3 version; in a lock 4 kind, 5 to 12 grace, 13 to 20 id, 21 to 89 claim,
-- then details; in an outcome 4 state, 5 reason, 6 to 13 grace, from 18 on
-- the response.

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

    -- this makes a commit of that version publish
    if ARGV[2] ~= '0' and runs and not waited then
        redis.call('PEXPIRE', key, life)
        redis.pcall('RPUSH', key, 'w')
    end

    return { ARGV[1] .. '2' .. struct.pack('>i8', life), record }
end

-- DEL first: at maxmemory it allows the script to write
redis.call('DEL', key)
redis.call('SET', key, record, 'PX', math.max(life, 1))

return ARGV[1] .. '5'
