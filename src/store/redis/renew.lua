-- renew: the holder still runs.
--
-- KEYS[1]  the record
-- ARGV     as of begin
--
-- Returns  tag "1": renewed, or laid anew where the record is gone
--          tag "0": somebody else's
--
-- Of a record, counted from 1: 4 state, 8 to 23 token.

local key = KEYS[1]
local head = redis.call('GETRANGE', key, 0, 22)

if head == '' then
    local laid = redis.call('SET', key, ARGV[2], 'NX', 'PX', ARGV[3])
    return ARGV[1] .. (laid and '1' or '0')
end

if string.sub(head, 8) ~= string.sub(ARGV[2], 8, 23)
   or string.byte(head, 4) ~= 1
then
    return ARGV[1] .. '0'
end

redis.call('PEXPIRE', key, ARGV[3])

return ARGV[1] .. '1'
