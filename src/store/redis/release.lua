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
-- waits.

local key = KEYS[1]
local record = redis.call('LRANGE', key, 0, 2)

if #record == 0 then
    return ARGV[1] .. '1'
end

if record[2] ~= ARGV[2] then
    return ARGV[1] .. '0'
end

redis.call('DEL', key)

if record[3] == 'w' then

    -- They look once a second at least.  Of a lock, counted from 1: 4 hold,
    -- 5 to 12 grace.

    local lock = string.sub(record[1], 1, 3) .. '\0'
                 .. struct.pack('>I8', 100 * 365 * 24 * 3600 * 1000)
                 .. string.sub(record[1], 13)

    redis.pcall('RPUSH', key, lock, string.rep('\0', 16), 'w')
    redis.call('PEXPIRE', key, 5000)
    redis.call('PUBLISH', ARGV[3], key)
end

return ARGV[1] .. '1'
