-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- Installs the PostgreSQL store, or brings it up to this release.
--
--   psql -d <database> -f sql/install.sql                as the future owner
--   psql -d <database> -v schema=other -f sql/install.sql
--
-- The script is one transaction: it installs everything, or changes nothing.  It
-- may run again: tables stay, functions and rights are set anew.  Roles belong
-- to the whole server; if the owner may not create roles, an administrator runs
-- v1/roles.sql first.
--
-- Versions: idempotency_meta has the version of the schema, and the oldest
-- version of a module that it serves.  So upgrade the database first, and then
-- one host after the other.

\set ON_ERROR_STOP on
\set QUIET on

\if :{?schema}
\else
    \set schema idempotency
\endif

BEGIN;

SET LOCAL client_min_messages = warning;

-- nginx waits behind a statement that waits for a lock

SET LOCAL lock_timeout = '2s';

SELECT to_regclass(format('%I.idempotency_meta', :'schema')) IS NOT NULL
       AS installed \gset

\set version 0

\if :installed
    SELECT coalesce(max(version), 0) AS version
      FROM :"schema".idempotency_meta \gset
\endif

SELECT :version > 1 AS newer, :version < 1 AS before_1 \gset

\if :newer
    DO $$ BEGIN
        RAISE EXCEPTION 'the schema is of a newer release; nothing was changed'
              USING HINT = 'Take sql/install.sql of that release.';
    END $$;
\endif

\ir v1/roles.sql

\if :before_1
    CREATE SCHEMA IF NOT EXISTS :"schema";
\endif

SET LOCAL search_path = :"schema", pg_temp;

\if :before_1
    \ir v1/tables.sql
\endif

-- functions and rights of this release

\ir v1/steps.sql
\ir v1/purge.sql
\ir v1/people.sql
\ir v1/admin.sql
\ir v1/trail.sql
\ir v1/grants.sql

\if :before_1
    INSERT INTO idempotency_meta (version, compatible) VALUES (1, 1);
\endif

COMMIT;
