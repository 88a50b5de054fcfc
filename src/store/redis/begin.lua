-- begin: takes the lock on a record, or tells what is there.  For what plain
-- commands can't decide: see ..._redis_script.c.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 our record, in progress   3 its life, ms
--
-- Returns  tag "1" how: the lock is ours; "0": nothing was there, or it was
--          ours already, "1": its holder was gone, "2": it had expired
--          { tag "2" ms to live, the record }: what is there, as it is; who
--          asks judges it, and refuses what it does not know
--
-- A record is bytes, see ..._redis_record.c.  Counted from 1: 3 version,
-- 4 state, 6 hold, 7 waits, 8 to 23 token, 24 to 31 grace.
--
-- The lease is what the key has to live, less its grace: the clock is Redis's
-- own, and a lease can be renewed when there is no memory left for a write.
-- In the same way the ttl of what is over is its life, less its grace.

local key, mine = KEYS[1], ARGV[2]
local laid = redis.pcall('SET', key, mine, 'NX', 'PX', ARGV[3])

if laid and laid.ok then
    return ARGV[1] .. '10'
end

-- refused at maxmemory or by a replica, what is there is told all the same

local record = redis.call('GET', key)

if not record then
    return laid
end

local life = redis.call('PTTL', key)

if life >= 0 and #record >= 104 and string.sub(record, 1, 2) == 'id'
   and math.abs(string.byte(record, 3) - string.byte(mine, 3)) <= 1
then
    local state = string.byte(record, 4)
    local grace = struct.unpack('>I8', record, 24)
    local over = life <= grace and grace <= 100 * 365 * 24 * 3600 * 1000

    if state == 1 then

        -- a begin that is asked again, since its answer was lost
        if string.sub(record, 8, 23) == string.sub(mine, 8, 23) then
            redis.call('PEXPIRE', key, ARGV[3])
            return ARGV[1] .. '10'
        end

        -- its holder is gone; others may wait already
        if over and string.byte(record, 6) ~= 1 then
            mine = string.sub(mine, 1, 6) .. string.sub(record, 7, 7)
                   .. string.sub(mine, 8)
            redis.call('SET', key, mine, 'PX', ARGV[3])
            return ARGV[1] .. '11'
        end

    elseif over and (state == 2 or state == 3) then

        -- first of all room: at maxmemory the rest is allowed then
        redis.call('DEL', key)
        redis.call('SET', key, mine, 'PX', ARGV[3])
        return ARGV[1] .. '12'
    end
end

return { ARGV[1] .. '2' .. struct.pack('>i8', life), record }
