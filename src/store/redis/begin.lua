-- begin: takes the lock on a record, or tells what is there.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 token   3 version of the stored form
--          4 claim              5 life, ms   6 grace, ms   7 "1" under hold
--
-- Returns  { tag, 1, abandoned }: the lock is ours
--          { tag, 2, ms to live, v, s, r, c, g, h, b }: what is there, as it
--          is; who asks judges it, and refuses what it does not know
--
-- The lease is what the key has to live, less its grace: the clock is Redis's
-- own, and a lease can be renewed when there is no memory left for a write.

local key = KEYS[1]
local life = redis.call('PTTL', key)

if life == -2 then
    redis.call('HSET', key, 'v', ARGV[3], 't', ARGV[2], 's', '1',
               'c', ARGV[4], 'g', ARGV[6], 'h', ARGV[7], 'q', '1')

    -- no key without a life, not even for a user that may not give it one
    local done = redis.pcall('PEXPIRE', key, ARGV[5])

    if type(done) == 'table' and done.err then
        redis.call('DEL', key)
        return done
    end

    return { ARGV[1], 1, 0 }
end

local f = redis.call('HMGET', key, 'v', 's', 'r', 'c', 'g', 'h', 'b', 't')
local v, s, g, h, t = f[1], f[2], f[5], f[6], f[8]

local known = v and tonumber(v) and math.abs(v - ARGV[3]) <= 1

if known and s == '1' and life >= 0 then

    -- a begin that is asked again, since its answer was lost
    if t == ARGV[2] then
        redis.call('PEXPIRE', key, ARGV[5])
        return { ARGV[1], 1, 0 }
    end

    -- its holder is gone; q stays: others may wait already
    if h ~= '1' and tonumber(g) and life <= tonumber(g) then
        redis.call('HSET', key, 'v', ARGV[3], 't', ARGV[2], 'c', ARGV[4],
                   'g', ARGV[6], 'h', ARGV[7])
        redis.call('PEXPIRE', key, ARGV[5])
        return { ARGV[1], 1, 1 }
    end
end

return { ARGV[1], 2, life, v, s, f[3], f[4], g, h, f[7] }
