-- watch: somebody waits for a record.  Says so in the record, in the same step
-- that looks whether it is still in progress, so that no wake-up is missed.
--
-- "q" stands in a record for which nobody waits.  It is taken out, not put in:
-- that works at maxmemory, too.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call
--
-- Returns  { tag, ms left of the lease }, 0: look now

local key = KEYS[1]
local life = redis.call('PTTL', key)

if life < 0 then
    return { ARGV[1], 0 }
end

local f = redis.call('HMGET', key, 's', 'g', 'q')
local left = life - (tonumber(f[2] or 0) or 0)

if f[1] ~= '1' or left <= 0 then
    return { ARGV[1], 0 }
end

if f[3] then
    redis.call('HDEL', key, 'q')
end

return { ARGV[1], left }
