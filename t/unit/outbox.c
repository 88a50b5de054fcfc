
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/store/layers/ngx_http_idem_outbox.c src/store/layers/ngx_http_idem_layer.c src/record/ngx_http_idem_claim.c */

/*
 * Operations that are cancelled while they are under way in the layers.
 * nginx keeps a request until its commit is answered, so that this can't be
 * provoked from outside: a commit that is cancelled all the same has run, and
 * is kept; nobody is called any more.
 *
 * The store inside never answers by itself; a zone of one record and what
 * else the outbox calls are stand-ins.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "observe/ngx_http_idem_events.h"
#include "observe/ngx_http_idem_log.h"
#include "observe/ngx_http_idem_metrics.h"
#include "store/layers/ngx_http_idem_layers.h"
#include "unit.h"


volatile ngx_msec_t   ngx_current_msec = 1000000;
volatile ngx_cycle_t *ngx_cycle;

static ngx_cycle_t  cycle;
static ngx_log_t    silent;

static ngx_http_idem_item_t    item;
static ngx_uint_t                     has_node, no_room;
static ngx_http_idem_zone_t    zone;
static ngx_slab_pool_t                pool;
static ngx_http_idem_outbox_sh_t  shared;
static ngx_http_idem_op_t     *inside;          /* what the store was asked */
static ngx_uint_t                     cancelled, called, failures, events,
                                      armed, checks_left, locked;


/* stand-ins: nginx */

void
ngx_log_error_core(ngx_uint_t level, ngx_log_t *log, ngx_err_t err,
    const char *fmt, ...)
{
}

u_char *
ngx_snprintf(u_char *buf, size_t max, const char *fmt, ...)
{
    return buf;
}

void *
ngx_alloc(size_t size, ngx_log_t *log)
{
    return malloc(size);
}


/* ... the error log */

void
ngx_http_idem_log_repeated(ngx_uint_t level, ngx_log_t *log, u_char *record,
    const char *fmt, ...)
{
}


/* ... the zone */

void
ngx_http_idem_zone_lock(ngx_http_idem_records_t *z)
{
    locked++;
}

void
ngx_http_idem_zone_unlock(ngx_http_idem_records_t *z)
{
    locked--;
}


ngx_http_idem_item_t *
ngx_http_idem_zone_find(ngx_http_idem_records_t *z, u_char *id)
{
    return has_node ? &item : NULL;
}

ngx_http_idem_item_t *
ngx_http_idem_zone_store(ngx_http_idem_records_t *z,
    ngx_http_idem_op_t *op, ngx_msec_t until, ngx_msec_t expires)
{
    if (no_room) {
        return NULL;
    }

    has_node = 1;
    zone.records = 1;
    item.until = until;
    item.expires = expires;
    item.u.locked_until = op->locked_until;
    ngx_memcpy(item.token, op->token, NGX_HTTP_IDEM_TOKEN_LEN);

    return &item;
}

void
ngx_http_idem_zone_found(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *n, ngx_http_idem_op_t *op)
{
    op->result = NGX_HTTP_IDEM_FOUND;
}

void
ngx_http_idem_zone_expire(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *n, ngx_msec_t expires)
{
    n->expires = expires;
}


/* ... what is told, and what the outbox does by itself */

void
ngx_http_idem_outbox_local_end(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *n, ngx_http_idem_op_t *op, ngx_msec_t until)
{
}


void
ngx_http_idem_metrics_count(ngx_http_idem_metrics_t *m,
    ngx_http_idem_count_e what)
{
    if (what == NGX_HTTP_IDEM_COUNT_COMMIT_FAILURES) {
        failures++;
    }
}

void
ngx_http_idem_store_event(ngx_http_idem_store_t *store,
    ngx_http_idem_event_e event, u_char *id, const char *word)
{
    events++;
}

/* ... timers, of which none is set */

ngx_rbtree_t  ngx_event_timer_rbtree;
void ngx_rbtree_delete(ngx_rbtree_t *tree, ngx_rbtree_node_t *node) {}

