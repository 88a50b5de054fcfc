
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The fallback: a store of two.  The first is asked; when it does not answer,
 * the ledger is asked in its place, mostly the embedded store.
 *
 * What begin learned from one of the two belongs there: op->where names it,
 * and the renewals, the commit, the release and the waiting of that request
 * go to it.  In particular, who waits for a holder in the first store does
 * not run because that store is away for a moment.
 *
 * While the ledger may hold unexpired records, which a time in shared memory
 * tells, begin asks both, the ledger first: a record in either counts.  So does
 * each begin of one that waits, wherever the holder is that it knows of.  Who
 * then becomes the holder in the first store is the holder in both: to one
 * worker the first store may be there, to another it is not yet, and the
 * ledger is what all of them see.  When it is done, the ledger has a copy for
 * a short while, which does not count as one of its records.
 *
 * A first store that is slow may answer after the ledger came into use, or
 * after the lock there ended.  Then the ledger is asked once more before
 * anybody runs: who is the holder in it may have begun meanwhile.
 *
 * Called by the core as the store; calls both, and ..._fallback_both.c for who
 * holds both.  ..._fallback_conf.c makes it.
 * docs/layers.md says what it can't promise.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_fallback.h"


/* notes of a begin: what is known of the ledger by then */

#define NGX_HTTP_IDEM_FALLBACK_HELD       0x01         /* its lock is ours   */
#define NGX_HTTP_IDEM_FALLBACK_ABANDONED  0x02
#define NGX_HTTP_IDEM_FALLBACK_EXPIRED    0x04
#define NGX_HTTP_IDEM_FALLBACK_FULL       0x08

/* ... and of its asker: it waits for a holder in the first store, or here */

#define NGX_HTTP_IDEM_FALLBACK_WAITS      0x10
#define NGX_HTTP_IDEM_FALLBACK_WAITS_HERE 0x20

/* ... and that the lock in the first store is ours */

#define NGX_HTTP_IDEM_FALLBACK_TAKEN      0x40


