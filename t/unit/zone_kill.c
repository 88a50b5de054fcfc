
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/store/memory/ngx_http_idem_memory.c src/store/zone/ngx_http_idem_zone.c src/store/zone/ngx_http_idem_bytes.c src/store/zone/ngx_http_idem_room.c src/store/zone/ngx_http_idem_repair.c src/store/zone/ngx_http_idem_expiry.c src/store/zone/ngx_http_idem_zone_conf.c src/store/zone/ngx_http_idem_walk.c src/store/memory/ngx_http_idem_memory_admin.c src/store/memory/ngx_http_idem_memory_conf.c src/store/memory/ngx_http_idem_memory_found.c */
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
 * The invariants are looked at by code of this file, not by that of the zone.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <sys/ptrace.h>
#include <sys/wait.h>

#include "store/zone/ngx_http_idem_mutex.h"
#include "store/memory/ngx_http_idem_memory.h"
#include "unit.h"


/* what get, remove and list tell: where it goes does not matter here */

static ngx_http_idem_entry_t  an_entry;

ngx_http_idem_entry_t *
ngx_http_idem_op_entry(ngx_http_idem_op_t *op)
{
    op->list->entries.nelts++;
    ngx_memzero(&an_entry, sizeof(ngx_http_idem_entry_t));

    return &an_entry;
}

ngx_uint_t ngx_http_idem_response_status(const u_char *p, size_t len)
{
    return 200;
}

ngx_int_t ngx_atoi(u_char *line, size_t n) { return 0; }


#define SIZE      (16 * 4096)
#define KEYS      256
#define SLOTS     32768
#define START     ((ngx_msec_t) 1000000)
#define LEASE     2000
#define TTL       20000
#define DETAIL    300


volatile ngx_msec_t    ngx_current_msec = START;
volatile ngx_time_t   *ngx_cached_time;
volatile ngx_cycle_t  *ngx_cycle;
ngx_uint_t             ngx_pagesize = 4096;
ngx_pid_t              ngx_pid = 1;
ngx_module_t           ngx_http_core_module;

static ngx_time_t   now;
static ngx_cycle_t  cycle;
static ngx_log_t    silent;

static u_char                        *mem;      /* the zone                 */
static ngx_shm_zone_t                 shm_zone;
static ngx_http_idem_store_t   store;
static ngx_http_idem_memory_t  m;

static ngx_uint_t   repairs, alerts, traced;


/* of a reload, which is not a part of this */

ngx_uint_t
ngx_shmtx_trylock(ngx_shmtx_t *mtx)
{
    return 0;
}


void
ngx_shmtx_unlock(ngx_shmtx_t *mtx)
{
}


u_char *
ngx_pstrdup(ngx_pool_t *pool, ngx_str_t *src)
{
    return NULL;
}


/* stand-ins: nginx */

void
ngx_log_error_core(ngx_uint_t level, ngx_log_t *log, ngx_err_t err,
    const char *fmt, ...)
{
    if (level == NGX_LOG_ALERT) {
        alerts++;
    }
}

void
ngx_conf_log_error(ngx_uint_t level, ngx_conf_t *cf, ngx_err_t err,
    const char *fmt, ...)
{
}

u_char *
ngx_sprintf(u_char *buf, const char *fmt, ...)
{
    return ngx_cpymem(buf, " in a zone", sizeof(" in a zone"));
}

ssize_t ngx_parse_size(ngx_str_t *line) { return SIZE; }

ngx_shm_zone_t *
ngx_shared_memory_add(ngx_conf_t *cf, ngx_str_t *name, size_t size, void *tag)
{
    return &shm_zone;
}

void *
ngx_slab_alloc(ngx_slab_pool_t *pool, size_t size)
{
    return mem + SIZE - size;
}

/* only what is done with the lock is done step by step */

void
ngx_http_idem_mutex_lock(ngx_slab_pool_t *shpool)
{
    if (traced) {
        (void) raise(SIGSTOP);
    }
}

void
ngx_http_idem_mutex_unlock(ngx_slab_pool_t *shpool)
{
    if (traced) {
        _exit(0);
    }
}

void *
ngx_pnalloc(ngx_pool_t *pool, size_t size)
{
    static u_char  buf[SIZE];

    return (size <= SIZE) ? buf : NULL;
}

void *ngx_palloc(ngx_pool_t *pool, size_t size) { return NULL; }

/* where an operation that goes in pieces has got to */

