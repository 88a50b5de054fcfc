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
local record = redis.call('LRANGE', key, 0, 2)

if #record == 0 then
    return ARGV[1] .. '1'
end

if record[2] ~= ARGV[2] then
    return ARGV[1] .. '0'
end

redis.call('DEL', key)

if record[3] == 'w' then
    redis.call('PUBLISH', ARGV[3], key)
end

return ARGV[1] .. '1'