const ngx_http_idem_backend_t  ngx_http_idem_cache_backend;
const ngx_http_idem_backend_t  ngx_http_idem_breaker_backend;

ngx_int_t ngx_http_idem_outbox_admin(ngx_http_idem_op_t *op)
    { return NGX_OK; }
ngx_int_t ngx_http_idem_outbox_init_process(ngx_cycle_t *c,
    ngx_http_idem_store_t *s) { return NGX_OK; }
void ngx_http_idem_outbox_exit_process(ngx_cycle_t *c,
    ngx_http_idem_store_t *s) {}
ngx_uint_t ngx_http_idem_outbox_queue(ngx_http_idem_outbox_t *o,
    u_char *id, ngx_http_idem_outbox_cause_e cause) { return 0; }
void ngx_http_idem_outbox_queue_use(ngx_http_idem_outbox_t *o,
    ngx_uint_t n) {}
ngx_int_t ngx_http_idem_outbox_local_begin(
    ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op)
    { return NGX_OK; }
ngx_int_t ngx_http_idem_outbox_local_update(
    ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op)
    { return NGX_OK; }
ngx_int_t ngx_http_idem_outbox_local_watch(
    ngx_http_idem_op_t *op) { return NGX_AGAIN; }

void
ngx_http_idem_outbox_schedule(ngx_http_idem_outbox_t *o, ngx_msec_t delay)
{
    armed++;
}

ngx_int_t
ngx_http_idem_outbox_check(ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op)
{
    op->state_data = NULL;
    return NGX_AGAIN;
}

void
ngx_http_idem_outbox_check_cancel(ngx_http_idem_op_t *op)
{
    checks_left++;
}


/* ... a store that has been asked, and does not answer */

static ngx_int_t
inside_ask(ngx_http_idem_op_t *op)
{
    inside = op;
    return NGX_AGAIN;
}

static void
inside_cancel(ngx_http_idem_op_t *op)
{
    cancelled++;
    inside = NULL;
}

static ngx_int_t
inside_init(ngx_cycle_t *c, ngx_http_idem_store_t *s)
{
    return NGX_OK;
}

static void
inside_exit(ngx_cycle_t *c, ngx_http_idem_store_t *s)
{
}

static const ngx_http_idem_backend_t  inside_backend = {
    ngx_string("inside"), NULL, NULL, NULL, inside_init, inside_exit,
    inside_ask, inside_ask, inside_ask, inside_ask, inside_ask,
    inside_cancel, NULL, 1, NULL, 0
};

/* layers that are not here */

const ngx_http_idem_backend_t  ngx_http_idem_cache_backend;
const ngx_http_idem_backend_t  ngx_http_idem_breaker_backend;

/* a layer around the outbox, as the cache is */

static const ngx_http_idem_backend_t  outside_backend = {
    ngx_string("outside"), NULL, NULL, NULL,
    ngx_http_idem_layer_init_process,
    ngx_http_idem_layer_exit_process,
    ngx_http_idem_layer_pass, ngx_http_idem_layer_pass,
    ngx_http_idem_layer_pass, ngx_http_idem_layer_pass,
    ngx_http_idem_layer_pass, ngx_http_idem_layer_cancel,
    NULL, 1, NULL, 0
};


/* as in ..._store.c, without figures */

ngx_int_t
ngx_http_idem_store_submit(ngx_http_idem_op_t *op)
{
    ngx_int_t                       rc;
    const ngx_http_idem_backend_t  *b;

    b = op->store->backend;

    op->start = ngx_current_msec;
    op->error = NULL;

    rc = op->kind == NGX_HTTP_IDEM_OP_BEGIN ? b->begin(op)
         : op->kind == NGX_HTTP_IDEM_OP_COMMIT ? b->commit(op)
         : b->release(op);

    op->pending = (rc == NGX_AGAIN);

    return rc;
}

void
ngx_http_idem_store_complete(ngx_http_idem_op_t *op)
{
    op->pending = 0;
    op->handler(op);
}

void
ngx_http_idem_store_cancel(ngx_http_idem_op_t *op)
{
    if (op->pending) {
        op->pending = 0;
        op->store->backend->cancel(op);
    }
}