static ngx_http_idem_copy_t  progress;

void *
ngx_pcalloc(ngx_pool_t *pool, size_t size)
{
    if (size != sizeof(ngx_http_idem_copy_t)) {
        return NULL;
    }

    ngx_memzero(&progress, size);

    return &progress;
}

ngx_int_t ngx_pfree(ngx_pool_t *pool, void *p) { return NGX_OK; }

void ngx_http_idem_turns_init(ngx_http_idem_memory_t *s, ngx_log_t *log) {}
void ngx_http_idem_turns_add(ngx_http_idem_memory_t *s,
    ngx_http_idem_op_t *op) {}
void ngx_http_idem_turns_cancel(ngx_http_idem_op_t *op) {}


/* ... the waking of others */

ngx_int_t
ngx_http_idem_wake_init(ngx_cycle_t *c, ngx_http_idem_memory_t *mem_store)
{
    return NGX_OK;
}

void ngx_http_idem_wake_exit(ngx_http_idem_memory_t *s) {}
void ngx_http_idem_wake(ngx_http_idem_memory_t *s, u_char *id,
    uint64_t waiting) {}
void ngx_http_idem_wake_watch(ngx_http_idem_memory_t *s,
    ngx_http_idem_op_t *op, ngx_msec_t left) {}
void ngx_http_idem_wake_cancel(ngx_http_idem_op_t *op) {}


/* ... and what is told */

void ngx_http_idem_memory_tell_init(ngx_cycle_t *c,
    ngx_http_idem_memory_t *s) {}
void ngx_http_idem_memory_tell_exit(ngx_http_idem_memory_t *s) {}
void ngx_http_idem_memory_told(ngx_http_idem_memory_t *s) {}

void
ngx_http_idem_memory_unlock(ngx_http_idem_memory_t *s, ngx_uint_t evicted,
    ngx_log_t *log)
{
    ngx_http_idem_zone_unlock(&s->z);
}


/* ... and another request may have what one has left */

ngx_uint_t
ngx_http_idem_claim_same(const ngx_http_idem_claim_t *a,
    const ngx_http_idem_claim_t *b, ngx_uint_t key_alone)
{
    return 1;
}


/*
 * A record has a number.  Its claim, its response and its details are made
 * of that and of who wrote them.
 */

typedef struct {
    ngx_uint_t    there;
    ngx_uint_t    state, reason, hold, again;
    ngx_uint_t    token, claim;
    ngx_msec_t    until, expires;
    uint64_t      u;
    size_t        size;
    size_t        details;
} image_t;


typedef struct {
    image_t       records[KEYS];
    ngx_uint_t    order[KEYS], n;                /* the queue of the oldest */
} world_t;


static world_t     before, after, at;
static ngx_uint_t  subject;                      /* of the operation        */
static char        why[256];


static u_char
pattern(ngx_uint_t writer, size_t i)
{
    return (u_char) (writer * 31 + i * 7 + (i >> 8) * 13 + 1);
}


static void
make_id(u_char *id, ngx_uint_t key)
{
    ngx_memset(id, (int) key, NGX_HTTP_IDEM_ID_LEN);

    /* few buckets, so that some share one */
    id[0] = key & 3;
    id[1] = 0;
}


static ngx_http_idem_op_t *
make_op(ngx_uint_t key, ngx_uint_t writer, size_t size, size_t details)
{
    size_t  i;

    static u_char                 response[SIZE * 2], detail[SIZE];
    static ngx_buf_t              b[2];
    static ngx_chain_t            cl[2];
    static ngx_http_idem_op_t     op;
    static ngx_http_idem_claim_t  claim;

    ngx_memzero(&op, sizeof(ngx_http_idem_op_t));
    ngx_memset(&claim, (int) writer, sizeof(ngx_http_idem_claim_t));
    ngx_memset(op.token, (int) writer, NGX_HTTP_IDEM_TOKEN_LEN);

    make_id(op.id, key);

    for (i = 0; i < size; i++) {
        response[i] = pattern(writer, i);
    }

    for (i = 0; i < details; i++) {
        detail[i] = pattern(writer + 1, i);
    }

    /* in two buffers */

    b[0].pos = response;
    b[0].last = response + size / 3;
    b[1].pos = b[0].last;
    b[1].last = response + size;

    cl[0].buf = &b[0];
    cl[0].next = &cl[1];
    cl[1].buf = &b[1];
    cl[1].next = NULL;

    op.store = &store;
    op.claim = &claim;
    op.details.data = detail;
    op.details.len = details;
    op.lease = LEASE;
    op.ttl = TTL;
    op.state = NGX_HTTP_IDEM_COMPLETED;
    op.response = cl;
    op.size = size;
    op.locked_until = ngx_current_msec + LEASE + writer;
    op.log = &silent;
    op.start = ngx_current_msec;

    return &op;
}


