
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/store/memory/ngx_http_idem_memory.c src/store/zone/ngx_http_idem_zone.c src/store/zone/ngx_http_idem_bytes.c src/store/zone/ngx_http_idem_arena.c src/store/zone/ngx_http_idem_repair.c src/store/zone/ngx_http_idem_expiry.c src/store/zone/ngx_http_idem_zone_conf.c src/store/zone/ngx_http_idem_shared.c src/store/zone/ngx_http_idem_walk.c src/store/memory/ngx_http_idem_memory_admin.c src/store/memory/ngx_http_idem_memory_conf.c src/store/memory/ngx_http_idem_memory_found.c */
/* flags: -O2 -fno-sanitize=all -DNGX_HTTP_IDEM_PIECE=6000 */

/*
 * A worker that is killed with the lock of a zone, at any instruction.
 *
 * For each operation a child does it, one instruction at a time (ptrace), on
 * a zone in memory that it shares with this process.  After each instruction
 * that changed the zone, this process is the next one to take the lock: the
 * zone has to be repaired, whole in all its parts, and each record as it was
 * before the operation or as it is after it.  Then the zone is put back to
 * what it was, and the child goes on.
 *
 * What the repair itself does is killed in the same way.
 *
 * The invariants are looked at by zone_whole.h, not by code of the zone.
 */


#include "zone_steps.h"


static void
some(void)
{
    completed(1, 11, 20, 0);
    completed(5, 15, 900, DETAIL);
    completed(9, 19, 5000, 0);
    (void) begin(13, 23, DETAIL);
}

static void op_begin(void) { (void) begin(17, 27, 0); }
static void op_begin_details(void) { (void) begin(17, 27, DETAIL); }
static void op_begin_again(void) { (void) begin(13, 23, DETAIL); }
static void op_found(void) { (void) begin(9, 29, 0); }

static void
abandoned(void)
{
    some();
    ngx_current_msec += LEASE + 1;
}

static void op_take_over(void) { (void) begin(13, 24, DETAIL + 50); }

static void
in_grace(void)
{
    ngx_http_idem_op_t  *op;

    some();
    (void) begin(21, 31, DETAIL);
    op = make_op(21, 31, 2000, 0);
    op->ttl = 1000;
    op->grace = TTL;
    (void) ngx_http_idem_memory_backend.commit(op);
    ngx_current_msec += 2000;
}

static void op_expired(void) { (void) begin(21, 32, DETAIL + 50); }

static void
stale(void)
{
    some();
    ngx_current_msec += TTL - 10000;
    completed(2, 12, 300, DETAIL);
    (void) begin(6, 16, 0);
    ngx_current_msec += 20000;
}

static void op_purge(void) { (void) begin(10, 20, 0); }

static void
op_renew(void)
{
    ngx_current_msec += 500;
    (void) ngx_http_idem_memory_backend.renew(make_op(13, 23, 0, 0));
}

static void
op_renew_gone(void)
{
    (void) ngx_http_idem_memory_backend.renew(make_op(17, 27, 0, DETAIL));
}

static void op_commit_small(void) { (void) commit(13, 23, 30); }
static void op_commit_large(void) { (void) commit(13, 23, 4500); }
static void op_commit_huge(void) { (void) commit(13, 23, 60000); }
static void op_commit_gone(void) { (void) commit(17, 27, 700); }
static void op_commit_lost(void) { (void) commit(13, 24, 700); }

static void
op_commit_unusable(void)
{
    ngx_http_idem_op_t  *op;

    op = make_op(13, 23, 0, 0);
    op->state = NGX_HTTP_IDEM_UNUSABLE;
    op->reason = NGX_HTTP_IDEM_REASON_UNKNOWN;
    (void) ngx_http_idem_memory_backend.commit(op);
}

static void
op_release(void)
{
    (void) ngx_http_idem_memory_backend.release(make_op(13, 23, 0, 0));
}

static void
taken_over(void)
{
    abandoned();
    op_take_over();
}

static void
op_release_again(void)
{
    (void) ngx_http_idem_memory_backend.release(make_op(13, 24, 0, 0));
}

static void
unknown(void)
{
    some();
    op_commit_unusable();
    ngx_current_msec += LEASE + 1;
}

