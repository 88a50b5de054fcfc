-- release: it did not run, or may run again.  Wakes the waiters, if there are
-- any; then a lock whose lease is over and whose token is zeros stays for a
-- while, so that they can tell a record that was given back from one that this
-- server lost, whose holder may still run.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 token   3 channel of the wake-ups
--
-- Returns  tag "1": released, or gone already
--          tag "0": somebody else's, or committed
--
-- A record in progress is { lock, token }, and "w" behind that if somebody
-- waits; over, it is { lock, outcome, token }.  Of a lock, counted from 1:
-- 3 version, 4 kind; of an outcome 4 state, 5 reason, 6 to 13 grace.

local key = KEYS[1]
local record = redis.call('LRANGE', key, 0, 2)

if #record == 0 then
    return ARGV[1] .. '1'
end

if record[2] ~= ARGV[2] then
    return ARGV[1] .. '0'
end

-- What was taken over may have run before: then another request must not find
-- nothing.  Its outcome is unknown, with a lease that is over.

local lock = record[1]

if string.byte(lock, 4) == 2 then
    local life = math.max(redis.call('PTTL', key), 1)

    -- at maxmemory LINSERT is refused, unless something was written before
    redis.call('PEXPIRE', key, life)
    redis.call('LINSERT', key, 'BEFORE', ARGV[2],
               string.sub(lock, 1, 3) .. '\3\1'
               .. struct.pack('>I8', life) .. '\0\0\0\0')
else
    redis.call('DEL', key)

    -- Those who wait look once a second at least.  5 to 12 of a lock: grace
    if record[3] == 'w' then
        redis.pcall('RPUSH', key,
                    string.sub(lock, 1, 3) .. '\0'
                    .. struct.pack('>I8', 100 * 365 * 24 * 3600 * 1000)
                    .. string.sub(lock, 13),
                    string.rep('\0', 16), 'w')
        redis.call('PEXPIRE', key, 5000)
    end
end

if record[3] == 'w' then
    redis.call('PUBLISH', ARGV[3], key)
end

return ARGV[1] .. '1'