static ngx_uint_t
begin(ngx_uint_t key, ngx_uint_t writer, size_t details)
{
    ngx_http_idem_op_t  *op;

    op = make_op(key, writer, 0, details);
    (void) ngx_http_idem_memory_backend.begin(op);

    return op->result;
}


static ngx_uint_t
commit(ngx_uint_t key, ngx_uint_t writer, size_t size)
{
    ngx_http_idem_op_t  *op;

    op = make_op(key, writer, size, 0);
    (void) ngx_http_idem_memory_commit_piece(op);

    return op->result;
}


static void
completed(ngx_uint_t key, ngx_uint_t writer, size_t size, size_t details)
{
    (void) begin(key, writer, details);
    (void) commit(key, writer, size);
}


static ngx_uint_t
keep(ngx_uint_t key, ngx_uint_t writer, size_t size, size_t details)
{
    ngx_http_idem_op_t    *op;
    ngx_http_idem_node_t  *node;

    op = make_op(key, writer, size, details);

    ngx_http_idem_zone_lock(&m.z);
    node = ngx_http_idem_zone_keep(&m.z, op, ngx_current_msec + TTL,
                                   ngx_current_msec + TTL);
    ngx_http_idem_zone_unlock(&m.z);

    return node != NULL;
}


/* the zone as it is in the beginning */

static void
create(ngx_http_idem_full_e full)
{
    ngx_conf_t        cf;
    ngx_cycle_t       old;
    ngx_slab_pool_t  *pool;

    ngx_memzero(mem, SIZE);
    ngx_memzero(&cf, sizeof(ngx_conf_t));
    ngx_memzero(&old, sizeof(ngx_cycle_t));
    ngx_memzero(&shm_zone, sizeof(ngx_shm_zone_t));
    ngx_memzero(&m, sizeof(ngx_http_idem_memory_t));

    cf.cycle = &cycle;
    cycle.old_cycle = &old;

    shm_zone.shm.addr = mem;
    shm_zone.shm.size = SIZE;
    shm_zone.shm.log = &silent;

    pool = (ngx_slab_pool_t *) mem;
    pool->pfree = SIZE / ngx_pagesize - 1;

    ngx_str_set(&m.z.name, "z");
    m.z.size = SIZE;
    m.z.full = full;
    m.slot = 3;

    store.conf = &m;
    ngx_current_msec = START;

    if (ngx_http_idem_zone_add(&cf, &m.z) != NGX_CONF_OK
        || shm_zone.init(&shm_zone, NULL) != NGX_OK)
    {
        abort();
    }
}


/* what is wrong, and 0 */

static ngx_uint_t
wrong(const char *fmt, ...)
{
    va_list  args;

    va_start(args, fmt);
    vsnprintf(why, sizeof(why), fmt, args);
    va_end(args);

    return 0;
}


/* the number of a record, KEYS if it has none */

static ngx_uint_t
key_of(ngx_http_idem_node_t *node)
{
    u_char  id[NGX_HTTP_IDEM_ID_LEN];

    make_id(id, node->id[2]);

    return ngx_memcmp(id, node->id, NGX_HTTP_IDEM_ID_LEN) == 0
           ? node->id[2] : KEYS;
}


static ngx_uint_t
same(const void *p, ngx_uint_t c, size_t len)
{
    size_t         i;
    const u_char  *b = p;

    for (i = 0; i < len; i++) {
        if (b[i] != (u_char) c) {
            return 0;
        }
    }

    return 1;
}


static ngx_uint_t in_queue(ngx_queue_t *head, ngx_queue_t *x);


/* a record as others see it; 0 if it is not whole */

