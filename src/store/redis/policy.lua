-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- policy: whether the server may evict records, as far as the user may know.
-- To ask without the right would be an error in the server's statistics and a
-- line in its ACL LOG.
--
-- Returns  "config": the user may ask CONFIG GET maxmemory-policy, which a
--          script can't; "": it may not know; "unknown": Redis before 7.0, which
--          can't tell; or the text of INFO memory

if not redis.acl_check_cmd then
    return 'unknown'
end

if redis.acl_check_cmd('CONFIG', 'GET', 'maxmemory-policy') then
    return 'config'
end

if redis.acl_check_cmd('INFO', 'memory') then
    return redis.call('INFO', 'memory')
end

return ''
