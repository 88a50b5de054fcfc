-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- lapsed(): whether another holder's record may be replaced: its lease has
-- expired, it is not under hold, and it is of the same request.  A part of
-- commit.lua and renew.lua, whose "key", "old" and "part()" it uses; see there
-- for the offsets.

local function lapsed()
    if #old < 117 or string.sub(old, 1, 2) ~= 'id'
       or string.byte(old, 6) % 2 == 1
       or not (part(42, 45) and part(54, 101))
    then
        return false
    end

    -- in progress, or unusable with an unknown outcome
    return (string.byte(old, 4) == 1 or string.sub(old, 4, 5) == '\3\1')
           and redis.call('PTTL', key) <= struct.unpack('>I8', old, 9)
end
