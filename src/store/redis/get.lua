-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- get: reads a record for administration; changes nothing.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 number of first bytes to return
--
-- Returns  tag "1" ms to live, length of the record, its first bytes
--          tag "0": there is no record

local key = KEYS[1]

if redis.call('TYPE', key).ok ~= 'string' then
    return ARGV[1] .. '0'
end

return ARGV[1] .. '1'
       .. struct.pack('>i8I4', redis.call('PTTL', key),
                      redis.call('STRLEN', key))
       .. redis.call('GETRANGE', key, 0, ARGV[2] - 1)
