-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- The audit trail, read and removed in slices: what GET and DELETE of "events"
-- of idempotency_admin ask.
--
-- seq is the order in which events came.  idempotency_log() lets one at a time
-- write, so that nobody who has read up to one misses another before it.

-- IF NOT EXISTS would take its lock first: see people.sql.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                    WHERE a.attrelid = 'idempotency_events'::regclass
                      AND a.attname = 'seq')
    THEN
        ALTER TABLE idempotency_events
            ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY;
    END IF;

    IF to_regclass('idempotency_events_seq') IS NULL THEN
        CREATE UNIQUE INDEX idempotency_events_seq
            ON idempotency_events (seq);
    END IF;
END $$;


-- The next p_limit events behind p_after, or from p_since on (ms).  Those that
-- came before p_until (0: no end), and have p_value or p_other in the member
-- p_name (NULL: all), have a line; an empty one, if they are removed.  Beside
-- the hash of a key, p_other is the record: what a store tells has no hash.

CREATE OR REPLACE FUNCTION idempotency_trail(
    p_after bigint, p_since bigint, p_until bigint, p_name text, p_value text,
    p_other text, p_limit integer, p_remove boolean)
RETURNS TABLE (o_seq bigint, o_at bigint, o_line text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    v_after  bigint := p_after;
BEGIN
    IF v_after IS NULL THEN
        SELECT min(e.seq) - 1 INTO v_after FROM idempotency_events e
         WHERE e.at >= to_timestamp(p_since / 1000.0);
    END IF;

    RETURN QUERY
    WITH s AS MATERIALIZED (
        SELECT e.seq, (1000 * extract(epoch FROM e.at))::bigint AS at,
               jsonb_strip_nulls(jsonb_build_object(
                   'event_id', e.event_id,
                   'timestamp', to_char(e.at AT TIME ZONE 'UTC',
                                        'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
                   'level', e.level, 'event', e.event, 'host', e.host,
                   'store', e.store, 'group', nullif(e.label, ''),
                   'tenant', nullif(e.tenant, ''),
                   'actor', nullif(e.actor, ''),
                   'record', encode(e.record, 'hex'))) || e.data AS line
          FROM idempotency_events e
         WHERE e.seq > v_after ORDER BY e.seq LIMIT p_limit
    ), m AS MATERIALIZED (
        SELECT s.seq, s.line FROM s
         WHERE (p_until = 0 OR s.at < p_until)
           AND (p_name IS NULL OR s.line ->> p_name IN (p_value, p_other)
                OR (p_name = 'key_hash' AND s.line ->> 'record' = p_other))
    ), d AS (
        DELETE FROM idempotency_events e USING m
         WHERE p_remove AND e.seq = m.seq
    )
    SELECT s.seq, s.at, CASE WHEN p_remove AND m.seq IS NOT NULL THEN ''
                             ELSE m.line::text END
      FROM s LEFT JOIN m ON m.seq = s.seq
     ORDER BY s.seq;
END $$;
