-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- Removes the store from a database: all records, the archive, the events.
--
--   psql -d <database> -f sql/uninstall.sql              as the owner
--   psql -d <database> -v schema=other -f sql/uninstall.sql
--
-- Stop every nginx that uses it first.  The roles are of the whole server and
-- stay: DROP ROLE idempotency_nginx, idempotency_admin, idempotency_reader.

\set ON_ERROR_STOP on
\set QUIET on

\if :{?schema}
\else
    \set schema idempotency
\endif

SET client_min_messages = warning;

DROP SCHEMA IF EXISTS :"schema" CASCADE;
