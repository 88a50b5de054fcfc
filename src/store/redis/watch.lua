-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- watch: somebody waits for a record.  Says so in the record, in the same step
-- that looks whether it is still in progress, so that no wake-up is missed: a
-- commit or a release that compares the lock with its own does not find it, and
-- publishes.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call
--
-- Returns  tag "1" ms left of the lease; 0: look now
--
-- Of a record, counted from 1: 4 state (1: in progress), 7 waited for, 9 to 16
-- grace.

local key = KEYS[1]
local life = redis.call('PTTL', key)
local left = 0

if life > 0 then
    local lock = redis.call('GETRANGE', key, 0, 15)

    if #lock == 16 and string.byte(lock, 4) == 1 then
        left = math.max(life - struct.unpack('>I8', lock, 9), 0)

        -- At maxmemory the server refuses SETRANGE, but not PEXPIRE; and once
        -- a script has written, it lets it write on.  Should it not, the waiter
        -- is not woken, and looks by itself.

        if left > 0 and string.byte(lock, 7) == 0 then
            redis.call('PEXPIRE', key, life)
            redis.pcall('SETRANGE', key, 6, '\1')
        end
    end
end

return ARGV[1] .. '1' .. struct.pack('>I8', left)
