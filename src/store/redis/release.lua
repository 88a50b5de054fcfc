-- release: it did not run, or may run again.  Wakes the waiters, if there are
-- any.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 token   3 channel of the wake-ups
--
-- Returns  tag "1": released, or gone already
--          tag "0": somebody else's, or committed
--
-- Of a record, counted from 1: 4 state, 7 waits, 8 to 23 token.

local key = KEYS[1]
local head = redis.call('GETRANGE', key, 0, 22)

if head == '' then
    return ARGV[1] .. '1'
end

if string.sub(head, 8) ~= ARGV[2] or string.byte(head, 4) ~= 1 then
    return ARGV[1] .. '0'
end

redis.call('DEL', key)

if string.byte(head, 7) == 1 then
    redis.call('PUBLISH', ARGV[3], key)
end

return ARGV[1] .. '1'
