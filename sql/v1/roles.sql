-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- Roles.  None can log in: grant them to those that can.
--
--   idempotency_nginx    calls the steps on a record, and the purge
--   idempotency_admin    lists and deletes records (idempotency_admin of nginx)
--   idempotency_reader   reads the view for people, its own tenants only

DO $$
DECLARE
    r  name;
BEGIN
    FOREACH r IN ARRAY ARRAY['idempotency_nginx', 'idempotency_admin',
                             'idempotency_reader']
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = r) THEN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', r);
        END IF;
    END LOOP;
END $$;