static void
handler(ngx_http_idem_op_t *op)
{
    called++;
}


int
main(void)
{
    ngx_http_idem_op_t       op;
    ngx_http_idem_layer_t    outer;
    ngx_http_idem_store_t    store_in, store_box, store_out;
    ngx_http_idem_outbox_t   o;

    plan(25);

    cycle.log = &silent;
    ngx_cycle = &cycle;

    ngx_memzero(&store_in, sizeof(ngx_http_idem_store_t));
    ngx_memzero(&o, sizeof(ngx_http_idem_outbox_t));

    store_box = store_in;
    store_out = store_in;

    store_in.backend = &inside_backend;
    store_box.backend = &ngx_http_idem_outbox_backend;
    store_box.conf = &o;
    store_out.backend = &outside_backend;
    store_out.conf = &outer;

    outer.inner = &store_box;
    outer.named = &store_out;
    o.layer.inner = &store_in;
    o.layer.named = &store_out;
    o.z.zone = &zone;
    o.z.shpool = &pool;
    o.shared.data = &shared;

    ngx_memzero(&op, sizeof(ngx_http_idem_op_t));

    op.kind = NGX_HTTP_IDEM_OP_COMMIT;
    op.store = &store_out;
    op.log = &silent;
    op.handler = handler;
    op.lease = 30000;
    op.locked_until = ngx_current_msec + 20000;
    op.ttl = 60000;
    ngx_memset(op.token, 'a', NGX_HTTP_IDEM_TOKEN_LEN);

    /* a commit */

    is(ngx_http_idem_store_submit(&op), NGX_AGAIN, "under way");
    ok(inside != NULL, "in the store");
    ngx_current_msec += 700;
    ngx_http_idem_store_cancel(&op);
    is(cancelled, 1, "cancelled there");
    is(called, 0, "nobody is called");
    is(op.pending, 0, "it is over");
    is(has_node, 1, "it ran: it is kept");
    is(item.u.locked_until, 1020000, "for certain as long as its lock lasts");
    is(item.until, 1060000, "its time counts from when it was sent");
    ok(ngx_memcmp(item.token, op.token, NGX_HTTP_IDEM_TOKEN_LEN) == 0,
       "under its token");
    is(shared.counters.kept, 1, "counted as kept");
    is(failures, 1, "and as a failure");
    is(events, 1, "an event tells it");
    ok(armed > 0, "it will be tried again");
    is(locked, 0, "the zone is not locked");

    /* ... that finds no room: lost, but not in silence */

    has_node = 0;
    zone.records = 0;
    no_room = 1;

    is(ngx_http_idem_store_submit(&op), NGX_AGAIN, "another");
    ngx_http_idem_store_cancel(&op);
    is(has_node, 0, "there is no room for it");
    is(shared.counters.dropped, 1, "counted as dropped");
    is(failures, 2, "and as a failure");

    /* a release and a begin leave nothing */

    no_room = 0;
    op.kind = NGX_HTTP_IDEM_OP_RELEASE;

    (void) ngx_http_idem_store_submit(&op);
    ngx_http_idem_store_cancel(&op);
    is(has_node, 0, "a release is not kept");

    op.kind = NGX_HTTP_IDEM_OP_BEGIN;

    (void) ngx_http_idem_store_submit(&op);
    ngx_http_idem_store_cancel(&op);
    is(cancelled, 4, "a begin is cancelled in the store, which gives it back");
    is(checks_left, 0, "not in a check");

    /* a begin that waits for a kept commit to be tried */

    has_node = 1;
    zone.records = 1;
    item.until = ngx_current_msec + 1000;
    item.u.locked_until = ngx_current_msec;
    inside = NULL;

    is(ngx_http_idem_store_submit(&op), NGX_AGAIN, "in doubt: it waits");
    ok(inside == NULL, "and asks nothing itself");
    ngx_http_idem_store_cancel(&op);
    is(checks_left, 1, "it leaves the check");
    is(called, 0, "nobody is called, ever");

    ngx_http_idem_layer_exit_process(&cycle, &store_out);

    return done();
}
