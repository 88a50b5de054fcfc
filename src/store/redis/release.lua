-- release: it did not run, or may run again.  Wakes the waiters, if there are
-- any.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 token   3 channel of the wake-ups
--
-- Returns  { tag, 1 }: released, or gone already
--          { tag, 0 }: somebody else's, or committed

local key = KEYS[1]

if redis.call('PTTL', key) == -2 then
    return { ARGV[1], 1 }
end

local f = redis.call('HMGET', key, 't', 's', 'q')

if f[1] ~= ARGV[2] or f[2] ~= '1' then
    return { ARGV[1], 0 }
end

redis.call('DEL', key)

if not f[3] then
    redis.call('PUBLISH', ARGV[3], key)
end

return { ARGV[1], 1 }
