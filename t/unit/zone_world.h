
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The zone that t/unit/zone_kill.c kills: stand-ins for what nginx and the
 * rest of the module do, and operations on records by their numbers.
 */


#ifndef _ZONE_WORLD_H_INCLUDED_
#define _ZONE_WORLD_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

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

void *ngx_slab_calloc(ngx_slab_pool_t *pool, size_t size) { return NULL; }

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
ngx_int_t
ngx_http_idem_turns_first(ngx_http_idem_op_t *op, ngx_int_t rc)
{
    return rc;
}


/* ... timers, of which none is set */

ngx_rbtree_t  ngx_event_timer_rbtree;
void ngx_rbtree_delete(ngx_rbtree_t *tree, ngx_rbtree_node_t *node) {}


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


/* ... and what is told */

void ngx_http_idem_memory_report_init(ngx_cycle_t *c,
    ngx_http_idem_memory_t *s) {}

void
ngx_http_idem_memory_lock(ngx_http_idem_memory_t *s)
{
    ngx_http_idem_zone_lock(&s->z);
}

void
ngx_http_idem_memory_unlock(ngx_http_idem_memory_t *s, ngx_log_t *log)
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
    ngx_http_idem_item_t  *item;

    op = make_op(key, writer, size, details);

    ngx_http_idem_zone_lock(&m.z);
    item = ngx_http_idem_zone_store(&m.z, op, ngx_current_msec + TTL,
                                    ngx_current_msec + TTL);
    ngx_http_idem_zone_unlock(&m.z);

    return item != NULL;
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


#endif /* _ZONE_WORLD_H_INCLUDED_ */