static ngx_uint_t
look(ngx_http_idem_node_t *node, image_t *image)
{
    size_t        i;
    ngx_str_t     details;

    static u_char  response[SIZE];

    image->there = 1;
    image->state = node->state;
    image->reason = node->reason;
    image->hold = node->hold;
    image->again = node->again;
    image->token = node->token[0];
    image->claim = node->claim.fingerprint[0];
    image->until = node->until;
    image->expires = node->expires;
    image->u = node->u.waiting;
    image->size = node->size;
    image->details = 0;

    if (!same(node->token, image->token, NGX_HTTP_IDEM_TOKEN_LEN)
        || !same(node->claim.fingerprint, image->claim,
                 NGX_HTTP_IDEM_FINGERPRINT_LEN)
        || !same(node->claim.identity, image->claim,
                 NGX_HTTP_IDEM_IDENTITY_LEN)
        || !same(&node->claim.time, image->claim, sizeof(uint64_t)))
    {
        return wrong("a claim of two");
    }

    if (node->state == NGX_HTTP_IDEM_IN_PROGRESS && node->chunks) {

        /* pieces of a response: nobody sees them */

        if (in_queue(&m.z.zone->fills, &node->completed) != 1) {
            return wrong("pieces that are in no queue");
        }

        image->size = 0;

    } else if (node->state != NGX_HTTP_IDEM_COMPLETED && node->chunks) {
        return wrong("chunks of one that is not completed");
    }

    if (node->state == NGX_HTTP_IDEM_COMPLETED) {

        if (node->size > SIZE
            || ngx_http_idem_zone_copy(&m.z, node, response) != NGX_OK)
        {
            return wrong("a response that can't be read");
        }

        for (i = 0; i < node->size; i++) {
            if (response[i] != pattern(image->token, i)) {
                return wrong("byte %zu of a response is not its own", i);
            }
        }
    }

    if (node->details) {
        ngx_http_idem_zone_copy_details(&m.z, node, NULL,
                                        NGX_MAX_SIZE_T_VALUE, &details);

        image->details = details.len;

        if (details.len == 0) {
            return wrong("details that can't be read");
        }

        for (i = 0; i < details.len; i++) {
            if (details.data[i] != pattern(image->claim + 1, i)) {
                return wrong("details are not those of the claim");
            }
        }
    }

    return 1;
}


/* each slot that a record refers to, and how large it is */

static uint16_t  slots[SIZE / 32];


static ngx_uint_t
take(void *p, size_t size, ngx_uint_t kind)
{
    size_t                 i, offset;
    ngx_http_idem_room_t  *room = &m.z.zone->room;

    offset = (u_char *) p - room->base;

    if (offset >= room->fresh * 4096 || offset % size) {
        return wrong("a slot beyond, or beside, all slots");
    }

    if (room->blocks[offset / 4096].kind != kind) {
        return wrong("a slot of %zu in a block of kind %u", size,
                     room->blocks[offset / 4096].kind);
    }

    for (i = 0; i < size / 32; i++) {
        if (slots[offset / 32 + i]) {
            return wrong("a slot that two have");
        }

        slots[offset / 32 + i] = i ? 1 : 2;
    }

    return 1;
}


static ngx_uint_t
take_chunks(ngx_http_idem_chunk_t *chunk, size_t left, size_t *bytes)
{
    size_t  n;

    for ( /* void */ ; left; chunk = chunk->next) {
        n = ngx_http_idem_chunk_size(left);

        if (chunk == NULL) {
            return wrong("a chunk is missing");
        }

        if (!take(chunk, n, __builtin_ctz((unsigned) n) - 5)) {
            return 0;
        }

        *bytes += n;
        n -= offsetof(ngx_http_idem_chunk_t, data);
        left -= ngx_min(n, left);
    }

    return chunk ? wrong("a chunk too many") : 1;
}


/* the first of them; 0: they can't be */

static size_t
take_some(ngx_http_idem_chunk_t *chunk, size_t left)
{
    size_t  n, bytes;

    bytes = 0;

    for ( /* void */ ; chunk; chunk = chunk->next) {
        n = ngx_http_idem_chunk_size(left);

        if (left == 0 || !take(chunk, n, __builtin_ctz((unsigned) n) - 5)) {
            return wrong("pieces of a response that are none");
        }

        bytes += n;
        n -= offsetof(ngx_http_idem_chunk_t, data);
        left -= ngx_min(n, left);
    }

    return bytes;
}


/* the allocator knows of those slots, and of no others */

