-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- events: reads or removes events from the stream of all hosts.  Examines a
-- limited number of entries, and returns or removes those that contain a text.
--
-- KEYS[1]  the stream
-- ARGV     1 tag of this call   2 first id   3 last id   4 number of entries
--          5 the text, or empty   6 another text, or empty   7 "1": remove
--
-- Returns  tag, "1" (there may be more) or "0", length of the last id, the
--          last id (empty: there were no entries), number of matches, and for
--          each returned entry its length and its text

local slice = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[3],
                         'COUNT', ARGV[4])
local text, other, remove = ARGV[5], ARGV[6], ARGV[7] == '1'
local lines, n, last = {}, 0, ''

for _, entry in ipairs(slice) do
    local line = entry[2][2] or ''

    last = entry[1]

    if text == '' or string.find(line, text, 1, true)
       or (other ~= '' and string.find(line, other, 1, true))
    then
        n = n + 1

        if remove then
            redis.call('XDEL', KEYS[1], last)
        else
            lines[n] = struct.pack('>I4', #line) .. line
        end
    end
end

return ARGV[1] .. (#slice == tonumber(ARGV[4]) and '1' or '0')
       .. struct.pack('>I2', #last) .. last .. struct.pack('>I4', n)
       .. table.concat(lines)
