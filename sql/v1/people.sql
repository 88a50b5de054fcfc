-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- For people and for administration.  Nothing here gives out a response, a
-- token, or what idempotency_conflict_detail keeps.

CREATE OR REPLACE FUNCTION idempotency_tenants_of(p_user name)
RETURNS text[]
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT coalesce(array_agg(t.tenant), '{}') FROM idempotency_tenants t
      JOIN pg_catalog.pg_roles r ON r.rolname = t.member
     WHERE pg_has_role(p_user, r.oid, 'member')
$$;

-- The view shows what its reader's tenants have.  It checks that itself: before
-- PostgreSQL 15 a view reads its tables with the rights of its owner.

CREATE OR REPLACE VIEW idempotency_records WITH (security_barrier) AS
SELECT encode(k.id, 'hex') AS id,
       CASE WHEN k.forget_at <= now() OR k.state = 4
                 OR k.reason = 6 THEN 'forgotten'
            WHEN k.state = 1 AND k.lease_until <= now()
                 THEN CASE WHEN k.hold THEN 'unknown' ELSE 'abandoned' END
            WHEN k.state > 1 AND k.expires_at <= now() THEN 'expired'
            ELSE (ARRAY['in progress', 'completed', 'unusable'])[k.state]
       END AS state,
       (ARRAY['unknown', 'too large', 'stream', 'no room', 'evicted',
              'deleted'])
           [k.reason] AS reason,
       k.status, k.size, k.label, k.tenant, k.actor, k.host, k.waiting,
       k.created_at, k.completed_at, k.expires_at,
       k.completed_at - k.created_at AS took
  FROM idempotency_keys k
 WHERE k.tenant = ANY ((SELECT idempotency_tenants_of(current_user))::text[])
       OR '*' = ANY ((SELECT idempotency_tenants_of(current_user))::text[]);

-- Only where it is not so yet: an exclusive lock on a table that nginx uses
-- waits for everybody who reads it, as pg_dump does, and nginx waits behind it.

DO $$
DECLARE
    t  text;
BEGIN
    FOREACH t IN ARRAY ARRAY['idempotency_keys', 'idempotency_events'] LOOP

        IF NOT (SELECT c.relrowsecurity FROM pg_catalog.pg_class c
                 WHERE c.oid = t::regclass)
        THEN
            EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        END IF;

        IF NOT EXISTS (SELECT FROM pg_catalog.pg_policy p
                        WHERE p.polrelid = t::regclass
                          AND p.polname = 'tenant_reads')
        THEN
            EXECUTE format('CREATE POLICY tenant_reads ON %I FOR SELECT '
                || 'USING (tenant = ANY ((SELECT '
                || 'idempotency_tenants_of(current_user))::text[]) '
                || 'OR ''*'' = ANY ((SELECT '
                || 'idempotency_tenants_of(current_user))::text[]))', t);
        END IF;
    END LOOP;
END $$;


-- list: a page of records in the order of their ids, from p_after on.
-- p_state 0: all; p_older: begun that many ms ago or more.  NULL: any.
-- A lock whose lease is over under hold is unusable, as a begin would find it.

CREATE OR REPLACE FUNCTION idempotency_list(
    p_state smallint DEFAULT 0, p_older bigint DEFAULT 0,
    p_label text DEFAULT NULL, p_tenant text DEFAULT NULL,
    p_actor text DEFAULT NULL, p_after bytea DEFAULT NULL,
    p_limit integer DEFAULT 100, p_id bytea DEFAULT NULL)
