-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- begin: takes the lock on a record, or tells what is there.  For what
-- SET ... NX GET can't decide: see ..._redis_command.c.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 our lock   3 life, ms
--          4 ms since the asker came   5 "1": the key alone decides
--          6 "0"; "1": who asks would wait; "2": waits, and it was in
--          progress; "3": ... and its lease can't be over
--
-- Returns  tag "1" how: the lock is ours; "0": nothing was there, or it was
--          ours already, "1" time: its holder was gone, "2" time: it had
--          expired; 8 bytes of when the request of that came
--          { tag "2" ms to live, record }: what is there, as it is; who asks
--          judges it, and refuses what it does not know
--          tag "3": it was in progress, and is gone; nobody gave it back
--
-- A record is a string, see ..._redis_record.c.  Counted from 1: 3 version,
-- 4 state, 5 reason, 6 kind, 7 waited for, 9 to 16 grace, 25 to 40 token,
-- 42 to 45 scheme, 46 to 53 time, 54 to 85 fingerprint, 86 to 101 identity, 102 to 109
-- target.  The kind is 1 under hold, and 2 if the lock was taken over: it may
-- have run before.  A token of zeros is of a record that was given back while
-- somebody waited, and is free: see release.lua.
--
-- The lease is what the key has to live, less the grace: the clock is the
-- server's own.  In the same way the ttl of what is over is its life, less the
-- grace; or, of an unknown outcome that is not under hold, what is left of a
-- lease.  A lease that is over lets the same request run, and no other: its
-- fingerprint stays as long as the key does.

local key, lock = KEYS[1], ARGV[2]
local old = redis.call('GET', key)

if not old then

    if ARGV[6] >= '2' then
        return ARGV[1] .. '3'
    end

    local set = redis.pcall('SET', key, lock, 'PX', ARGV[3])

    return set.err and set or ARGV[1] .. '10'
end

local life = redis.call('PTTL', key)

local function part(from, to)
    return string.sub(old, from, to) == string.sub(lock, from, to)
end

local function same_request()
    if not part(86, 101) then
        return false
    end

    if part(42, 45) then
        return part(54, 85)
    end

    return ARGV[5] == '1' or part(102, 109)
end

local function over(age)
    local grace = struct.unpack('>I8', old, 9)
    return life + age <= grace and grace <= 100 * 365 * 24 * 3600 * 1000
end

local function take(how, kind, waited)

    -- first of all room: at maxmemory the rest is allowed then
    redis.call('DEL', key)
    redis.call('SET', key,
               string.sub(lock, 1, 5) .. (kind or string.sub(lock, 6, 6))
               .. waited .. string.sub(lock, 8), 'PX', ARGV[3])
    return ARGV[1] .. '1' .. how
end

if life >= 0 and #old >= 117 and string.sub(old, 1, 2) == 'id'
   and math.abs(string.byte(old, 3) - string.byte(lock, 3)) <= 1
then
    local state, reason, kind = string.byte(old, 4, 6)
    local waited = string.sub(old, 7, 7)

    if state == 1 then

        -- a begin that is asked again, since its answer was lost
        if part(25, 40) then
            redis.call('PEXPIRE', key, ARGV[3])
            return ARGV[1] .. '10'
        end

        -- it was given back; others may wait already
        if string.sub(old, 25, 40) == string.rep('\0', 16) and over(0) then
            return take('0', nil, waited)
        end

        if kind ~= 1 and over(0) and same_request() then

            -- of an earlier holder: this server lost the lock of the one that
            -- who asks waits for, and that may still run
            if ARGV[6] == '3' then
                return ARGV[1] .. '3'
            end

            return take('1' .. string.sub(old, 46, 53), '\2', waited)
        end

        -- who will wait says so at once: the next step of the holder may be
        -- to give it back.  As in watch.lua, at maxmemory
        if ARGV[6] ~= '0' and waited == '\0'
           and life > struct.unpack('>I8', old, 9)
        then
            redis.call('PEXPIRE', key, life)
            redis.pcall('SETRANGE', key, 6, '\1')
        end

    -- 3, 1: unusable, the outcome is unknown
    elseif state == 3 and reason == 1 and kind ~= 1 then

        if over(0) and same_request() then
            return take('0', '\2', '\0')
        end

    elseif (state == 2 or state == 3) and over(tonumber(ARGV[4])) then
        -- 6: it was deleted by hand, see remove.lua
        return take(reason == 6 and '0' or '2' .. string.sub(old, 46, 53),
                    nil, '\0')
    end
end

return { ARGV[1] .. '2' .. struct.pack('>i8', life), old }
