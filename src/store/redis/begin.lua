-- begin: takes the lock on a record, or tells what is there.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 token   3 version of the stored form
--          4 claim              5 life, ms   6 grace, ms   7 "1" under hold
--          8 details, or ""
--
-- Returns  { tag, 1, how }: the lock is ours; 0: nothing was there, or it was
--          ours already, 1: its holder was gone, 2: it had expired
--          { tag, 2, ms to live, v, s, r, c, g, h, b, d }: what is there, as
--          it is; who asks judges it, and refuses what it does not know
--
-- The lease is what the key has to live, less its grace: the clock is Redis's
-- own, and a lease can be renewed when there is no memory left for a write.
-- In the same way the ttl of what is over is its life, less its grace.

local key = KEYS[1]
local life = redis.call('PTTL', key)

local function lay(how)
    redis.call('HSET', key, 'v', ARGV[3], 't', ARGV[2], 's', '1',
               'c', ARGV[4], 'g', ARGV[6], 'h', ARGV[7], 'q', '1')

    if ARGV[8] ~= '' then
        redis.call('HSET', key, 'd', ARGV[8])
    end

    -- no key without a life, not even for a user that may not give it one
    local done = redis.pcall('PEXPIRE', key, ARGV[5])

    if type(done) == 'table' and done.err then
        redis.call('DEL', key)
        return done
    end

    return { ARGV[1], 1, how }
end

if life == -2 then
    return lay(0)
end

local f = redis.call('HMGET', key, 'v', 's', 'r', 'c', 'g', 'h', 'b', 'd', 't')
local v, s, g, h, t = f[1], f[2], f[5], f[6], f[9]

local known = life >= 0 and v and tonumber(v) and math.abs(v - ARGV[3]) <= 1
local over = tonumber(g) and life <= tonumber(g)

if known and (s == '2' or s == '3') and over then
    redis.call('DEL', key)
    return lay(2)
end

if known and s == '1' then

    -- a begin that is asked again, since its answer was lost
    if t == ARGV[2] then
        redis.call('PEXPIRE', key, ARGV[5])
        return { ARGV[1], 1, 0 }
    end

    -- its holder is gone; q stays: others may wait already
    if h ~= '1' and over then
        redis.call('HSET', key, 'v', ARGV[3], 't', ARGV[2], 'c', ARGV[4],
                   'g', ARGV[6], 'h', ARGV[7], 'd', ARGV[8])
        redis.call('PEXPIRE', key, ARGV[5])
        return { ARGV[1], 1, 1 }
    end
end

return { ARGV[1], 2, life, v, s, f[3], f[4], g, h, f[7], f[8] }
