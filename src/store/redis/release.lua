-- release: it did not run, or may run again.  Wakes the waiters, if there are
-- any.
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
local n = redis.call('LLEN', key)

if n == 0 then
    return ARGV[1] .. '1'
end

local waits = redis.call('LINDEX', key, -1) == 'w'

if n ~= (waits and 3 or 2) or redis.call('LINDEX', key, 1) ~= ARGV[2] then
    return ARGV[1] .. '0'
end

redis.call('DEL', key)

if waits then
    redis.call('PUBLISH', ARGV[3], key)
end

return ARGV[1] .. '1'