static void
asked(ngx_http_idem_op_e kind, ngx_uint_t key)
{
    ngx_http_idem_op_t  *op;

    static ngx_http_idem_list_t  list;

    ngx_memzero(&list, sizeof(ngx_http_idem_list_t));

    op = make_op(key, 99, 0, 0);
    op->kind = kind;
    op->list = &list;

    (void) ngx_http_idem_memory_backend.admin(op);
}

static void op_get(void) { asked(NGX_HTTP_IDEM_OP_GET, 9); }
static void op_list(void) { asked(NGX_HTTP_IDEM_OP_LIST, 9); }
static void op_remove(void) { asked(NGX_HTTP_IDEM_OP_REMOVE, 9); }
static void op_remove_lock(void) { asked(NGX_HTTP_IDEM_OP_REMOVE, 13); }

static void
op_watch(void)
{
    (void) ngx_http_idem_memory_backend.watch(make_op(13, 23, 0, 0));
}

static void
waited_for(void)
{
    some();
    op_watch();
}

static void
full_of_responses(void)
{
    ngx_uint_t  i;

    (void) begin(13, 23, 0);

    for (i = 30; i < 60; i++) {
        completed(i, i, 1500, 0);
    }
}

static void
full_of_details(void)
{
    ngx_uint_t  i;

    (void) begin(13, 23, 0);
    completed(29, 39, 1500, 0);

    for (i = 30; i < 60; i++) {
        (void) begin(i, i, 1500);
    }
}

static void
full_of_records(void)
{
    ngx_uint_t  i;

    (void) begin(13, 23, 0);

    for (i = 30; begin(i, i & 127, 0) == NGX_HTTP_IDEM_ACQUIRED; i++) {
        /* void */
    }
}

static void op_commit_evicts(void) { (void) commit(13, 23, 3000); }
static void op_begin_evicts(void) { (void) begin(17, 27, 3000); }

static void
cached(void)
{
    (void) keep(5, 15, 900, DETAIL);
    (void) keep(9, 19, 3000, 0);
}

static void
cache_full(void)
{
    ngx_uint_t  i;

    for (i = 30; i < 60; i++) {
        (void) keep(i, i, 1500, (i & 1) * DETAIL);
    }
}

static void op_keep(void) { (void) keep(17, 27, 1200, DETAIL); }
static void op_keep_replace(void) { (void) keep(9, 29, 1200, DETAIL); }
static void op_keep_large(void) { (void) keep(17, 27, 4500, DETAIL); }

static void
op_keep_unusable(void)
{
    ngx_http_idem_op_t  *op;

    op = make_op(17, 27, 0, 0);
    op->state = NGX_HTTP_IDEM_UNUSABLE;
    op->reason = NGX_HTTP_IDEM_REASON_TOO_LARGE;

    ngx_http_idem_zone_lock(&m.z);
    (void) ngx_http_idem_zone_store(&m.z, op, ngx_current_msec + TTL,
                                    ngx_current_msec + TTL);
    ngx_http_idem_zone_unlock(&m.z);
}

static void nothing(void) { }

static void
outbox(void)
{
    cached();
    (void) keep(13, 23, 200, 0);
}

static void
outbox_tried(ngx_uint_t landed)
{
    u_char                 id[NGX_HTTP_IDEM_ID_LEN];
    ngx_http_idem_item_t  *item;

    make_id(id, 5);

    ngx_http_idem_zone_lock(&m.z);

    item = ngx_http_idem_zone_find(&m.z, id);

    if (landed) {
        ngx_http_idem_zone_remove(&m.z, item);

    } else {
        ngx_http_idem_zone_requeue(&m.z, item);
    }

    ngx_http_idem_zone_unlock(&m.z);
}

static void op_landed(void) { outbox_tried(1); }
static void op_requeue(void) { outbox_tried(0); }


/* ---- a large response, in pieces ---- */

#define LARGE  20000

static ngx_http_idem_op_t  *going;


/* so many pieces of it */

static ngx_int_t
pieces(ngx_uint_t n)
{
    ngx_int_t  rc;

    rc = NGX_AGAIN;

    while (n-- && rc == NGX_AGAIN) {
        rc = (going->kind == NGX_HTTP_IDEM_OP_COMMIT)
             ? ngx_http_idem_memory_commit_piece(going)
             : ngx_http_idem_memory_begin_piece(going);
    }

    return rc;
}


