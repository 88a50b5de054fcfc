-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- What idempotency_admin of nginx asks: a record, its removal, a list.  A record
-- is told without its response and its token.

-- Labels as nginx writes them before the details of a record ("L", their length,
-- and for each its kind, its length, its text), of a row whose details have none:
-- a commit that finds its row gone writes columns only.

CREATE OR REPLACE FUNCTION idempotency_labels(
    p_label text, p_tenant text, p_actor text, p_host text)
RETURNS bytea
LANGUAGE sql STABLE
SET search_path FROM CURRENT AS $$
    SELECT '\x4c' || substr(int4send(octet_length(l.all_of_them)), 3)
                  || l.all_of_them
      FROM (SELECT string_agg(substr(int4send(x.kind - 1), 4)
                              || substr(int4send(octet_length(x.t)), 4) || x.t,
                              '' ORDER BY x.kind) AS all_of_them
              FROM (SELECT u.kind::integer,
                           substr(convert_to(u.t, 'UTF8'), 1, 96) AS t
                      FROM unnest(ARRAY[p_label, p_tenant, p_actor, p_host])
                           WITH ORDINALITY u (t, kind)
                     WHERE u.t <> '') x) l
$$;


-- The first p_limit rows from one id to another, whatever they are, so that the
-- work is bounded.
--
-- o_state    0: it is no record any more
-- o_left     ms of the lease of a record in progress, of its life otherwise
-- o_details  the labels before them: group, tenant, actor and host

CREATE OR REPLACE FUNCTION idempotency_between(
    p_first bytea, p_last bytea, p_limit integer)
RETURNS TABLE (o_id bytea, o_state smallint, o_reason smallint,
    o_left bigint, o_status smallint, o_size integer, o_hold smallint,
    o_claim bytea, o_details bytea)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    WITH n AS MATERIALIZED (SELECT clock_timestamp() AS now)
    SELECT k.id,
           CASE WHEN k.state = 4 OR k.reason = 6 OR k.forget_at <= n.now
                     OR (k.state > 1 AND k.expires_at <= n.now)
                THEN 0 ELSE k.state END::smallint,
           k.reason,
           greatest(0, ceil(1000 * extract(epoch FROM
               CASE k.state WHEN 1 THEN k.lease_until ELSE k.expires_at END
               - n.now)))::bigint,
           k.status, k.size, k.hold::integer::smallint, k.claim,
           CASE WHEN substr(k.details, 1, 1) = 'L'
                     AND octet_length(k.details) > 2
                THEN substr(k.details, 1,
                            least(512, 3 + 256 * get_byte(k.details, 1)
                                       + get_byte(k.details, 2)))
                ELSE idempotency_labels(k.label, k.tenant, k.actor, k.host)
           END
      FROM n, idempotency_keys k
     WHERE k.id BETWEEN p_first AND p_last
     ORDER BY k.id LIMIT p_limit
$$;


-- list: the next rows after an id, or the first ones

CREATE OR REPLACE FUNCTION idempotency_entries(
    p_after bytea, p_limit integer)
RETURNS TABLE (o_id bytea, o_state smallint, o_reason smallint,
    o_left bigint, o_status smallint, o_size integer, o_hold smallint,
    o_claim bytea, o_details bytea)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT * FROM idempotency_between(coalesce(p_after || '\x00', '\x00'),
                      decode(repeat('ff', 32), 'hex'), p_limit)
$$;


-- tally: the same for the figures, which count records and look for old locks.
-- Who may not list records gets no id that leads to one: 8 bytes of it, and of
-- the claim its time.

CREATE OR REPLACE FUNCTION idempotency_tally(
    p_after bytea, p_limit integer)