static ngx_uint_t
whole_room(void)
{
    ngx_uint_t              i, k, n, size, used, free_slots, listed,
                                   vacant;
    ngx_http_idem_room_t   *room = &m.z.zone->room;
    ngx_http_idem_block_t  *b;
    static u_char           list[SIZE / 4096];

    static const ngx_uint_t  sizes[] = {
        32, 64, 128, 256, 512, 1024, 2048, 4096, 256
    };

    ngx_memzero(list, sizeof(list));

    for (k = 0; k < NGX_HTTP_IDEM_KINDS; k++) {
        n = 0;

        for (i = room->partial[k]; i; i = room->blocks[i - 1].next) {
            if (i > room->fresh || list[i - 1]
                || room->blocks[i - 1].kind != k
                || room->blocks[i - 1].prev != n)
            {
                return wrong("the list of kind %lu is not whole", k);
            }

            list[i - 1] = 1;
            n = i;
        }
    }

    vacant = 0;

    for (i = room->vacant; i; i = room->blocks[i - 1].next) {
        if (i > room->fresh || list[i - 1]) {
            return wrong("the list of free blocks is not whole");
        }

        list[i - 1] = 2;
        vacant++;
    }

    if (room->nfree != vacant + room->n - room->fresh) {
        return wrong("free blocks: %lu, counted %lu", room->nfree,
                     vacant + room->n - room->fresh);
    }

    for (n = 0; n < room->fresh; n++) {
        b = &room->blocks[n];
        used = 0;
        free_slots = 0;

        for (i = 0; i < 128; i++) {
            used += slots[n * 128 + i] != 0;
        }

        if (list[n] == 2) {
            if (used) {
                return wrong("a free block is in use");
            }

            continue;
        }

        if (used == 0) {
            return wrong("a block that nobody uses is not free");
        }

        size = sizes[b->kind];

        for (i = 0; i < 4096 / size; i++) {
            k = (b->used[i / 64] >> (i % 64)) & 1;

            if (k != (slots[(n * 4096 + i * size) / 32] == 2)) {
                return wrong(k ? "a slot has leaked" : "a slot in use is free");
            }

            free_slots += !k;
        }

        listed = list[n];

        if (listed != (free_slots != 0)) {
            return wrong("a block is %sin a list of those with free slots",
                         listed ? "" : "not ");
        }
    }

    return 1;
}


/* links in both directions; how many there are, or -1 */

static ngx_int_t
whole_queue(ngx_queue_t *head)
{
    ngx_int_t     n;
    ngx_queue_t  *q;

    n = 0;

    for (q = head->next; q != head; q = q->next) {

        if (q == NULL || (u_char *) q < mem || (u_char *) q >= mem + SIZE
            || q->next == NULL || q->next->prev != q || n++ > SLOTS)
        {
            return -1;
        }
    }

    return (head->next->prev == head) ? n : -1;
}


static ngx_uint_t
in_queue(ngx_queue_t *head, ngx_queue_t *x)
{
    ngx_uint_t    n;
    ngx_queue_t  *q;

    n = 0;

    for (q = head->next; q != head; q = q->next) {
        n += (q == x);
    }

    return n;
}


/*
 * Whether the zone is whole, and what is in it.  The lock is free: whoever
 * has taken it last has repaired what there was to repair.
 */

