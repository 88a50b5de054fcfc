-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- Purge and archive.  No step depends on it: what has expired has expired.
--
-- The purge is one short transaction, since a begin for one of its rows waits
-- for it.  An advisory lock lets one at a time through, of all hosts.

CREATE OR REPLACE FUNCTION idempotency_archive_rows(due tid[])
RETURNS void
LANGUAGE sql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    INSERT INTO idempotency_archive (id, state, reason, status, size,
                label, tenant, actor, host, created_at, completed_at,
                expires_at)
    SELECT k.id, k.state, k.reason, k.status, k.size,
           k.label, k.tenant, k.actor, k.host, k.created_at,
           k.completed_at, k.expires_at
      FROM idempotency_keys k
     WHERE k.ctid = ANY (due) AND k.state < 4
       AND k.reason <> 6;
$$;


-- How many were removed; -1: somebody else is at it.

CREATE OR REPLACE FUNCTION idempotency_purge(
    p_limit integer DEFAULT 500, p_archive boolean DEFAULT false)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    n    timestamptz := clock_timestamp();
    due  tid[];
    c    integer;
BEGIN
    IF NOT pg_try_advisory_xact_lock(7305419, hashtext(current_schema())) THEN
        RETURN -1;
    END IF;

    due := ARRAY(SELECT k.ctid FROM idempotency_keys k
                  WHERE k.purge_at <= n AND k.forget_at <= n
                  ORDER BY k.purge_at LIMIT p_limit FOR UPDATE SKIP LOCKED);

    IF p_archive THEN
        PERFORM idempotency_archive_rows(due);
    END IF;

    DELETE FROM idempotency_keys k WHERE k.ctid = ANY (due);
    GET DIAGNOSTICS c = ROW_COUNT;

    RETURN c;
END $$;


-- The same for who tells of each record: those that were removed.  o_id is
-- NULL of what was no record any more.  Nothing: none was due, or somebody else
-- is at it.

CREATE OR REPLACE FUNCTION idempotency_expire(
    p_limit integer DEFAULT 500, p_archive boolean DEFAULT false)
RETURNS TABLE (o_id bytea, o_claim bytea, o_ttl bigint, o_ago bigint,
               o_details bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    n    timestamptz := clock_timestamp();
    due  tid[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(7305419, hashtext(current_schema())) THEN
        RETURN;
    END IF;

    due := ARRAY(SELECT k.ctid FROM idempotency_keys k
                  WHERE k.purge_at <= n AND k.forget_at <= n
                  ORDER BY k.purge_at LIMIT p_limit FOR UPDATE SKIP LOCKED);

    IF p_archive THEN
        PERFORM idempotency_archive_rows(due);
    END IF;

    -- labels stand before the details, and take 395 bytes at most

    RETURN QUERY
    DELETE FROM idempotency_keys k WHERE k.ctid = ANY (due)
    RETURNING CASE WHEN k.state < 4 AND k.reason <> 6 THEN k.id END,
              k.claim,
              (1000 * extract(epoch FROM k.expires_at
                                         - k.completed_at))::bigint,
              (1000 * extract(epoch FROM n - k.expires_at))::bigint,
              substring(k.details FROM 1 FOR 395);
END $$;


-- Of the archive: partitions for this month and the next two, and none that
-- ended longer ago than p_keep.  For cron, as the owner.

CREATE OR REPLACE FUNCTION idempotency_archive_rotate(
    p_keep interval DEFAULT '1 year') RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    m     timestamptz;
    part  text;
    r     record;
BEGIN
    FOR i IN 0 .. 2 LOOP
        m := date_trunc('month', now()) + i * interval '1 month';
        part := 'idempotency_archive_' || to_char(m, 'YYYY_MM');

        CONTINUE WHEN to_regclass(part) IS NOT NULL;

        CONTINUE WHEN EXISTS (
            SELECT FROM idempotency_archive_rest a
             WHERE a.expires_at >= m
               AND a.expires_at < m + interval '1 month');

        EXECUTE format('CREATE TABLE %I PARTITION OF idempotency_archive '
                       'FOR VALUES FROM (%L) TO (%L)',
                       part, m, m + interval '1 month');
    END LOOP;

    FOR r IN SELECT c.relname FROM pg_inherits i
               JOIN pg_class c ON c.oid = i.inhrelid
              WHERE i.inhparent = 'idempotency_archive'::regclass
                AND c.relname ~ '^idempotency_archive_\d{4}_\d\d$'
                AND to_date(right(c.relname, 7), 'YYYY_MM')
                    + interval '1 month' < now() - p_keep
    LOOP
        EXECUTE format('DROP TABLE %I', r.relname);
    END LOOP;

    DELETE FROM idempotency_archive_rest a
     WHERE a.expires_at < now() - p_keep;
END $$;
