-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- log: appends events to the stream of all hosts.
--
-- KEYS[1]  the stream
-- ARGV     1 tag of this call   2 approximate limit of entries   3 lines
--
-- Returns  tag "1"

-- before 7.0: replicate the ids that XADD generates
if redis.replicate_commands then
    redis.replicate_commands()
end

for line in string.gmatch(ARGV[3], '[^\n]+') do
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'event', line)
end

return ARGV[1] .. '1'
