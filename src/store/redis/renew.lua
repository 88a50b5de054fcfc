-- renew: the holder still runs.
--
-- KEYS[1]  the record
-- ARGV     1 to 4 as of begin
--
-- Returns  tag "1": renewed, or laid anew where the record is gone
--          tag "0": somebody else's, or over
--
-- A record in progress is { lock, token }; with a token of zeros it was given
-- back, by another one who took over and is through.

local key = KEYS[1]
local record = redis.call('LRANGE', key, 0, 1)

if #record == 0 then
    redis.call('RPUSH', key, ARGV[2], ARGV[3])

elseif record[2] == string.rep('\0', 16) then
    local waits = redis.call('LRANGE', key, 2, 2)

    redis.call('DEL', key)
    redis.call('RPUSH', key, ARGV[2], ARGV[3], unpack(waits))

elseif record[2] ~= ARGV[3] then
    return ARGV[1] .. '0'
end

redis.call('PEXPIRE', key, ARGV[4])

return ARGV[1] .. '1'
