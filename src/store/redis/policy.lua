-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- policy: whether the server may evict records, if the user may know.  A query
-- without the permission would count as an error in the statistics of the
-- server and add a line to its ACL LOG.
--
-- Returns  "config": the user may call CONFIG GET maxmemory-policy, which a
--          script can't; "": the user has no permission; "unknown": Redis
--          before 7.0 can't tell; or the same as CONFIG GET

if not redis.acl_check_cmd then
    return 'unknown'
end

if redis.acl_check_cmd('CONFIG', 'GET', 'maxmemory-policy') then
    return 'config'
end

if redis.acl_check_cmd('INFO', 'memory') then
    return { 'maxmemory-policy', string.match(redis.call('INFO', 'memory'),
                                              'maxmemory_policy:(%S+)') }
end

return ''
