-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- Tables of version 1.  In the schema that comes first in search_path.

CREATE TABLE idempotency_meta (
    version     integer     NOT NULL PRIMARY KEY,
    compatible  integer     NOT NULL,       -- oldest version nginx may know
    since       timestamptz NOT NULL DEFAULT now()
);

-- One row is one record.  fillfactor and the coarse purge_at let a commit be a
-- HOT update; to truncate the file, vacuum would take an exclusive lock.

CREATE TABLE idempotency_keys (
    created_at    timestamptz NOT NULL,     -- begin of this holder
    lease_until   timestamptz NOT NULL,     -- of the lock, or of an unknown
                                            -- outcome that may be retried
    completed_at  timestamptz,
    expires_at    timestamptz NOT NULL,     -- replayed until then
    forget_at     timestamptz NOT NULL,     -- known, as expired, until then
    purge_at      timestamptz NOT NULL,     -- forget_at, to the next 5 minutes;
                                            -- a lease after the commit, and
                                            -- 10 s, at least
    size          integer     NOT NULL DEFAULT 0,   -- of the response, bytes
    state         smallint    NOT NULL,     -- 1 in progress, 2 completed,
                                            -- 3 unusable, 4 released while
                                            -- somebody waited
    reason        smallint    NOT NULL DEFAULT 0,   -- of an unusable record
    status        smallint,                 -- HTTP
    hold          boolean     NOT NULL DEFAULT false,
    again         boolean     NOT NULL DEFAULT false,   -- taken over: an
                                            -- earlier holder may have run
    waiting       boolean     NOT NULL DEFAULT false,   -- notify on change
    id            bytea       NOT NULL,     -- 32: SHA-256 of scope and key
    token         bytea       NOT NULL,     -- 16: of the holder
    claim         bytea       NOT NULL,     -- 69: what the request is
    label         text        NOT NULL DEFAULT '',  -- idempotency_group
    tenant        text        NOT NULL DEFAULT '',
    actor         text        NOT NULL DEFAULT '',
    host          text        NOT NULL DEFAULT '',  -- of the holder
    details       bytea,                    -- idempotency_conflict_detail
    response      bytea,                    -- encoded, with its checksum

    CONSTRAINT idempotency_keys_pkey PRIMARY KEY (id),
    CONSTRAINT idempotency_keys_form CHECK (
        octet_length(id) = 32 AND octet_length(token) = 16
        AND octet_length(claim) = 69 AND state BETWEEN 1 AND 4)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off,
    toast.vacuum_truncate = off
);

ALTER TABLE idempotency_keys
    ALTER id SET STORAGE PLAIN,
    ALTER token SET STORAGE PLAIN,
    ALTER claim SET STORAGE PLAIN;

CREATE INDEX idempotency_keys_purge_at ON idempotency_keys (purge_at);

-- lz4 takes half the time of the default; not every server was built with it

DO $$
BEGIN
    ALTER TABLE idempotency_keys ALTER response SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    ALTER TABLE idempotency_keys ALTER response SET STORAGE EXTERNAL;
END $$;

-- What is purged, without response, token and claim.  Partitions by month can
-- be dropped as a whole: idempotency_archive_rotate().

CREATE TABLE idempotency_archive (
    id            bytea       NOT NULL,
    state         smallint    NOT NULL,
    reason        smallint    NOT NULL,
    status        smallint,
    size          integer     NOT NULL,
    label         text        NOT NULL,
    tenant        text        NOT NULL,
    actor         text        NOT NULL,
    host          text        NOT NULL,
    created_at    timestamptz NOT NULL,
    completed_at  timestamptz,
    expires_at    timestamptz NOT NULL
) PARTITION BY RANGE (expires_at);

CREATE TABLE idempotency_archive_rest
    PARTITION OF idempotency_archive DEFAULT;

CREATE INDEX idempotency_archive_id ON idempotency_archive (id);

-- The audit trail: one row is one event.

CREATE TABLE idempotency_events (
    at        timestamptz NOT NULL DEFAULT now(),
    event_id  text        NOT NULL DEFAULT '',
    event     text        NOT NULL,
    level     text        NOT NULL DEFAULT 'info',
    host      text        NOT NULL DEFAULT '',
    store     text        NOT NULL DEFAULT '',
    label     text        NOT NULL DEFAULT '',
    tenant    text        NOT NULL DEFAULT '',
    actor     text        NOT NULL DEFAULT '',
    record    bytea,
    data      jsonb       NOT NULL DEFAULT '{}'
);

CREATE INDEX idempotency_events_at ON idempotency_events USING brin (at);
CREATE INDEX idempotency_events_record ON idempotency_events (record)
    WHERE record IS NOT NULL;

-- Whose records a role may read; '*' is everybody's.

CREATE TABLE idempotency_tenants (
    member  name NOT NULL,
    tenant  text NOT NULL,
    PRIMARY KEY (member, tenant)
);
