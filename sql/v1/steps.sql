-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- The steps on a record.  Each is one statement of its caller.
--
-- VOLATILE plpgsql: every statement inside has a snapshot of its own (READ
-- COMMITTED), so a row that an insert conflicted with is found by the next
-- look.  enable_seqscan is off because a plan that was cached while the table
-- was nearly empty would be kept.  The clock is the server's.
--
-- Of a claim, counted from 1: 2 to 5 scheme, 14 to 45 fingerprint, 46 to 61
-- identity, 62 to 69 target.  Two claims are of one request if the identity is
-- the same and so is the fingerprint; fingerprints of different schemes can't
-- be compared, then the target decides, or the key alone.
--
-- A lease that ran out lets the same request run, and no other: the record
-- stays, with its fingerprint, until forget_at.

CREATE OR REPLACE FUNCTION idempotency_version(
    OUT o_version integer, OUT o_compatible integer)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT version, compatible FROM idempotency_meta
     ORDER BY version DESC LIMIT 1
$$;


CREATE OR REPLACE FUNCTION idempotency_same(
    p_a bytea, p_b bytea, p_key_alone boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT substr(p_a, 46, 16) = substr(p_b, 46, 16)
           AND CASE WHEN substr(p_a, 2, 4) = substr(p_b, 2, 4)
                    THEN substr(p_a, 14, 32) = substr(p_b, 14, 32)
                    ELSE p_key_alone
                         OR substr(p_a, 62, 8) = substr(p_b, 62, 8) END
$$;


-- begin: takes the lock on a record, or tells what is there.
--
-- p_age      ms since the asker came: what had not expired then is found
-- p_waits    0; 1 the asker would wait; 2 it waits, and the record was in
--            progress; 3 and its lease can't be over
--
-- o_how      0 ours: nothing was there, or it was ours already
--            1 ours: its holder is gone      2 ours: it had expired
--            3 found                         4 it was in progress and is gone,
--                                              and nobody released it
-- o_left     ms of the lease of a record in progress, of its life otherwise

CREATE OR REPLACE FUNCTION idempotency_begin(
    p_id bytea, p_token bytea, p_claim bytea, p_details bytea,
    p_lease bigint, p_ttl bigint, p_hold boolean,
    p_age bigint, p_key_alone boolean, p_waits smallint,
    p_label text, p_tenant text, p_actor text, p_host text,
    OUT o_how smallint, OUT o_state smallint, OUT o_reason smallint,
    OUT o_left bigint, OUT o_claim bytea, OUT o_details bytea,
    OUT o_response bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    n          timestamptz;
    f          timestamptz;
    k_token    bytea;
    k_lease    timestamptz;
    k_done     timestamptz;
    k_expires  timestamptz;
    k_forget   timestamptz;
    k_hold     boolean;
    k_again    boolean;
    k_waiting  boolean;
    was        boolean;
BEGIN
    FOR i IN 1 .. 20 LOOP
        n := clock_timestamp();
        f := n + greatest(p_ttl, 2 * p_lease) * interval '1 ms';
        was := false;

        SELECT k.token, k.lease_until, k.completed_at, k.expires_at,
               k.forget_at, k.hold, k.again, k.waiting, k.state, k.reason,
               k.claim, k.details, k.response
          INTO k_token, k_lease, k_done, k_expires,
               k_forget, k_hold, k_again, k_waiting, o_state, o_reason,
               o_claim, o_details, o_response
          FROM idempotency_keys k WHERE k.id = p_id;

        IF NOT FOUND THEN

            IF p_waits >= 2 THEN
                o_how := 4;
                RETURN;
            END IF;

            INSERT INTO idempotency_keys (id, token, claim, details, hold,
                        state, label, tenant, actor, host, created_at,
                        lease_until, expires_at, forget_at, purge_at)
            VALUES (p_id, p_token, p_claim, p_details, p_hold,
                    1, p_label, p_tenant, p_actor, p_host, n,
                    n + p_lease * interval '1 ms', f, f,
                    date_bin('5 min', f + interval '5 min', '2000-01-01Z'))
            ON CONFLICT (id) DO NOTHING;

            IF FOUND THEN
                o_how := 0;
                RETURN;
            END IF;

            CONTINUE;                       -- somebody was faster: look again
        END IF;

        -- The clock was set back: a lock with our own times has more left
        -- than it was given.  It gets that, so that the lease of a holder that
        -- is gone ends.

        IF (o_state = 1 OR (o_state = 3 AND o_reason = 1 AND NOT k_hold))
           AND k_lease > n + p_lease * interval '1 ms'
           AND k_forget - k_lease = f - n - p_lease * interval '1 ms'
        THEN
            UPDATE idempotency_keys k
               SET lease_until = n + p_lease * interval '1 ms',
                   expires_at = f, forget_at = f,
                   purge_at = date_bin('5 min', f + interval '5 min',
                                       '2000-01-01Z')
             WHERE k.id = p_id AND k.token = k_token AND k.state = o_state
               AND k.lease_until = k_lease;

            CONTINUE;
        END IF;

        IF o_state = 1 AND k_token = p_token THEN
            o_how := 0;                     -- asked again: the answer was lost

        ELSIF k_forget <= n THEN
            IF p_waits >= 2 THEN

                -- who waited when it was committed, and is told late, still
                -- gets it: see purge_at of a commit

                o_how := CASE WHEN k_expires > n - p_age * interval '1 ms'
                                   AND (o_state = 2
                                        OR (o_state = 3 AND o_reason <> 6
                                            AND (o_reason <> 1 OR k_hold)))
                              THEN 3 ELSE 4 END;
            ELSE
                o_how := 0;
                k_again := false;
                was := o_state < 4 AND o_reason <> 6;
            END IF;

        ELSIF o_state = 4 OR (o_state = 3 AND o_reason = 6) THEN
            o_how := 0;             -- released, or deleted by hand
            k_again := false;

        ELSIF o_state = 1 OR (o_state = 3 AND o_reason = 1 AND NOT k_hold) THEN

            IF k_hold OR k_lease > n
               OR NOT idempotency_same(o_claim, p_claim, p_key_alone)
            THEN
                o_how := 3;

            ELSIF o_state = 1 AND p_waits = 3 THEN
                o_how := 4;         -- an older lock: that of the holder which
                                    -- the asker waits for was lost

            ELSE
                o_how := CASE o_state WHEN 1 THEN 1 ELSE 0 END;
                k_again := true;
            END IF;

        ELSIF k_expires <= n - p_age * interval '1 ms' THEN
            o_how := 2;
            k_again := false;

        ELSE
            o_how := 3;
        END IF;

        IF o_how = 3 THEN

            -- who will wait says so at once: the next step of the holder may
            -- be to release it

            IF p_waits > 0 AND o_state = 1 AND k_lease > n AND NOT k_waiting
            THEN
                UPDATE idempotency_keys k SET waiting = true
                 WHERE k.id = p_id AND k.token = k_token AND k.state = 1;

                IF NOT FOUND THEN
                    CONTINUE;
                END IF;
            END IF;

            o_left := greatest(0, ceil(1000 * extract(epoch FROM
                CASE WHEN o_state = 1
                          OR (o_state = 3 AND o_reason = 1 AND NOT k_hold)
                     THEN k_lease ELSE k_expires END - n)));

            IF o_state = 1 AND k_lease <= n THEN    -- hold, or another request
                o_state := 3;
                o_reason := 1;
                o_left := ceil(1000 * extract(epoch FROM k_forget - n));
            END IF;

            RETURN;
        END IF;

        IF o_how < 3 THEN
            UPDATE idempotency_keys k
               SET token = p_token, claim = p_claim, details = p_details,
                   label = p_label, tenant = p_tenant, actor = p_actor,
                   host = p_host, hold = p_hold, again = k_again, state = 1,
                   reason = 0, status = NULL, size = 0, response = NULL,
                   completed_at = NULL, created_at = n,
                   waiting = k.waiting AND k.state IN (1, 4),
                   lease_until = n + p_lease * interval '1 ms',
                   expires_at = f, forget_at = f,
                   purge_at = date_bin('5 min', f + interval '5 min',
                                       '2000-01-01Z')
             WHERE k.id = p_id AND k.token = k_token AND k.state = o_state
               AND k.lease_until = k_lease AND k.forget_at = k_forget;

            IF NOT FOUND THEN
                CONTINUE;
            END IF;
        END IF;

        -- what had expired, for who tells of it: before the purge, or within
        -- its grace, o_left is its ttl; and a lock whose holder was gone

        IF was THEN
            o_left := 1000 * extract(epoch FROM k_expires - k_done);
        ELSE
            -- of a holder that is gone, the labels: 395 bytes at most

            o_details := CASE o_how WHEN 1 THEN substr(o_details, 1, 395) END;

            IF o_how = 0 THEN
                o_claim := NULL;
            END IF;
        END IF;

        o_state := NULL;
        o_reason := NULL;
        o_response := NULL;
        RETURN;
    END LOOP;

    RAISE EXCEPTION 'the record changed 20 times while it was asked for'
          USING ERRCODE = 'serialization_failure';
END $$;


-- renew: the holder still runs.
-- 1 renewed; or laid anew where the record is gone, or its holder is; 0 lost

CREATE OR REPLACE FUNCTION idempotency_renew(
    p_id bytea, p_token bytea, p_claim bytea, p_details bytea,
    p_lease bigint, p_ttl bigint, p_hold boolean, p_key_alone boolean,
    p_label text, p_tenant text, p_actor text, p_host text)
RETURNS smallint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    n  timestamptz := clock_timestamp();
    f  timestamptz := n + greatest(p_ttl, 2 * p_lease) * interval '1 ms';
    k  record;
    b  record;
BEGIN
    UPDATE idempotency_keys x
       SET lease_until = n + p_lease * interval '1 ms',
           expires_at = greatest(x.expires_at, f),
           forget_at = greatest(x.forget_at, f),
           purge_at = greatest(x.purge_at,
                               date_bin('5 min', f + interval '5 min',
                                        '2000-01-01Z'))
     WHERE x.id = p_id AND x.token = p_token AND x.state = 1;

    IF FOUND THEN
        RETURN 1;
    END IF;

    -- gone, released, or of a holder that is gone: begin takes that, and
    -- nothing else but what has expired, which is somebody's outcome

    SELECT x.state, x.reason, x.hold, x.forget_at INTO k
      FROM idempotency_keys x WHERE x.id = p_id;

    IF FOUND AND k.forget_at > n AND k.state <> 4 AND k.state <> 1
       AND NOT (k.state = 3 AND k.reason = 1 AND NOT k.hold)
    THEN
        RETURN 0;
    END IF;

    SELECT * INTO b
      FROM idempotency_begin(p_id, p_token, p_claim, p_details, p_lease,
                             p_ttl, p_hold, 0, p_key_alone, 0::smallint,
                             p_label, p_tenant, p_actor, p_host);

    RETURN CASE WHEN b.o_how IN (0, 1) THEN 1 ELSE 0 END;
END $$;


-- commit: it ran.  Writes if the record is in progress under the holder's own
-- token, or gone, or of another holder that is gone; wakes who waits.
-- 1 committed, now or before; 0 somebody else's; 4 the same, who still runs

CREATE OR REPLACE FUNCTION idempotency_commit(
    p_id bytea, p_token bytea, p_claim bytea, p_state smallint,
    p_reason smallint, p_status smallint, p_ttl bigint, p_grace bigint,
    p_lease bigint, p_hold boolean, p_key_alone boolean,
    p_label text, p_tenant text, p_actor text, p_host text,
    p_response bytea)
RETURNS smallint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    n  timestamptz := clock_timestamp();
    l  timestamptz := n;
    e  timestamptz := n + p_ttl * interval '1 ms';
    f  timestamptz := e + p_grace * interval '1 ms';
    p  timestamptz;
    w  boolean;
    r  record;
BEGIN
    -- an unknown outcome: the same request may run when its lease is over

    IF p_state = 3 AND p_reason = 1 AND NOT p_hold THEN
        l := n + p_lease * interval '1 ms';
        e := greatest(e, l);
        f := e;
    END IF;

    -- however short the ttl, who waits finds it for a lease, and 10 s at least

    p := date_bin('5 min',
                  greatest(f, n + greatest(p_lease, 10000) * interval '1 ms')
                  + interval '5 min', '2000-01-01Z');

    FOR i IN 1 .. 20 LOOP
        UPDATE idempotency_keys k
           SET state = p_state, reason = p_reason, status = p_status,
               hold = p_hold, size = coalesce(octet_length(p_response), 0),
               response = p_response, completed_at = n, lease_until = l,
               expires_at = e, forget_at = f, purge_at = p
         WHERE k.id = p_id AND k.token = p_token AND k.state = 1
        RETURNING k.waiting INTO w;

        IF FOUND THEN
            IF w THEN
                PERFORM pg_notify(current_schema(), encode(p_id, 'hex'));
            END IF;

            RETURN 1;
        END IF;

        INSERT INTO idempotency_keys (id, token, claim, hold, label, tenant,
                    actor, host, state, reason, status, size, response,
                    created_at, lease_until, completed_at, expires_at,
                    forget_at, purge_at)
        VALUES (p_id, p_token, p_claim, p_hold, p_label, p_tenant,
                p_actor, p_host, p_state, p_reason, p_status,
                coalesce(octet_length(p_response), 0), p_response,
                n, l, n, e, f, p)
        ON CONFLICT (id) DO NOTHING;

        IF FOUND THEN
            RETURN 1;
        END IF;

        SELECT x.token, x.state, x.reason, x.hold, x.lease_until, x.forget_at,
               x.claim INTO r
          FROM idempotency_keys x WHERE x.id = p_id;

        IF NOT FOUND THEN
            CONTINUE;
        END IF;

        IF r.token = p_token THEN
            IF r.state > 1 THEN
                RETURN 1;                   -- its answer was lost
            END IF;

            CONTINUE;
        END IF;

        IF r.forget_at > n AND r.state <> 4
           AND NOT ((r.state = 1 OR (r.state = 3 AND r.reason = 1))
                    AND NOT r.hold AND r.lease_until <= n
                    AND idempotency_same(r.claim, p_claim, p_key_alone))
        THEN
            RETURN CASE r.state WHEN 1 THEN 4 ELSE 0 END;
        END IF;

        -- forgotten, released, or of one that is gone: as if nothing were
        -- there, but who waits for it still does

        UPDATE idempotency_keys x
           SET token = p_token, claim = p_claim, state = 1, details = NULL,
               label = p_label, tenant = p_tenant, actor = p_actor,
               host = p_host, created_at = n,
               waiting = x.waiting AND x.state IN (1, 4)
         WHERE x.id = p_id AND x.token = r.token AND x.state = r.state
           AND x.lease_until = r.lease_until AND x.forget_at = r.forget_at;
    END LOOP;

    RAISE EXCEPTION 'the record changed 20 times while it was committed'
          USING ERRCODE = 'serialization_failure';
END $$;


-- release: it did not run, or may run again.  Wakes who waits, and then leaves
-- a row for a while, so that they can tell a record that was released from one
-- that this server lost.
-- 1 released, or gone already; 0 somebody else's, or committed

CREATE OR REPLACE FUNCTION idempotency_release(p_id bytea, p_token bytea)
RETURNS smallint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    n  timestamptz := clock_timestamp();
    w  boolean;
BEGIN
    -- taken over: an earlier holder may have run, so another request must not
    -- find nothing.  The outcome is unknown, its lease is over.

    UPDATE idempotency_keys k
       SET state = 3, reason = 1, hold = false, lease_until = n,
           completed_at = n
     WHERE k.id = p_id AND k.token = p_token AND k.state = 1 AND k.again
    RETURNING k.waiting INTO w;

    IF NOT FOUND THEN
        DELETE FROM idempotency_keys k
         WHERE k.id = p_id AND k.token = p_token AND k.state = 1
           AND NOT k.again AND NOT k.waiting;

        IF FOUND THEN
            RETURN 1;
        END IF;

        UPDATE idempotency_keys k
           SET state = 4, token = '\x00000000000000000000000000000000',
               details = NULL, lease_until = n,
               expires_at = n + interval '5 s', forget_at = n + interval '5 s',
               purge_at = date_bin('5 min', n + interval '6 min',
                                   '2000-01-01Z')
         WHERE k.id = p_id AND k.token = p_token AND k.state = 1
           AND NOT k.again
        RETURNING k.waiting INTO w;
    END IF;

    IF FOUND THEN
        IF w THEN
            PERFORM pg_notify(current_schema(), encode(p_id, 'hex'));
        END IF;

        RETURN 1;
    END IF;

    PERFORM FROM idempotency_keys k
      WHERE k.id = p_id AND k.forget_at > n AND k.state <> 4;

    RETURN CASE WHEN FOUND THEN 0 ELSE 1 END;
END $$;


-- watch: somebody waits.  Says so in the record, in the same step that looks
-- whether it is in progress.  ms left of the lease; 0: look now

CREATE OR REPLACE FUNCTION idempotency_watch(p_id bytea) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    n  timestamptz := clock_timestamp();
    t  timestamptz;
    w  boolean;
BEGIN
    SELECT k.lease_until, k.waiting INTO t, w FROM idempotency_keys k
     WHERE k.id = p_id AND k.state = 1 AND k.lease_until > n;

    IF NOT FOUND THEN
        RETURN 0;
    END IF;

    IF NOT w THEN
        UPDATE idempotency_keys k SET waiting = true
         WHERE k.id = p_id AND k.state = 1 AND k.lease_until > n
        RETURNING k.lease_until INTO t;

        IF NOT FOUND THEN
            RETURN 0;
        END IF;
    END IF;

    RETURN greatest(1, ceil(1000 * extract(epoch FROM t - n)));
END $$;
