-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- Rights.  nginx may call functions, and nothing else: it reads a record only
-- if it knows its id.  The functions run as their owner, whom row level
-- security does not bind, with a search_path of their own.

REVOKE ALL ON SCHEMA :"schema" FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA :"schema" FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA :"schema" FROM PUBLIC;

GRANT USAGE ON SCHEMA :"schema"
   TO idempotency_nginx, idempotency_admin, idempotency_reader;

GRANT EXECUTE ON FUNCTION
    idempotency_version(),
    idempotency_begin(bytea, bytea, bytea, bytea, bigint, bigint, boolean,
                      bigint, boolean, smallint, text, text, text, text),
    idempotency_renew(bytea, bytea, bytea, bytea, bigint, bigint, boolean,
                      boolean, text, text, text, text),
    idempotency_commit(bytea, bytea, bytea, smallint, smallint, smallint,
                       bigint, bigint, bigint, boolean, boolean, text, text,
                       text, text, bytea),
    idempotency_release(bytea, bytea),
    idempotency_watch(bytea),
    idempotency_entry(bytea),
    idempotency_purge(integer, boolean),
    idempotency_expire(integer, boolean),
    idempotency_figures(),
    idempotency_tally(bytea, integer),
    idempotency_log(jsonb)
TO idempotency_nginx;

GRANT EXECUTE ON FUNCTION
    idempotency_list(smallint, bigint, text, text, text, bytea, integer,
                     bytea),
    idempotency_get(bytea),
    idempotency_entries(bytea, integer),
    idempotency_delete(bytea),
    idempotency_delete_listed(bytea, smallint, bigint),
    idempotency_remove(bytea),
    idempotency_trail(bigint, bigint, bigint, text, text, text, integer,
                      boolean),
    idempotency_forget(text, text, integer)
TO idempotency_admin;

GRANT EXECUTE ON FUNCTION idempotency_tenants_of(name) TO idempotency_reader;

GRANT SELECT ON idempotency_records, idempotency_events
   TO idempotency_reader;

-- columns, not the table

GRANT SELECT (id, state, reason, status, size, hold, waiting, label, tenant,
              actor, host, created_at, lease_until, completed_at, expires_at)
   ON idempotency_keys TO idempotency_reader;