static void
large(ngx_http_idem_op_e kind, ngx_uint_t key, ngx_uint_t writer)
{
    going = make_op(key, writer, LARGE, 0);
    going->kind = kind;
    going->state_data = (kind == NGX_HTTP_IDEM_OP_COMMIT)
                        ? ngx_pcalloc(NULL, sizeof(ngx_http_idem_copy_t))
                        : NULL;
}

static void op_piece(void) { (void) pieces(1); }
static void op_makes_room(void) { (void) commit(18, 28, 15000); }
static void to_fill(void) { some(); large(NGX_HTTP_IDEM_OP_COMMIT, 13, 23); }
static void filled_1(void) { to_fill(); (void) pieces(1); }
static void filled_2(void) { to_fill(); (void) pieces(2); }

static void
filled_lapsed(void)
{
    filled_2();
    ngx_current_msec += LEASE + 1;
}

static void
filled_again(void)
{
    some();
    ngx_current_msec += LEASE + 1;
    (void) begin(13, 23, DETAIL);
    large(NGX_HTTP_IDEM_OP_COMMIT, 13, 23);
    (void) pieces(2);
}

static void
fill_full(void)
{
    completed(1, 11, 12000, 0);
    completed(5, 15, 12000, 0);
    (void) begin(13, 23, DETAIL);
    large(NGX_HTTP_IDEM_OP_COMMIT, 13, 23);
    (void) pieces(2);
    completed(9, 19, 9000, 0);
}

static void
filled_room(void)
{
    ngx_uint_t  i;

    filled_2();
    ngx_current_msec += LEASE + 1;

    for (i = 100; m.z.zone->arena.nfree > 2; i++) {
        completed(i, i & 127, 3000, 0);
    }

    (void) begin(18, 28, 0);
}

static void
to_read(void)
{
    some();
    (void) begin(17, 27, 0);
    large(NGX_HTTP_IDEM_OP_COMMIT, 17, 27);
    (void) pieces(10);
    large(NGX_HTTP_IDEM_OP_BEGIN, 17, 28);
    (void) pieces(1);
}


/* what becomes of it when something happens between two pieces */

static void
repaired(void)
{
    m.z.zone->busy = 1;
    ngx_http_idem_zone_lock(&m.z);
    ngx_http_idem_zone_unlock(&m.z);
}

static ngx_uint_t
read_is(ngx_uint_t writer)
{
    size_t  i;

    if (going->result != NGX_HTTP_IDEM_FOUND
        || going->found.response.len != LARGE)
    {
        return 0;
    }

    for (i = 0; i < LARGE; i++) {
        if (going->found.response.data[i] != pattern(writer, i)) {
            return 0;
        }
    }

    return 1;
}