static ngx_uint_t
whole(world_t *world)
{
    size_t                    bytes, details_bytes, left, filling, partly;
    uint32_t                  hash;
    ngx_int_t                 n, wheel, queued, detailed, in_wheel, fills;
    ngx_uint_t                i, k, key, level, records, in_completed;
    ngx_uint_t                states[4];
    ngx_queue_t              *q;
    ngx_http_idem_node_t     *node;
    ngx_http_idem_zone_t     *zone = m.z.zone;
    ngx_http_idem_details_t  *d;

    ngx_memzero(world, sizeof(world_t));
    ngx_memzero(slots, sizeof(slots));
    ngx_memzero(states, sizeof(states));

    bytes = 0;
    filling = 0;
    fills = 0;
    details_bytes = 0;
    records = 0;
    in_completed = 0;
    detailed = 0;

    if (zone->busy || zone->undo.node) {
        return wrong("somebody is still at work");
    }

    /* the wheel and the queues */

    wheel = whole_queue(&zone->expiry.due);
    in_wheel = wheel;

    for (level = 0; level < 5; level++) {
        for (i = 0; i < 64; i++) {
            n = whole_queue(&zone->expiry.slots[level][i]);
            in_wheel = (n < 0 || in_wheel < 0) ? -1 : in_wheel + n;
        }
    }

    queued = whole_queue(&zone->completed);
    n = whole_queue(&zone->details);

    if (in_wheel < 0 || queued < 0 || n < 0) {
        return wrong("the links of %s are not whole",
                     (in_wheel < 0) ? "the wheel"
                     : (queued < 0) ? "the queue of completed ones"
                     : "the queue of details");
    }

    for (i = 0; i <= zone->mask; i++) {
        for (node = zone->buckets[i]; node; node = node->next) {

            if (!take(node, 256, NGX_HTTP_IDEM_KIND_NODE)) {
                return 0;
            }

            ngx_memcpy(&hash, node->id, sizeof(uint32_t));
            key = key_of(node);

            if (key == KEYS || (hash & zone->mask) != i) {
                return wrong("a record with the id of none");
            }

            if (world->records[key].there) {
                return wrong("record %lu is there twice", key);
            }

            if (node->state < 1 || node->state > 3) {
                return wrong("record %lu has state %u", key, node->state);
            }

            if (!look(node, &world->records[key])) {
                return 0;
            }

            records++;
            states[node->state]++;

            left = node->size;
            left -= ngx_min(left, NGX_HTTP_IDEM_NODE_ROOM);

            k = (node->state == NGX_HTTP_IDEM_IN_PROGRESS && node->chunks);

            if (k) {
                fills++;
                partly = take_some(node->chunks, left);

                if (partly == 0) {
                    return 0;
                }

                bytes += partly;
                filling += partly;

            } else if (!take_chunks(node->chunks, left, &bytes)) {
                return 0;
            }

            d = node->details;

            if (d) {
                detailed++;

                if (d->node != node
                    || in_queue(&zone->details, &d->queue) != 1
                    || !take_chunks((ngx_http_idem_chunk_t *) d,
                                    ngx_max((size_t) d->len + 28, 56),
                                    &details_bytes))
                {
                    return wrong("details of record %lu are not in their "
                                 "queue once", key);
                }
            }

            k = (m.z.full != NGX_HTTP_IDEM_FULL_EVICT
                 || (node->state == NGX_HTTP_IDEM_COMPLETED
                     && node->chunks));

            in_completed += k;

            if (in_queue(&zone->completed, &node->completed) != k
                || (!k && node->completed.next
                    && in_queue(&zone->fills, &node->completed) != 1))
            {
                return wrong("record %lu in the queue of completed ones", key);
            }

            /* in the wheel once: as many as there are, and each is in one */

            for (q = node->expiry.next, n = 0; q != &node->expiry;
                 q = q->next)
            {
                n += ((u_char *) q >= (u_char *) &zone->expiry
                      && (u_char *) q < (u_char *) (&zone->expiry + 1));
            }

            if (n != 1) {
                return wrong("record %lu is not in the wheel", key);
            }
        }
    }

    if (in_wheel != (ngx_int_t) records || queued != (ngx_int_t) in_completed
        || whole_queue(&zone->details) != detailed)
    {
        return wrong("%ld in the wheel, %ld in the queue, of %lu",
                     in_wheel, queued, records);
    }

    if (whole_queue(&zone->fills) != fills || zone->filling != filling) {
        return wrong("%ld in the queue of those that are filled with %zu "
                     "bytes, counted %ld and %zu", whole_queue(&zone->fills),
                     zone->filling, fills, filling);
    }

    if (zone->records != records || zone->bytes != bytes
        || zone->details_bytes != details_bytes)
    {
        return wrong("%lu records and %zu, %zu bytes, counted %lu and "
                     "%zu, %zu", zone->records, zone->bytes,
                     zone->details_bytes, records, bytes, details_bytes);
    }

    for (i = 1; i < 4; i++) {
        if (zone->states[i] != states[i]) {
            return wrong("%lu of state %lu, counted %lu", zone->states[i], i,
                         states[i]);
        }
    }

    for (q = zone->completed.next; q != &zone->completed; q = q->next) {
        node = ngx_queue_data(q, ngx_http_idem_node_t, completed);
        world->order[world->n++] = key_of(node);
    }

    return whole_room();
}


/* details may be gone; nothing else may differ */

static ngx_uint_t
is_image(image_t *a, image_t *b)
{
    image_t  x;

    x = *a;

    if (x.details == 0) {
        x.details = b->details;
    }

    return ngx_memcmp(&x, b, sizeof(image_t)) == 0;
}


/* what was promised of each record */