RETURNS TABLE (o_id bytea, o_state smallint, o_reason smallint,
    o_status smallint, o_size integer, o_label text, o_tenant text,
    o_actor text, o_host text, o_created bigint, o_completed bigint,
    o_expires bigint, o_left bigint, o_fingerprint bytea)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    WITH n AS MATERIALIZED (SELECT clock_timestamp() AS now)
    SELECT k.id, s.state,
           CASE WHEN s.state = k.state THEN k.reason ELSE 1 END,
           k.status, k.size, k.label, k.tenant, k.actor, k.host,
           (1000 * extract(epoch FROM k.created_at))::bigint,
           (1000 * extract(epoch FROM k.completed_at))::bigint,
           (1000 * extract(epoch FROM k.expires_at))::bigint,
           CASE s.state WHEN 1
                THEN greatest(0, 1000 * extract(epoch FROM
                                                k.lease_until - n.now))
                ELSE 1000 * extract(epoch FROM k.expires_at - n.now)
           END::bigint,
           substr(k.claim, 14, 32)
      FROM n, idempotency_keys k
     CROSS JOIN LATERAL (
           SELECT CASE WHEN k.state = 1 AND k.hold AND k.lease_until <= n.now
                       THEN 3 ELSE k.state END::smallint AS state
             FROM n) s
     WHERE k.state < 4 AND k.expires_at > n.now
       AND (p_id IS NULL OR k.id = p_id)
       AND (p_after IS NULL OR k.id > p_after)
       AND (p_state = 0 OR s.state = p_state)
       AND k.created_at <= n.now - p_older * interval '1 ms'
       AND (p_label IS NULL OR k.label = p_label)
       AND (p_tenant IS NULL OR k.tenant = p_tenant)
       AND (p_actor IS NULL OR k.actor = p_actor)
     ORDER BY k.id LIMIT p_limit
$$;


CREATE OR REPLACE FUNCTION idempotency_get(p_id bytea)
RETURNS TABLE (o_id bytea, o_state smallint, o_reason smallint,
    o_status smallint, o_size integer, o_label text, o_tenant text,
    o_actor text, o_host text, o_created bigint, o_completed bigint,
    o_expires bigint, o_left bigint, o_fingerprint bytea)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT * FROM idempotency_list(p_id => p_id, p_limit => 1)
$$;


-- figures: estimates, as the planner has them, since to count takes long

CREATE OR REPLACE FUNCTION idempotency_figures(
    OUT o_records bigint, OUT o_bytes bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT greatest(0, c.reltuples)::bigint, pg_total_relation_size(c.oid)
      FROM pg_catalog.pg_class c
     WHERE c.oid = 'idempotency_keys'::regclass
$$;


-- events: an array of objects, as the lines of idempotency_log

CREATE OR REPLACE FUNCTION idempotency_log(p_events jsonb) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
    c  integer;
BEGIN
    -- in order: see trail.sql
    PERFORM pg_advisory_xact_lock(7305420, hashtext(current_schema()));

    INSERT INTO idempotency_events (at, event_id, event, level, host, store,
                label, tenant, actor, record, data)
    SELECT coalesce((e ->> 'timestamp')::timestamptz, now()),
           coalesce(e ->> 'event_id', ''), coalesce(e ->> 'event', ''),
           coalesce(e ->> 'level', 'info'), coalesce(e ->> 'host', ''),
           coalesce(e ->> 'store', ''), coalesce(e ->> 'group', ''),
           coalesce(e ->> 'tenant', ''), coalesce(e ->> 'actor', ''),
           CASE WHEN e ->> 'record' ~ '^([0-9a-f]{2})+$'
                THEN decode(e ->> 'record', 'hex') END,
           e - ARRAY['timestamp', 'event_id', 'event', 'level', 'host',
                     'store', 'group', 'tenant', 'actor', 'record']
      FROM jsonb_array_elements(p_events) e;

    GET DIAGNOSTICS c = ROW_COUNT;
    RETURN c;
END $$;


-- removes events older than p_keep, p_limit at a time; how many

CREATE OR REPLACE FUNCTION idempotency_events_purge(
    p_keep interval DEFAULT '90 days', p_limit integer DEFAULT 10000)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
    c  integer;
BEGIN
    DELETE FROM idempotency_events e WHERE e.ctid = ANY (ARRAY(
        SELECT x.ctid FROM idempotency_events x
         WHERE x.at < now() - p_keep LIMIT p_limit));

    GET DIAGNOSTICS c = ROW_COUNT;
    RETURN c;
END $$;
