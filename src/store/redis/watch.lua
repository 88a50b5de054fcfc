-- watch: somebody waits for a record.  Says so in the record, in the same step
-- that looks whether it is still in progress, so that no wake-up is missed.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call
--
-- Returns  tag "1" ms left of the lease; 0: look now
--
-- A record in progress is { lock, token }, and "w" behind that if somebody
-- waits; a token has 16 bytes.  Of a lock, counted from 1: 5 to 12 grace.

local key = KEYS[1]
local life = redis.call('PTTL', key)
local left = 0

if life > 0 then
    local record = redis.call('LRANGE', key, 0, 2)

    if #record >= 2 and #record[1] >= 89 and #record[2] == 16 then
        left = math.max(life - struct.unpack('>I8', record[1], 5), 0)

        -- At maxmemory Redis refuses RPUSH, but not PEXPIRE; and once a script
        -- has written, it lets it write on.  Should it not, the waiter is not
        -- woken, and looks by itself.

        if left > 0 and not record[3] then
            redis.call('PEXPIRE', key, life)
            redis.pcall('RPUSH', key, 'w')
        end
    end
end

return ARGV[1] .. '1' .. struct.pack('>I8', left)