RETURNS TABLE (o_id bytea, o_state smallint, o_reason smallint,
    o_left bigint, o_status smallint, o_size integer, o_hold smallint,
    o_claim bytea, o_details bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
    IF has_function_privilege(session_user,
                              'idempotency_entries(bytea, integer)', 'EXECUTE')
    THEN
        RETURN QUERY SELECT * FROM idempotency_entries(p_after, p_limit);
        RETURN;
    END IF;

    RETURN QUERY
    SELECT substr(e.o_id, 1, 8) || decode(repeat('00', 24), 'hex'),
           e.o_state, e.o_reason, e.o_left, e.o_status, e.o_size, e.o_hold,
           substr(e.o_claim, 1, 13) || decode(repeat('00', 56), 'hex'),
           NULL::bytea
      FROM idempotency_between(
               coalesce(substr(p_after, 1, 8) || decode(repeat('ff', 24), 'hex'),
                        '\x00'),
               decode(repeat('ff', 32), 'hex'), p_limit) e;
END $$;


-- get: nothing, or a record

CREATE OR REPLACE FUNCTION idempotency_entry(p_id bytea)
RETURNS TABLE (o_id bytea, o_state smallint, o_reason smallint,
    o_left bigint, o_status smallint, o_size integer, o_hold smallint,
    o_claim bytea, o_details bytea)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT * FROM idempotency_between(p_id, p_id, 1) e WHERE e.o_state > 0
$$;


-- remove: the key may run again.  Tells what it was.  Something stays of it,
-- under nobody's token: a holder that still runs, or a commit that is sent
-- again, would write it anew if it found nothing.  So it does where nothing is:
-- a host whose outbox has the record writes it when it is back.  A row of state
-- 0: it was deleted before.  Waiters are woken, and all hosts are told ("-" and
-- the id) not to replay a cached response.

CREATE OR REPLACE FUNCTION idempotency_delete(p_id bytea)
RETURNS TABLE (o_id bytea, o_state smallint, o_reason smallint,
    o_left bigint, o_status smallint, o_size integer, o_hold smallint,
    o_claim bytea, o_details bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    n  timestamptz;
BEGIN
    PERFORM FROM idempotency_keys k WHERE k.id = p_id FOR UPDATE;

    n := clock_timestamp();

    RETURN QUERY SELECT * FROM idempotency_entry(p_id);

    IF NOT FOUND THEN
        INSERT INTO idempotency_keys (id, token, claim, state, reason,
                    created_at, lease_until, completed_at, expires_at,
                    forget_at, purge_at)
        VALUES (p_id, '\x00000000000000000000000000000000',
                '\x01' || decode(repeat('00', 68), 'hex'), 3, 6, n, n, n, n,
                n + interval '1 day',
                date_bin('5 min', n + interval '1 day 5 min',
                         '2000-01-01Z'))
        ON CONFLICT (id) DO NOTHING;

        IF FOUND THEN
            PERFORM pg_notify(current_schema(), '-' || encode(p_id, 'hex'));
        ELSE
            RETURN QUERY SELECT e.* FROM idempotency_between(p_id, p_id, 1) e
                          WHERE e.o_reason = 6;
        END IF;

        RETURN;
    END IF;

    UPDATE idempotency_keys k
       SET token = '\x00000000000000000000000000000000', reason = 6,
           state = 3, status = NULL, size = 0, response = NULL,
           details = NULL, hold = false, again = false, waiting = false,
           label = '', tenant = '', actor = '', host = '',
           lease_until = n, completed_at = coalesce(k.completed_at, n),
           expires_at = n, forget_at = x.f,
           purge_at = date_bin('5 min', x.f + interval '5 min',
                               '2000-01-01Z')
      FROM (SELECT CASE WHEN y.state = 1
                        THEN greatest(y.forget_at, n + interval '10 min')
                        ELSE n + interval '10 min' END AS f
              FROM idempotency_keys y WHERE y.id = p_id) x
     WHERE k.id = p_id;

    PERFORM pg_notify(current_schema(), '-' || encode(p_id, 'hex'));
END $$;


-- remove, if the record is still as it was listed: its state (0: whatever it is),
-- and the time of its claim (ms; 0: whatever it is; -1: there was none).  The row
-- is locked first: who completes it meanwhile is waited for, and then it is no
-- longer as it was.  Nothing is told of a record that stays.

CREATE OR REPLACE FUNCTION idempotency_delete_listed(
    p_id bytea, p_state smallint, p_time bigint)
RETURNS TABLE (o_id bytea, o_state smallint, o_reason smallint,
    o_left bigint, o_status smallint, o_size integer, o_hold smallint,
    o_claim bytea, o_details bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    as_listed  boolean;
BEGIN
    PERFORM FROM idempotency_keys k WHERE k.id = p_id FOR UPDATE;

    SELECT (p_state = 0 OR e.o_state = p_state)
           AND (p_time = 0 OR substr(e.o_claim, 6, 8) = int8send(p_time))
      INTO as_listed FROM idempotency_entry(p_id) e;

    -- where no record is, one that was listed by its state is gone

    IF NOT coalesce(as_listed, p_state = 0) THEN
        RETURN QUERY SELECT e.* FROM idempotency_between(p_id, p_id, 1) e
                      WHERE e.o_reason = 6;
        RETURN;
    END IF;

    RETURN QUERY SELECT d.* FROM idempotency_delete(p_id) d;
END $$;


CREATE OR REPLACE FUNCTION idempotency_remove(p_id bytea) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT count(*) > 0 FROM idempotency_delete(p_id) WHERE o_state > 0
$$;


-- forget: removes p_limit records of a tenant, of an actor, or of both, and what
-- the archive and the events have of them.  An actor is a hash, as sha256sum
-- makes it, unless idempotency_actor says "plain".  How many rows; 0: none is
-- left.  In the order of the steps of nginx, which lock rows by their id.

CREATE OR REPLACE FUNCTION idempotency_forget(
    p_tenant text DEFAULT NULL, p_actor text DEFAULT NULL,
    p_limit integer DEFAULT 1000)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
    c  bigint := 0;
    m  bigint;
    i  bytea;
BEGIN
    IF coalesce(p_tenant, p_actor, '') = '' THEN
        RAISE EXCEPTION 'whose records: name a tenant, an actor, or both'
              USING ERRCODE = 'invalid_parameter_value';
    END IF;

    FOR i IN SELECT k.id FROM idempotency_keys k
              WHERE (p_tenant IS NULL OR k.tenant = p_tenant)
                AND (p_actor IS NULL OR k.actor = p_actor)
              ORDER BY k.id LIMIT p_limit
    LOOP
        PERFORM idempotency_delete(i);

        -- and what was no record any more, but for who waits for it

        DELETE FROM idempotency_keys k
         WHERE k.id = i AND k.state <> 4 AND k.reason <> 6;

        UPDATE idempotency_keys k
           SET label = '', tenant = '', actor = '', host = ''
         WHERE k.id = i AND k.state = 4;

        c := c + 1;
    END LOOP;

    DELETE FROM idempotency_archive a
     WHERE (p_tenant IS NULL OR a.tenant = p_tenant)
       AND (p_actor IS NULL OR a.actor = p_actor);
    GET DIAGNOSTICS m = ROW_COUNT;
    c := c + m;

    DELETE FROM idempotency_events e
     WHERE (p_tenant IS NULL OR e.tenant = p_tenant)
       AND (p_actor IS NULL OR e.actor = p_actor);
    GET DIAGNOSTICS m = ROW_COUNT;

    RETURN c + m;
END $$;