static ngx_uint_t
kept_promises(void)
{
    image_t     *x, *was, *is;
    ngx_uint_t   i, j, key;

    for (key = 0; key < KEYS; key++) {
        x = &at.records[key];
        was = &before.records[key];
        is = &after.records[key];

        if (is_image(x, was) || is_image(x, is)) {
            continue;
        }

        /* what is taken over when it has expired loses its response first */

        if (was->there && is->there && x->there
            && was->state == NGX_HTTP_IDEM_COMPLETED
            && is->state == NGX_HTTP_IDEM_IN_PROGRESS
            && (ngx_msec_int_t) (was->until - ngx_current_msec) <= 0
            && x->state == NGX_HTTP_IDEM_UNUSABLE
            && x->until == was->until && x->token == was->token)
        {
            continue;
        }

        /* a commit of a record that is gone lays the lock first */

        if (!was->there && x->there && is->there
            && x->state == NGX_HTTP_IDEM_IN_PROGRESS
            && x->token == is->token && x->claim == is->claim)
        {
            continue;
        }

        return wrong("record %lu is neither as before nor as after: state "
                     "%lu, reason %lu, of %lu, until %ld", key, x->state,
                     x->reason, x->token, x->until - ngx_current_msec);
    }

    /* the oldest are still those that were the oldest */

    for (i = 0, j = 0; i < at.n; i++) {

        if (at.order[i] == subject) {
            continue;
        }

        while (j < before.n && before.order[j] != at.order[i]) {
            j++;
        }

        if (j++ >= before.n) {
            return wrong("the order of the queue has changed at record %lu",
                         at.order[i]);
        }
    }

    return 1;
}


/* the zone goes on: new records until there is no room, then time goes by */

static ngx_uint_t
goes_on(void)
{
    ngx_uint_t  i;
    ngx_msec_t  saved;
    world_t     world;

    saved = ngx_current_msec;

    for (i = 100; i < 140; i++) {
        if (m.z.full == NGX_HTTP_IDEM_FULL_EVICT) {
            completed(i, i & 127, 40 * i, (i & 1) * DETAIL);

        } else {
            (void) keep(i, i & 127, 40 * i, (i & 1) * DETAIL);
        }
    }

    if (!whole(&world)) {
        return 0;
    }

    ngx_current_msec += 3 * TTL;

    ngx_http_idem_zone_lock(&m.z);
    while (ngx_http_idem_zone_purge_one(&m.z, (ngx_uint_t) -1)) {
        /* void */
    }
    ngx_http_idem_zone_unlock(&m.z);

    ngx_current_msec = saved;

    if (m.z.zone->records || m.z.zone->room.nfree != m.z.zone->room.n) {
        return wrong("%lu records are left when all have expired",
                     m.z.zone->records);
    }

    return 1;
}


static u_char  image[SIZE], last[SIZE];
static ngx_uint_t  points, steps, nested;


/*
 * The outbox looks without the lock whether there is anything in it: it must
 * never miss what is there
 */

static ngx_uint_t
counted(void)
{
    ngx_uint_t             i, n;
    ngx_http_idem_node_t  *node;

    n = 0;

    for (i = 0; i <= m.z.zone->mask; i++) {
        for (node = m.z.zone->buckets[i]; node; node = node->next) {
            if (n++ > KEYS) {
                return wrong("a bucket has no end");
            }
        }
    }

    return (n && m.z.zone->records == 0) ? wrong("it says that it is empty")
                                         : 1;
}


/* the child was killed here: another one takes the lock */

static ngx_uint_t
recovers(ngx_uint_t thorough)
{
    ngx_uint_t  rc;

    if (!counted()) {
        return 0;
    }

    ngx_memcpy(image, mem, SIZE);

    ngx_http_idem_zone_lock(&m.z);
    repairs += (((ngx_http_idem_zone_t *)
                 (image + ((u_char *) m.z.zone - mem)))->busy != 0);
    ngx_http_idem_zone_unlock(&m.z);

    rc = (whole(&at) && kept_promises());

    if (rc && alerts) {
        rc = wrong("it says that it met what can't be");
    }

    if (rc && thorough) {
        rc = goes_on();
    }

    ngx_memcpy(mem, image, SIZE);

    return rc;
}


static pid_t
spawn(void (*operate)(void))
{
    int    status;
    pid_t  pid;

    pid = fork();

    if (pid == -1) {
        perror("fork");
        exit(2);
    }

    if (pid == 0) {
        (void) ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        traced = 1;
        operate();
        _exit(1);
    }

    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) {
        printf("Bail out! a process can't be traced here\n");
        exit(2);
    }

    return pid;
}


