-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- list: a slice of the records of this server.  SCAN examines a limited
-- number of keys of any kind, so the work is bounded.
--
-- ARGV  1 tag of this call   2 cursor of SCAN   3 pattern of the keys
--       4 number of keys to examine   5 length of the keys of records
--       6 number of first bytes to return
--
-- Returns  tag "1" length of the next cursor, the next cursor ("0": this was
--          the last slice), used memory and maxmemory (8 bytes each, 0:
--          unknown), and for each record: its id as 64 digits, ms to live,
--          length, number of first bytes, the first bytes
--
-- or     tag "0": the user has no permission to list records
--
-- The first slice reports the memory, if the user has the permission.  A command
-- without permission would count as an error in the statistics of the server,
-- each time the figures are read, so permissions are checked first (Redis 6
-- can't).

local may = redis.acl_check_cmd

if may and not (may('SCAN', '0')
                and may('STRLEN', (string.gsub(ARGV[3], '\\(.)', '%1'))))
then
    return ARGV[1] .. '0'
end

local slice = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[3],
                         'COUNT', ARGV[4])
local len, bytes = tonumber(ARGV[5]), ARGV[6] - 1
local used, size = 0, 0

if ARGV[2] == '0' and may and may('INFO', 'memory') then
    local info = redis.call('INFO', 'memory')

    used = tonumber(string.match(info, 'used_memory:(%d+)') or 0)
    size = tonumber(string.match(info, 'maxmemory:(%d+)') or 0)
end

local reply = { ARGV[1] .. '1', struct.pack('>I2', #slice[1]), slice[1],
                struct.pack('>I8I8', used, size) }

for _, key in ipairs(slice[2]) do

    if #key == len and redis.call('TYPE', key).ok == 'string' then
        local head = redis.call('GETRANGE', key, 0, bytes)

        if string.sub(head, 1, 2) == 'id' then
            reply[#reply + 1] = string.sub(key, -64)
                .. struct.pack('>i8I4I2', redis.call('PTTL', key),
                               redis.call('STRLEN', key), #head)
                .. head
        end
    end
end

return table.concat(reply)
