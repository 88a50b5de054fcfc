-- begin: takes the lock on a record, or tells what is there.  For what plain
-- commands can't decide: see ..._redis_plain.c.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 our lock   3 our token   4 life, ms
--          5 ms since the asker came   6 "1": the key alone decides
--          7 "0"; "1": who asks would wait; "2": waits, and it was in
--          progress; "3": ... and its lease can't be over
--
-- Returns  tag "1" how: the lock is ours; "0": nothing was there, or it was
--          ours already, "1": its holder was gone, "2": it had expired
--          { tag "2" ms to live, lock, token or outcome }: what is there, as
--          it is; who asks judges it, and refuses what it does not know
--          tag "3": it was in progress, and is gone; nobody gave it back
--
-- A record is a list, { lock, token } or { lock, outcome, token }, and "w"
-- behind that if somebody waits; see ..._redis_record.c.  Counted from 1:
-- 3 version; of a lock 4 kind, 5 to 12 grace, 22 to 25 scheme, 34 to 65
-- fingerprint, 66 to 81 identity, 82 to 89 target; of an outcome 4 state,
-- 5 reason, 6 to 13 grace.  A token has 16 bytes, an outcome more.  The kind is
-- 1 under hold, and 2 if the lock was taken over: it may have run before.
-- A token of zeros is of a record that was given back while somebody waited,
-- and is free: see release.lua.
--
-- The lease is what the key has to live, less the grace of the lock: the clock
-- is Redis's own, and a lease can be renewed when there is no memory left for
-- a write.  In the same way the ttl of what is over is its life, less the
-- grace of the outcome; or, of an unknown outcome that is not under hold, what
-- is left of a lease.  A lease that is over lets the same request run, and no
-- other: its fingerprint stays as long as the key does.

local key, lock, token = KEYS[1], ARGV[2], ARGV[3]
local record = redis.call('LRANGE', key, 0, 2)

if #record == 0 then

    if ARGV[7] >= '2' then
        return ARGV[1] .. '3'
    end

    local laid = redis.pcall('RPUSH', key, lock, token)

    if type(laid) == 'table' then
        return laid
    end

    redis.call('PEXPIRE', key, ARGV[4])
    return ARGV[1] .. '10'
end

local old, second = record[1], record[2] or ''
local life = redis.call('PTTL', key)
local longest = 100 * 365 * 24 * 3600 * 1000

local function known(element, size)
    return #element >= size and string.sub(element, 1, 2) == 'id'
           and math.abs(string.byte(element, 3) - string.byte(lock, 3)) <= 1
end

local function over(element, at, age)
    local grace = struct.unpack('>I8', element, at)
    return life + age <= grace and grace <= longest
end

local function part(from, to)
    return string.sub(old, from, to) == string.sub(lock, from, to)
end

local function same_request()
    if not part(66, 81) then
        return false
    end

    if part(22, 25) then
        return part(34, 65)
    end

    return ARGV[6] == '1' or part(82, 89)
end

local function take(how, again, ...)

    -- first of all room: at maxmemory the rest is allowed then
    redis.call('DEL', key)
    redis.call('RPUSH', key,
               string.sub(lock, 1, 3) .. (again or string.sub(lock, 4, 4))
               .. string.sub(lock, 5),
               token, ...)
    redis.call('PEXPIRE', key, ARGV[4])
    return ARGV[1] .. '1' .. how
end

if life >= 0 and known(old, 89) then

    if #second == 16 then

        -- a begin that is asked again, since its answer was lost
        if second == token then
            redis.call('PEXPIRE', key, ARGV[4])
            return ARGV[1] .. '10'
        end

        local waits = { record[3] }

        -- it was given back, or its holder is gone; others may wait already
        if second == string.rep('\0', 16) and over(old, 5, 0) then
            return take('0', nil, unpack(waits))
        end

        if string.byte(old, 4) ~= 1 and over(old, 5, 0) and same_request() then

            -- of an earlier holder: this server lost the lock of the one that
            -- who asks waits for, and that may still run
            if ARGV[7] == '3' then
                return ARGV[1] .. '3'
            end

            return take('1', '\2', unpack(waits))
        end

        -- who will wait says so at once: the next step of the holder may be to
        -- give it back.  As in watch.lua, at maxmemory
        if ARGV[7] ~= '0' and #waits == 0
           and life > struct.unpack('>I8', old, 5)
        then
            redis.call('PEXPIRE', key, life)
            redis.pcall('RPUSH', key, 'w')
        end

    elseif known(second, 17) then
        local state, reason = string.byte(second, 4, 5)

        -- 3, 1: unusable, the outcome is unknown
        if state == 3 and reason == 1 and string.byte(old, 4) ~= 1 then

            if over(second, 6, 0) and same_request() then
                return take('0', '\2')
            end

        elseif over(second, 6, tonumber(ARGV[5]))
               and (state == 2 or state == 3)
        then
            return take('2')
        end
    end
end

return { ARGV[1] .. '2' .. struct.pack('>i8', life), old, second }
