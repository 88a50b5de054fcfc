-- renew: the holder still runs.
--
-- KEYS[1]  the record
-- ARGV     1 to 4 as of begin
--
-- Returns  tag "1": renewed, or laid anew where the record is gone, or is of
--          another one that is gone
--          tag "0": somebody else's, or over
--
-- A record in progress is { lock, token }; with a token of zeros it was given
-- back, by another one who took over and is through.

local key = KEYS[1]
local record = redis.call('LRANGE', key, 0, 1)

-- Whether a record of somebody else is to be had: its lease is over, it is not
-- under hold, and it is of the same request.  The same stands in commit.lua.

local function lapsed(record)
    local old, second = record[1], record[2] or ''

    if #old < 89 or string.sub(old, 1, 2) ~= 'id' or string.byte(old, 4) == 1
    then
        return false
    end

    for _, part in ipairs({ { 22, 25 }, { 34, 65 }, { 66, 81 } }) do
        if string.sub(old, part[1], part[2])
           ~= string.sub(ARGV[2], part[1], part[2])
        then
            return false
        end
    end

    local life = redis.call('PTTL', KEYS[1])

    if #second == 16 then
        return life <= struct.unpack('>I8', old, 5)
    end

    -- unusable, since the outcome is unknown
    return #second >= 17 and string.sub(second, 4, 5) == '\3\1'
           and life <= struct.unpack('>I8', second, 6)
end

if #record == 0 then
    redis.call('RPUSH', key, ARGV[2], ARGV[3])

elseif record[2] == string.rep('\0', 16) then
    local waits = redis.call('LRANGE', key, 2, 2)

    redis.call('DEL', key)
    redis.call('RPUSH', key, ARGV[2], ARGV[3], unpack(waits))

elseif record[2] ~= ARGV[3] then

    if not lapsed(record) then
        return ARGV[1] .. '0'
    end

    -- the other one may have run: see begin.lua
    redis.call('DEL', key)
    redis.call('RPUSH', key,
               string.sub(ARGV[2], 1, 3) .. '\2' .. string.sub(ARGV[2], 5),
               ARGV[3])
end

redis.call('PEXPIRE', key, ARGV[4])

return ARGV[1] .. '1'
