-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- watch: marks a record as waited for.  This is done in the same step that
-- checks whether the record is in progress, so that no wake-up is missed: a
-- commit or a release that compares the lock with its own finds it changed,
-- and publishes.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call
--
-- Returns  tag "1" ms left of the lease; 0: begin again now
--
-- Offsets, counted from 1: 4 state (1: in progress), 7 mark of a waiter, 9 to
-- 16 grace.

local key = KEYS[1]
local life = redis.call('PTTL', key)
local left = 0

if life > 0 then
    local lock = redis.call('GETRANGE', key, 0, 15)

    if #lock == 16 and string.byte(lock, 4) == 1 then
        left = math.max(life - struct.unpack('>I8', lock, 9), 0)

        -- At maxmemory the server refuses SETRANGE, but not PEXPIRE; and a
        -- script that has written once may go on writing.  If SETRANGE fails
        -- nevertheless, the waiter is not woken, but polls.

        if left > 0 and string.byte(lock, 7) == 0 then
            redis.call('PEXPIRE', key, life)
            redis.pcall('SETRANGE', key, 6, '\1')
        end
    end
end

return ARGV[1] .. '1' .. struct.pack('>I8', left)