static ngx_int_t ngx_http_idem_fallback_begin(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_fallback_pass(ngx_http_idem_op_t *op);
static void ngx_http_idem_fallback_cancel(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_fallback_ask_primary(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_ask_ledger(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_looked(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_begun(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_uint_t ngx_http_idem_fallback_is_late(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_ask_late(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_late(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_instead(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_passed(
    ngx_http_idem_op_t *op, uintptr_t note);
static void ngx_http_idem_fallback_flags(ngx_http_idem_op_t *op,
    uintptr_t note);
static ngx_uint_t ngx_http_idem_fallback_in_use(ngx_http_idem_fallback_t *f);


const ngx_http_idem_backend_t
    ngx_http_idem_fallback_backend =
{
    ngx_string("fallback"),
    NULL,
    NULL,
    NULL,
    NULL,                                    /* both are stores on their own */
    NULL,
    ngx_http_idem_fallback_begin,
    ngx_http_idem_fallback_pass,             /* renew   */
    ngx_http_idem_fallback_pass,             /* commit  */
    ngx_http_idem_fallback_pass,             /* release */
    ngx_http_idem_fallback_pass,             /* watch   */
    ngx_http_idem_fallback_cancel,
    NULL,                                  /* stats */
    1,
    NULL,                                    /* admin: each by its name */
    NGX_HTTP_IDEM_TRAIL_NONE
};


#define ngx_http_idem_fallback_sh(f)                                          \
    ((ngx_http_idem_fallback_sh_t *) (f)->shared.data)


static ngx_int_t
ngx_http_idem_fallback_begin(ngx_http_idem_op_t *op)
{
    uintptr_t                  note;
    ngx_http_idem_op_t        *child;
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    note = (op->where == &f->primary) ? NGX_HTTP_IDEM_FALLBACK_WAITS
           : (op->where == f->ledger)
             ? NGX_HTTP_IDEM_FALLBACK_WAITS_HERE : 0;

    op->where = NULL;

    if (op->unprotected) {

        /* neither answers: locks are laid in the outbox of the first */

        return ngx_http_idem_layer_ask(op, &f->primary, NULL, 0);
    }

    if (!ngx_http_idem_fallback_in_use(f)) {
        return ngx_http_idem_fallback_ask_primary(op, note);
    }

    child = ngx_http_idem_layer_child(op, f->ledger,
                                      ngx_http_idem_fallback_looked, note);
    if (child == NULL) {
        op->result = NGX_HTTP_IDEM_ERROR;
        op->error = "no memory for an operation";
        return NGX_OK;
    }

    /* nothing ran yet: a worker that is killed now leaves nothing unknown */

    child->hold = 0;

    /* nor is it missed where it was not before */

    if (note & NGX_HTTP_IDEM_FALLBACK_WAITS) {
        child->again = 0;
    }

    return ngx_http_idem_layer_submit(child);
}


static ngx_int_t
ngx_http_idem_fallback_ask_primary(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_op_t        *child;
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    child = ngx_http_idem_layer_child(op, &f->primary,
                                      ngx_http_idem_fallback_begun, note);
    if (child == NULL) {
        op->result = NGX_HTTP_IDEM_ERROR;
        op->error = "no memory for an operation";

        return ngx_http_idem_fallback_begun(op, note);
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_WAITS_HERE) {
        child->again = 0;
    }

    return ngx_http_idem_layer_submit(child);
}


static ngx_int_t
ngx_http_idem_fallback_ask_ledger(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    return ngx_http_idem_layer_ask(op, f->ledger,
                                   ngx_http_idem_fallback_instead, note);
}


/* the ledger was asked first */

static ngx_int_t
ngx_http_idem_fallback_looked(ngx_http_idem_op_t *op, uintptr_t note)
{
    switch (op->result) {

    case NGX_HTTP_IDEM_FOUND:
        op->where = ngx_http_idem_fallback_conf(op)->ledger;
        return NGX_OK;

    case NGX_HTTP_IDEM_GONE:
        return NGX_OK;

    case NGX_HTTP_IDEM_ACQUIRED:
        note |= NGX_HTTP_IDEM_FALLBACK_HELD;

        if (op->abandoned) {
            note |= NGX_HTTP_IDEM_FALLBACK_ABANDONED;
        }

        if (op->expired) {
            note |= NGX_HTTP_IDEM_FALLBACK_EXPIRED;
        }

        return ngx_http_idem_fallback_ask_primary(op, note);

    case NGX_HTTP_IDEM_FULL:

        /* there is none, but nor is there room for one */

        return ngx_http_idem_fallback_ask_primary(op,
                                   note | NGX_HTTP_IDEM_FALLBACK_FULL);

    default: /* it may have run: what the ledger holds can't be told */
        op->error = "the fallback, which is in use, fails";
        return NGX_OK;
    }
}


/* the first store was asked */

static ngx_int_t
ngx_http_idem_fallback_begun(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    if (ngx_http_idem_layer_answered(op)) {
        op->where = &f->primary;

        if (ngx_http_idem_fallback_is_late(op, note)) {
            return ngx_http_idem_fallback_ask_late(op, note);
        }

        if (note & NGX_HTTP_IDEM_FALLBACK_HELD) {

            if (op->result == NGX_HTTP_IDEM_ACQUIRED) {
                op->where = &f->both;
                op->asked = op->start;

            } else {
                ngx_http_idem_fallback_give_back(op, f->ledger);
            }
        }

        ngx_http_idem_fallback_flags(op, note);

        return NGX_OK;
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_WAITS) {

        /* its holder was there: no other answer will do */

        if (note & NGX_HTTP_IDEM_FALLBACK_HELD) {
            ngx_http_idem_fallback_give_back(op, f->ledger);
        }

        return NGX_OK;
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_FULL) {
        op->error = "no answer, and the fallback is full";
        return NGX_OK;
    }

    if (f->logged != ngx_time()) {
        f->logged = ngx_time();

        ngx_log_error(NGX_LOG_WARN, op->log, 0,
                      "idempotency: store \"%V\" failed: %s; \"%V\" is asked "
                      "in its place", &f->store.name,
                      op->error ? op->error : "no answer",
                      &f->ledger->name);
    }

    /* before it may hold one: others look at that without a lock */

    ngx_http_idem_fallback_used(f, ngx_http_idem_lock_life(op));

    /* a lock that is ours already is taken once more, and for what it is */

    return ngx_http_idem_fallback_ask_ledger(op, note);
}


/*
 * The first store let it run, and the ledger was not asked, since nothing was
 * in it then; or the lock that is ours there may have ended meanwhile
 */

static ngx_uint_t
ngx_http_idem_fallback_is_late(ngx_http_idem_op_t *op, uintptr_t note)
{
    if (op->result != NGX_HTTP_IDEM_ACQUIRED
        || (note & NGX_HTTP_IDEM_FALLBACK_FULL))
    {
        return 0;
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_HELD) {
        return ngx_current_msec - op->start >= op->lease / 2;
    }

    return ngx_http_idem_fallback_in_use(ngx_http_idem_fallback_conf(op));
}


static ngx_int_t
ngx_http_idem_fallback_ask_late(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_op_t  *child;

    note |= NGX_HTTP_IDEM_FALLBACK_TAKEN;

    if (op->abandoned) {
        note |= NGX_HTTP_IDEM_FALLBACK_ABANDONED;
    }

    if (op->expired) {
        note |= NGX_HTTP_IDEM_FALLBACK_EXPIRED;
    }

    child = ngx_http_idem_layer_child(op,
                               ngx_http_idem_fallback_conf(op)->ledger,
                               ngx_http_idem_fallback_late, note);
    if (child == NULL) {
        op->result = NGX_HTTP_IDEM_ERROR;

        return ngx_http_idem_fallback_late(op, note);
    }

    child->hold = 0;
    child->again = 0;

    return ngx_http_idem_layer_submit(child);
}


static ngx_int_t
ngx_http_idem_fallback_late(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    switch (op->result) {

    case NGX_HTTP_IDEM_ACQUIRED:
        op->where = &f->both;
        op->asked = op->start;
        break;

    case NGX_HTTP_IDEM_FULL:
        op->result = NGX_HTTP_IDEM_ACQUIRED;
        op->where = &f->primary;
        op->asked = op->start;
        break;

    default: /* NGX_HTTP_IDEM_FOUND, NGX_HTTP_IDEM_ERROR */
        ngx_http_idem_fallback_give_back(op, &f->primary);

        op->where = f->ledger;

        if (op->result != NGX_HTTP_IDEM_FOUND) {
            op->where = NULL;
            op->error = "the fallback, which is in use, fails";
        }
    }

    ngx_http_idem_fallback_flags(op, note);

    return NGX_OK;
}


/* the ledger was asked in place of the first store */

static ngx_int_t
ngx_http_idem_fallback_instead(ngx_http_idem_op_t *op, uintptr_t note)
{
    switch (op->result) {

    case NGX_HTTP_IDEM_ACQUIRED:
    case NGX_HTTP_IDEM_FOUND:
    case NGX_HTTP_IDEM_GONE:
        ngx_http_idem_fallback_flags(op, note);

        op->where = ngx_http_idem_fallback_conf(op)->ledger;
        break;

    default:
        op->result = NGX_HTTP_IDEM_ERROR;
        op->error = "no answer, and the fallback fails, too";
        break;
    }

    return NGX_OK;
}


static void
ngx_http_idem_fallback_flags(ngx_http_idem_op_t *op, uintptr_t note)
{
    if (op->result != NGX_HTTP_IDEM_ACQUIRED) {
        return;
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_ABANDONED) {
        op->abandoned = 1;
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_EXPIRED) {
        op->expired = 1;
    }
}


/* what follows a begin goes to where its answer came from */

static ngx_int_t
ngx_http_idem_fallback_pass(ngx_http_idem_op_t *op)
{
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    if (op->where == &f->both) {
        return ngx_http_idem_fallback_both(op);
    }

    return ngx_http_idem_layer_ask(op,
                                   op->where == f->ledger
                                       ? f->ledger : &f->primary,
                                   ngx_http_idem_fallback_passed,
                                   0);
}


static ngx_int_t
ngx_http_idem_fallback_passed(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    if (op->where != f->ledger) {
        return NGX_OK;
    }

    switch (op->kind) {

    case NGX_HTTP_IDEM_OP_RENEW:
        ngx_http_idem_fallback_used(f, ngx_http_idem_lock_life(op));
        break;

    case NGX_HTTP_IDEM_OP_COMMIT:
        ngx_http_idem_fallback_used(f, ngx_http_idem_record_life(op));
        break;

    default:
        break;
    }

    return NGX_OK;
}


static void
ngx_http_idem_fallback_cancel(ngx_http_idem_op_t *op)
{
    uintptr_t                  note;
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);
    note = ngx_http_idem_layer_note(op);

    ngx_http_idem_layer_cancel(op);

    if (op->kind != NGX_HTTP_IDEM_OP_BEGIN) {
        return;
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_HELD) {
        ngx_http_idem_fallback_give_back(op, f->ledger);
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_TAKEN) {
        ngx_http_idem_fallback_give_back(op, &f->primary);
    }
}


void
ngx_http_idem_fallback_give_back(ngx_http_idem_op_t *op,
    ngx_http_idem_store_t *store)
{
    ngx_http_idem_op_t  *release;

    release = ngx_http_idem_op_detached(store, NGX_HTTP_IDEM_OP_RELEASE,
                                        op->id, op->token);
    if (release) {
        release->lease = op->lease;
        release->ttl = op->ttl;
        release->hold = op->hold;
        release->laid.stray = op->laid.stray;

        /* under hold it does not end by itself */

        release->locked_until = ngx_current_msec
                                + (op->hold
                                   ? ngx_http_idem_lock_life(op)
                                   : op->lease);

        ngx_http_idem_op_detach(release);
    }
}


static ngx_uint_t
ngx_http_idem_fallback_in_use(ngx_http_idem_fallback_t *f)
{
    ngx_atomic_uint_t             until;
    ngx_http_idem_fallback_sh_t  *sh;

    sh = ngx_http_idem_fallback_sh(f);
    until = sh->until;

    if (until == 0) {
        return 0;
    }

    if ((ngx_msec_int_t) ((ngx_msec_t) until - ngx_current_msec) > 0) {
        return 1;
    }

    /* a time that is long past would look like one to come, some day */

    (void) ngx_atomic_cmp_set(&sh->until, until, 0);

    return 0;
}


void
ngx_http_idem_fallback_used(ngx_http_idem_fallback_t *f, ngx_msec_t life)
{
    ngx_msec_t                    until;
    ngx_atomic_uint_t             old;
    ngx_http_idem_fallback_sh_t  *sh;

    sh = ngx_http_idem_fallback_sh(f);

    until = ngx_current_msec + life;
    until = until ? until : 1;

    do {
        old = sh->until;

        if (old
            && (ngx_msec_int_t) (until - (ngx_msec_t) old) <= 0)
        {
            return;
        }

    } while (!ngx_atomic_cmp_set(&sh->until, old, until));
}
