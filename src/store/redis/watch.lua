-- watch: somebody waits for a record.  Says so in the record, in the same step
-- that looks whether it is still in progress, so that no wake-up is missed.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call
--
-- Returns  tag "1" ms left of the lease; 0: look now
--
-- Of a record, counted from 1: 4 state, 7 waits, 24 to 31 grace.

local key = KEYS[1]
local life = redis.call('PTTL', key)
local left = 0

if life > 0 then
    local head = redis.call('GETRANGE', key, 0, 30)

    if #head == 31 and string.byte(head, 4) == 1 then
        left = math.max(life - struct.unpack('>I8', head, 24), 0)

        -- At maxmemory Redis refuses SETRANGE, but not PEXPIRE; and once a
        -- script has written, it lets it write on.  Should it not, the waiter
        -- is not woken, and looks by itself.

        if left > 0 and string.byte(head, 7) ~= 1 then
            redis.call('PEXPIRE', key, life)
            redis.pcall('SETRANGE', key, 6, '\1')
        end
    end
end

return ARGV[1] .. '1' .. struct.pack('>I8', left)
