-- begin: takes the lock on a record, or tells what is there.  For what plain
-- commands can't decide: see ..._redis_plain.c.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 our lock   3 our token   4 life, ms
--          5 "0"; "1": who asks would wait; "2": waits, and it was in progress
--
-- Returns  tag "1" how: the lock is ours; "0": nothing was there, or it was
--          ours already, "1": its holder was gone, "2": it had expired
--          { tag "2" ms to live, lock, token or outcome }: what is there, as
--          it is; who asks judges it, and refuses what it does not know
--          tag "3": it was in progress, and is gone; nobody gave it back
--
-- A record is a list, { lock, token } or { lock, outcome, token }, and "w"
-- behind that if somebody waits; see ..._redis_record.c.  Counted from 1:
-- 3 version; of a lock 4 hold, 5 to 12 grace; of an outcome 4 state, 6 to 13
-- grace.  A token has 16 bytes, an outcome more; that of zeros is of a record
-- which was given back while somebody waited, and free: see release.lua.
--
-- The lease is what the key has to live, less the grace of the lock: the clock
-- is Redis's own, and a lease can be renewed when there is no memory left for
-- a write.  In the same way the ttl of what is over is its life, less the
-- grace of the outcome.

local key, lock, token = KEYS[1], ARGV[2], ARGV[3]
local record = redis.call('LRANGE', key, 0, 1)

if #record == 0 then

    if ARGV[5] == '2' then
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

local function over(element, at)
    local grace = struct.unpack('>I8', element, at)
    return life <= grace and grace <= longest
end

if life >= 0 and known(old, 89) then

    if #second == 16 then

        -- a begin that is asked again, since its answer was lost
        if second == token then
            redis.call('PEXPIRE', key, ARGV[4])
            return ARGV[1] .. '10'
        end

        local free = second == string.rep('\0', 16)

        -- it was given back, or its holder is gone; others may wait already
        if over(old, 5) and (free or string.byte(old, 4) ~= 1) then
            local waits = redis.call('LRANGE', key, 2, 2)

            redis.call('DEL', key)
            redis.call('RPUSH', key, lock, token, unpack(waits))

            redis.call('PEXPIRE', key, ARGV[4])
            return ARGV[1] .. (free and '10' or '11')
        end

        -- who will wait says so at once: the next step of the holder may be to
        -- give it back.  As in watch.lua, at maxmemory
        if ARGV[5] ~= '0' and life > struct.unpack('>I8', old, 5)
           and #redis.call('LRANGE', key, 2, 2) == 0
        then
            redis.call('PEXPIRE', key, life)
            redis.pcall('RPUSH', key, 'w')
        end

    elseif known(second, 17) then
        local state = string.byte(second, 4)

        if over(second, 6) and (state == 2 or state == 3) then

            -- first of all room: at maxmemory the rest is allowed then
            redis.call('DEL', key)
            redis.call('RPUSH', key, lock, token)
            redis.call('PEXPIRE', key, ARGV[4])
            return ARGV[1] .. '12'
        end
    end
end

return { ARGV[1] .. '2' .. struct.pack('>i8', life), old, second }
