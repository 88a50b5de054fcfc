-- renew: the holder still runs.
--
-- KEYS[1]  the record
-- ARGV     as of begin, without the details
--
-- Returns  { tag, 1 }: renewed, or laid anew where the record is gone
--          { tag, 0 }: somebody else's

local key = KEYS[1]

if redis.call('PTTL', key) == -2 then
    redis.call('HSET', key, 'v', ARGV[3], 't', ARGV[2], 's', '1',
               'c', ARGV[4], 'g', ARGV[6], 'h', ARGV[7], 'q', '1')

    local done = redis.pcall('PEXPIRE', key, ARGV[5])

    if type(done) == 'table' and done.err then
        redis.call('DEL', key)
        return done
    end

    return { ARGV[1], 1 }
end

local f = redis.call('HMGET', key, 't', 's')

if f[1] ~= ARGV[2] or f[2] ~= '1' then
    return { ARGV[1], 0 }
end

redis.call('PEXPIRE', key, ARGV[5])

return { ARGV[1], 1 }