/* returns 0 when the child is through */

static ngx_uint_t
step(pid_t pid)
{
    int  status;

    if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == -1
        || waitpid(pid, &status, 0) != pid)
    {
        perror("ptrace");
        exit(2);
    }

    steps++;

    return WIFSTOPPED(status);
}


static void
repair_only(void)
{
    ngx_http_idem_zone_lock(&m.z);
    ngx_http_idem_zone_unlock(&m.z);
}


/* at each instruction of the repair of what is there now */

static ngx_uint_t
recovers_from_repair(void)
{
    pid_t       pid;
    ngx_uint_t  rc;

    static u_char  start[SIZE];

    rc = 1;

    ngx_memcpy(start, mem, SIZE);
    ngx_memcpy(last, mem, SIZE);

    pid = spawn(repair_only);

    while (step(pid)) {

        if (rc && ngx_memcmp(last, mem, SIZE) != 0) {
            ngx_memcpy(last, mem, SIZE);
            nested++;

            rc = recovers(0);

            if (!rc) {
                /* it runs to its end */
                (void) ptrace(PTRACE_CONT, pid, NULL, NULL);
                (void) waitpid(pid, NULL, 0);
                break;
            }
        }
    }

    ngx_memcpy(mem, start, SIZE);
    ngx_memcpy(last, mem, SIZE);

    return rc;
}


typedef struct {
    const char            *name;
    ngx_http_idem_full_e   full;
    ngx_uint_t             subject;
    void                        (*prepare)(void);
    void                        (*operate)(void);
    ngx_uint_t                    repair;        /* is killed, too          */
} scenario_t;


static void
run(scenario_t *s)
{
    int         status;
    pid_t       pid;
    ngx_uint_t  n, failed, tried;

    subject = s->subject;
    failed = 0;
    tried = 0;
    n = 0;

    create(s->full);
    s->prepare();

    if (!whole(&before)) {
        ok(0, "%s: not whole before it begins: %s", s->name, why);
        return;
    }

    /* as it is when nobody is killed */

    ngx_memcpy(image, mem, SIZE);

    pid = fork();

    if (pid == 0) {
        s->operate();
        _exit(0);
    }

    (void) waitpid(pid, &status, 0);

    if (!whole(&after)) {
        ok(0, "%s: not whole when it ends: %s", s->name, why);
        return;
    }

    ngx_memcpy(mem, image, SIZE);
    ngx_memcpy(last, mem, SIZE);

    pid = spawn(s->operate);

    while (step(pid)) {

        if (failed || ngx_memcmp(last, mem, SIZE) == 0) {
            continue;
        }

        ngx_memcpy(last, mem, SIZE);
        n++;

        if (!recovers(n % 16 == 0)) {
            failed = n;
            (void) ptrace(PTRACE_CONT, pid, NULL, NULL);
            (void) waitpid(pid, NULL, 0);
            break;
        }

        /* the worst place: in the middle of a change */

        if (s->repair && !tried && (m.z.zone->undo.node || n == 60)) {
            tried = 1;

            if (!recovers_from_repair()) {
                failed = n;
            }
        }
    }

    points += n;

    ok(!failed, "%s", s->name);

    if (failed) {
        printf("# killed after store %lu: %s\n", failed, why);
    }
}


/* ---- the operations ---- */

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
    (void) ngx_http_idem_zone_keep(&m.z, op, ngx_current_msec + TTL,
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
    ngx_http_idem_node_t  *node;

    make_id(id, 5);

    ngx_http_idem_zone_lock(&m.z);

    node = ngx_http_idem_zone_find(&m.z, id);

    if (landed) {
        ngx_http_idem_zone_remove(&m.z, node);

    } else {
        ngx_http_idem_zone_requeue(&m.z, node);
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

    for (i = 100; m.z.zone->room.nfree > 2; i++) {
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
    ok(m.z.zone->filling == 0 && pieces(1) == NGX_AGAIN && pieces(9) == NGX_OK
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
       && m.z.zone->filling == 0,
       "taken over between two pieces: lost, and nothing is left (%s)", why);

    create(NGX_HTTP_IDEM_FULL_EVICT);
    filled_room();
    ok(commit(18, 28, 15000) == NGX_HTTP_IDEM_OK && m.z.zone->filling == 0
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