static void
between_pieces(void)
{
    world_t  world;

    create(NGX_HTTP_IDEM_FULL_EVICT);
    filled_2();
    repaired();
    ok(m.z.zone->writing_bytes == 0
       && pieces(1) == NGX_AGAIN && pieces(9) == NGX_OK
       && going->result == NGX_HTTP_IDEM_OK && whole(&world)
       && world.records[13].state == NGX_HTTP_IDEM_COMPLETED
       && world.records[13].size == LARGE,
       "a repair between two pieces: it begins again (%s)", why);

    create(NGX_HTTP_IDEM_FULL_EVICT);
    filled_lapsed();
    {
    ngx_http_idem_op_t  saved = *going;

    (void) begin(13, 24, 0);
    *going = saved;
    }
    ok(pieces(9) == NGX_OK && going->result == NGX_HTTP_IDEM_LOST
       && whole(&world) && world.records[13].token == 24
       && m.z.zone->writing_bytes == 0,
       "taken over between two pieces: lost, and nothing is left (%s)", why);

    create(NGX_HTTP_IDEM_FULL_EVICT);
    filled_room();
    ok(commit(18, 28, 15000) == NGX_HTTP_IDEM_OK
       && m.z.zone->writing_bytes == 0
       && m.z.zone->evicted == 0 && whole(&world)
       && world.records[13].state == NGX_HTTP_IDEM_IN_PROGRESS,
       "pieces of one that is gone make room before any response (%s)", why);

    create(NGX_HTTP_IDEM_FULL_EVICT);
    to_read();
    ok(going->result != NGX_HTTP_IDEM_FOUND && pieces(9) == NGX_OK
       && read_is(27), "a replay in pieces");

    create(NGX_HTTP_IDEM_FULL_EVICT);
    to_read();
    repaired();
    ok(pieces(9) == NGX_OK && read_is(27), "... with a repair in between");

    create(NGX_HTTP_IDEM_FULL_EVICT);
    to_read();
    ngx_http_idem_zone_lock(&m.z);
    ngx_http_idem_zone_evict(&m.z, ngx_http_idem_zone_find(&m.z, going->id));
    ngx_http_idem_zone_unlock(&m.z);
    ok(pieces(9) == NGX_OK && going->result == NGX_HTTP_IDEM_FOUND
       && going->found.state == NGX_HTTP_IDEM_UNUSABLE
       && going->found.reason == NGX_HTTP_IDEM_REASON_EVICTED
       && going->found.response.len == 0, "... evicted in between");

    create(NGX_HTTP_IDEM_FULL_EVICT);
    to_read();
    ngx_http_idem_zone_lock(&m.z);
    ngx_http_idem_zone_remove(&m.z, ngx_http_idem_zone_find(&m.z, going->id));
    ngx_http_idem_zone_unlock(&m.z);
    ok(pieces(9) == NGX_OK && going->result == NGX_HTTP_IDEM_ACQUIRED
       && whole(&world) && world.records[17].token == 28,
       "... removed in between: it has the lock (%s)", why);

    create(NGX_HTTP_IDEM_FULL_EVICT);
    to_read();
    {
    ngx_http_idem_op_t    reader = *going;
    ngx_http_idem_copy_t  read = progress;

    ngx_http_idem_zone_lock(&m.z);
    ngx_http_idem_zone_remove(&m.z, ngx_http_idem_zone_find(&m.z, going->id));
    ngx_http_idem_zone_unlock(&m.z);

    (void) begin(17, 37, 0);
    large(NGX_HTTP_IDEM_OP_COMMIT, 17, 37);
    (void) pieces(10);
    *going = reader;
    progress = read;
    }
    ok(pieces(9) == NGX_OK && read_is(37),
       "... another response in its place: that one, and whole");

    create(NGX_HTTP_IDEM_FULL_EVICT);
    to_read();
    ngx_current_msec += TTL + 1;
    ok(pieces(9) == NGX_OK && going->result == NGX_HTTP_IDEM_ACQUIRED,
       "... it expired in between: it has the lock");
}


#define EVICT   NGX_HTTP_IDEM_FULL_EVICT
#define FORGET  NGX_HTTP_IDEM_FULL_FORGET
#define REFUSE  NGX_HTTP_IDEM_FULL_REFUSE


