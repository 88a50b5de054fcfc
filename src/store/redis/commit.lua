-- commit: it ran.  Writes if the record is in progress under the holder's own
-- token, or is gone; wakes the waiters, if there are any.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 token   3 version of the stored form
--          4 claim   5 life, ms   6 state   7 reason   8 response
--          9 channel of the wake-ups   10 grace, ms: how much of its life it
--          is only remembered that there was a record
--
-- Returns  { tag, 1 }: committed, now or before
--          { tag, 2 }: there is no room; the record says that it ran
--          { tag, 0 }: somebody else's
--          { tag, 3 }: somebody else's, who still runs

local key = KEYS[1]
local gone = redis.call('PTTL', key) == -2
local f = redis.call('HMGET', key, 't', 's', 'q')

if not gone then
    if f[1] ~= ARGV[2] then
        return { ARGV[1], f[2] == '1' and 3 or 0 }
    end

    if f[2] ~= '1' then
        return { ARGV[1], 1 }
    end
end

local result = 1
local done

if ARGV[6] == '2' then
    done = redis.pcall('HSET', key, 'v', ARGV[3], 't', ARGV[2], 'c', ARGV[4],
                       'g', ARGV[10], 's', '2', 'b', ARGV[8])
else
    done = redis.pcall('HSET', key, 'v', ARGV[3], 't', ARGV[2], 'c', ARGV[4],
                       'g', ARGV[10], 's', ARGV[6], 'r', ARGV[7])
end

if type(done) == 'table' and done.err then

    if not string.find(done.err, 'OOM', 1, true) then
        return done
    end

    -- At maxmemory Redis refuses HSET, but not HDEL; and once a script has
    -- written, it lets it write on.  Should it not, a record without a state
    -- is one that ran and has no response.

    result = 2
    redis.call('HDEL', key, 's')

    local state, reason = '3', '4'

    if ARGV[6] ~= '2' then
        state, reason = ARGV[6], ARGV[7]
    end

    redis.pcall('HSET', key, 'v', ARGV[3], 't', ARGV[2], 'c', ARGV[4],
                'g', ARGV[10], 's', state, 'r', reason)
end

redis.call('PEXPIRE', key, ARGV[5])

if not gone and not f[3] then
    redis.call('PUBLISH', ARGV[9], key)
end

return { ARGV[1], result }