static scenario_t  scenarios[] = {
    { "begin", EVICT, 17, some, op_begin, 0 },
    { "begin with details", EVICT, 17, some, op_begin_details, 1 },
    { "begin once more", EVICT, 13, some, op_begin_again, 0 },
    { "begin: a replay", EVICT, 9, some, op_found, 0 },
    { "begin: a lease that ran out", EVICT, 13, abandoned, op_take_over, 1 },
    { "begin: it expired, within grace", EVICT, 21, in_grace, op_expired, 1 },
    { "begin: others have expired", EVICT, 10, stale, op_purge, 0 },
    { "renew", EVICT, 13, some, op_renew, 0 },
    { "renew: the record is gone", EVICT, 17, some, op_renew_gone, 0 },
    { "commit", EVICT, 13, waited_for, op_commit_small, 0 },
    { "commit: large", EVICT, 13, some, op_commit_large, 1 },
    { "commit: larger than the zone", EVICT, 13, some, op_commit_huge, 0 },
    { "commit: the record is gone", EVICT, 17, some, op_commit_gone, 0 },
    { "commit: lost", EVICT, 13, some, op_commit_lost, 0 },
    { "commit: unusable", EVICT, 13, some, op_commit_unusable, 0 },
    { "release", EVICT, 13, some, op_release, 0 },
    { "release: taken over before", EVICT, 13, taken_over, op_release_again,
      0 },
    { "begin: an unknown outcome", EVICT, 13, unknown, op_take_over, 0 },
    { "watch", EVICT, 13, some, op_watch, 0 },
    { "get", EVICT, 9, some, op_get, 0 },
    { "list", EVICT, 9, some, op_list, 0 },
    { "remove", EVICT, 9, some, op_remove, 1 },
    { "remove: its holder runs", EVICT, 13, waited_for, op_remove_lock, 1 },
    { "commit: others lose their response", EVICT, 13, full_of_responses,
      op_commit_evicts, 1 },
    { "begin: others lose their response", EVICT, 17, full_of_responses,
      op_begin, 0 },
    { "commit: others lose their details", EVICT, 13, full_of_details,
      op_commit_evicts, 0 },
    { "begin: others lose their details", EVICT, 17, full_of_details,
      op_begin_evicts, 0 },
    { "begin: no room at all", EVICT, 17, full_of_records, op_begin, 0 },
    { "commit: no room at all", EVICT, 13, full_of_records, op_commit_evicts,
      0 },
    { "in pieces: the first", EVICT, 13, to_fill, op_piece, 1 },
    { "in pieces: another", EVICT, 13, filled_1, op_piece, 1 },
    { "in pieces: the last", EVICT, 13, filled_2, op_piece, 1 },
    { "in pieces: others lose their response", EVICT, 13, fill_full, op_piece,
      0 },
    { "in pieces: taken over", EVICT, 13, filled_lapsed, op_take_over, 1 },
    { "in pieces: removed", EVICT, 13, filled_2, op_remove_lock, 0 },
    { "in pieces: released", EVICT, 13, filled_2, op_release, 0 },
    { "in pieces: released, taken over before", EVICT, 13, filled_again,
      op_release, 0 },
    { "in pieces: renewed", EVICT, 13, filled_2, op_renew, 0 },
    { "in pieces: unusable after all", EVICT, 13, filled_2,
      op_commit_unusable, 0 },
    { "in pieces: its holder is gone", EVICT, 18, filled_room, op_makes_room,
      1 },
    { "in pieces: a replay", EVICT, 17, to_read, op_piece, 0 },
    { "cache: new", FORGET, 17, cached, op_keep, 0 },
    { "cache: in place of another", FORGET, 9, cached, op_keep_replace, 1 },
    { "cache: others are forgotten", FORGET, 17, cache_full, op_keep_large,
      0 },
    { "outbox: kept", REFUSE, 17, outbox, op_keep, 0 },
    { "outbox: the first is kept", REFUSE, 17, nothing, op_keep, 0 },
    { "outbox: unusable, kept", REFUSE, 17, outbox, op_keep_unusable, 0 },
    { "outbox: in place of another", REFUSE, 9, outbox, op_keep_replace, 0 },
    { "outbox: no room", REFUSE, 17, cache_full, op_keep_large, 0 },
    { "outbox: tried in vain", REFUSE, 5, outbox, op_requeue, 0 },
    { "outbox: landed", REFUSE, 5, outbox, op_landed, 0 }
};


int
main(void)
{
    ngx_uint_t  i, n;

    /* what hangs is no success */
    (void) alarm(600);

    cycle.log = &silent;
    silent.log_level = NGX_LOG_WARN;
    ngx_cycle = &cycle;
    ngx_cached_time = &now;

    mem = mmap(NULL, SIZE, PROT_READ|PROT_WRITE, MAP_SHARED|MAP_ANONYMOUS,
               -1, 0);
    if (mem == MAP_FAILED) {
        perror("mmap");
        return 2;
    }

    n = sizeof(scenarios) / sizeof(scenarios[0]);

    plan((int) n + 10);

    for (i = 0; i < n; i++) {
        if (getenv("ONLY") == NULL || strstr(scenarios[i].name,
                                             getenv("ONLY")))
        {
            run(&scenarios[i]);
        } else {
            ok(1, "%s: left out", scenarios[i].name);
        }
    }

    between_pieces();

    printf("# %lu instructions, killed at %lu of them, and at %lu of the "
           "repair\n", steps, points, nested);

    ok(repairs > 0, "the zone was repaired %lu times", repairs);

    return done();
}
