
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The fallback: a store that combines two.  The primary is asked; when it
 * fails, the ledger is asked in its place, usually the embedded store.
 *
 * A request stays with the store whose answer to its begin counted: op->where
 * names it, and renewals, commit, release and watches of that request go
 * there.  In particular, a waiter whose holder is in the primary does not run
 * because the primary is down for a moment.
 *
 * While the ledger may have unexpired records, which a time in shared memory
 * tells, begin asks both, the ledger first: a record in either counts.  The
 * same holds for each begin of a waiter, wherever its holder is.  A request
 * that then acquires the lock in the primary holds the lock in both: one
 * worker may reach the primary while another does not yet, but all of them
 * see the ledger.  After the commit, the ledger has a copy for a short while,
 * which does not count as one of its records.
 *
 * A slow primary may answer after the ledger came into use, or after the lock
 * in the ledger expired.  Then the ledger is asked once more before the
 * request runs: another holder may have begun there in the meantime.
 *
 * Called by the core as the store; calls both stores.  ..._fallback_conf.c
 * creates it.  docs/layers.md lists what it can't guarantee.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layers.h"


/* notes of a begin: what the ledger answered */

#define NGX_HTTP_IDEM_FALLBACK_HOLDS_LEDGER   0x01     /* we hold its lock */
#define NGX_HTTP_IDEM_FALLBACK_ABANDONED      0x02
#define NGX_HTTP_IDEM_FALLBACK_EXPIRED        0x04
#define NGX_HTTP_IDEM_FALLBACK_FULL           0x08

/* ... the waiter's holder is in the primary, or in the ledger */

#define NGX_HTTP_IDEM_FALLBACK_WAITS_PRIMARY  0x10
#define NGX_HTTP_IDEM_FALLBACK_WAITS_LEDGER   0x20

/* ... we hold the lock in the primary */

#define NGX_HTTP_IDEM_FALLBACK_HOLDS_PRIMARY  0x40

/* ... it has the record, which may be a part of one in the primary */

#define NGX_HTTP_IDEM_FALLBACK_IN_PART        0x80


static ngx_int_t ngx_http_idem_fallback_begin(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_fallback_pass(ngx_http_idem_op_t *op);
static void ngx_http_idem_fallback_cancel(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_fallback_ask_primary(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_ledger_checked(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_uint_t ngx_http_idem_fallback_in_part(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_primary_begun(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_primary_has(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_uint_t ngx_http_idem_fallback_needs_recheck(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_rechecked(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_ledger_begun(
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
    NULL,                                    /* init, exit: both are stores of
                                                their own */
    NULL,
    ngx_http_idem_fallback_begin,
    ngx_http_idem_fallback_pass,             /* renew */
    ngx_http_idem_fallback_pass,             /* commit */
    ngx_http_idem_fallback_pass,             /* release */
    ngx_http_idem_fallback_pass,             /* watch */
    ngx_http_idem_fallback_cancel,
    NULL,                                  /* stats */
    1,
    NULL,                                    /* admin: each by its own name */
    NGX_HTTP_IDEM_TRAIL_NONE
};


/* how the lock was acquired, as a note */
#define ngx_http_idem_fallback_note(op)                                       \
    (((op)->abandoned ? NGX_HTTP_IDEM_FALLBACK_ABANDONED : 0)                 \
     | ((op)->expired ? NGX_HTTP_IDEM_FALLBACK_EXPIRED : 0))

#define ngx_http_idem_fallback_sh(f)                                          \
    ((ngx_http_idem_fallback_sh_t *) (f)->shared.data)


static ngx_int_t
ngx_http_idem_fallback_begin(ngx_http_idem_op_t *op)
{
    uintptr_t                  note;
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    note = (op->where == &f->primary) ? NGX_HTTP_IDEM_FALLBACK_WAITS_PRIMARY
           : (op->where == f->ledger)
             ? NGX_HTTP_IDEM_FALLBACK_WAITS_LEDGER : 0;

    op->where = NULL;

    if (op->unprotected) {

        /* neither answers: the outbox of the primary has the locks */

        return ngx_http_idem_layer_ask(op, &f->primary, NULL, 0);
    }

    if (!ngx_http_idem_fallback_in_use(f)) {
        return ngx_http_idem_fallback_ask_primary(op, note);
    }

    /*
     * Nothing has run yet: no outcome is unknown if the worker is killed.  If
     * the record is in the primary, the ledger need not have it.
     */

    return ngx_http_idem_fallback_ask(op, f->ledger,
                          ngx_http_idem_fallback_ledger_checked, note, 0,
                          op->is_waiter
                          && !(note & NGX_HTTP_IDEM_FALLBACK_WAITS_PRIMARY));
}


static ngx_int_t
ngx_http_idem_fallback_ask_primary(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    if (note & NGX_HTTP_IDEM_FALLBACK_IN_PART) {

        /* only asks: as a waiter it does not create the record */

        return ngx_http_idem_fallback_ask(op, &f->primary,
                              ngx_http_idem_fallback_primary_has, note, 0, 1);
    }

    return ngx_http_idem_fallback_ask(op, &f->primary,
                          ngx_http_idem_fallback_primary_begun, note,
                          op->hold,
                          op->is_waiter
                          && !(note & NGX_HTTP_IDEM_FALLBACK_WAITS_LEDGER));
}


ngx_int_t
ngx_http_idem_fallback_ask(ngx_http_idem_op_t *op,
    ngx_http_idem_store_t *store, ngx_http_idem_layer_pt done, uintptr_t note,
    ngx_uint_t hold, ngx_uint_t is_waiter)
{
    ngx_http_idem_op_t  *child;

    child = ngx_http_idem_layer_child(op, store, done, note);
    if (child == NULL) {
        return done(op, note);
    }

    child->hold = hold;
    child->is_waiter = is_waiter;

    return ngx_http_idem_layer_submit(child);
}


/* the ledger answered; it was asked first */

static ngx_int_t
ngx_http_idem_fallback_ledger_checked(ngx_http_idem_op_t *op, uintptr_t note)
{
    switch (op->result) {

    case NGX_HTTP_IDEM_FOUND:

        if (ngx_http_idem_fallback_in_part(op, note)) {
            return ngx_http_idem_fallback_ask_primary(op,
                                   note | NGX_HTTP_IDEM_FALLBACK_IN_PART);
        }

        op->where = ngx_http_idem_fallback_conf(op)->ledger;
        return NGX_OK;

    case NGX_HTTP_IDEM_GONE:
        return NGX_OK;

    case NGX_HTTP_IDEM_ACQUIRED:
        return ngx_http_idem_fallback_ask_primary(op,
                                   note | NGX_HTTP_IDEM_FALLBACK_HOLDS_LEDGER
                                   | ngx_http_idem_fallback_note(op));

    case NGX_HTTP_IDEM_FULL:

        /* the ledger has no record, and no room for one */

        return ngx_http_idem_fallback_ask_primary(op,
                                   note | NGX_HTTP_IDEM_FALLBACK_FULL);

    default: /* the request may have run: the ledger can't be read */
        op->error = "the fallback, which is in use, fails";
        return NGX_OK;
    }
}


/*
 * A lock in the ledger may be that of a request which only asks whether it may
 * run, while the holder is in the primary: who takes it for the holder would
 * run when the primary is down.  A response that the ledger lacks may be that
 * of a copy, and the primary has it.
 */

static ngx_uint_t
ngx_http_idem_fallback_in_part(ngx_http_idem_op_t *op, uintptr_t note)
{
    if (op->found.state == NGX_HTTP_IDEM_IN_PROGRESS) {
        return !(note & NGX_HTTP_IDEM_FALLBACK_WAITS_LEDGER);
    }

    return op->found.state == NGX_HTTP_IDEM_UNUSABLE
           && (op->found.reason == NGX_HTTP_IDEM_REASON_EVICTED
               || op->found.reason == NGX_HTTP_IDEM_REASON_NO_ROOM);
}


/* the primary answered, or failed */

static ngx_int_t
ngx_http_idem_fallback_primary_begun(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    if (ngx_http_idem_layer_answered(op)) {
        op->where = &f->primary;

        if (ngx_http_idem_fallback_needs_recheck(op, note)) {
            return ngx_http_idem_fallback_ask(op, f->ledger,
                                   ngx_http_idem_fallback_rechecked,
                                   note | NGX_HTTP_IDEM_FALLBACK_HOLDS_PRIMARY
                                   | ngx_http_idem_fallback_note(op), 0, 0);
        }

        if (note & NGX_HTTP_IDEM_FALLBACK_HOLDS_LEDGER) {

            if (op->result == NGX_HTTP_IDEM_ACQUIRED) {
                op->where = &f->both;
                op->sent_at = op->start;

            } else {
                ngx_http_idem_fallback_give_back(op, f->ledger);
            }
        }

        ngx_http_idem_fallback_flags(op, note);

        return NGX_OK;
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_WAITS_PRIMARY) {

        /* the holder is in the primary: only the primary can tell */

        if (note & NGX_HTTP_IDEM_FALLBACK_HOLDS_LEDGER) {
            ngx_http_idem_fallback_give_back(op, f->ledger);
        }

        return NGX_OK;
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_FULL) {
        op->error = "no answer, and the fallback is full";
        return NGX_OK;
    }

    ngx_http_idem_store_event(f->declared, NGX_HTTP_IDEM_EVENT_STORAGE_ERROR,
                              op->id, op->error);

    if (f->logged != ngx_time()) {
        f->logged = ngx_time();

        ngx_log_error(NGX_LOG_WARN, op->log, 0,
                      "idempotency: store \"%V\" failed: %s; \"%V\" is asked "
                      "in its place", &f->store.name,
                      op->error ? op->error : "no answer",
                      &f->ledger->name);
    }

    /* first, since other workers read the time without a lock */

    ngx_http_idem_fallback_used(f, ngx_http_idem_lock_life(op));

    /* if we hold the lock there, it is acquired again with op->hold */

    return ngx_http_idem_layer_ask(op, f->ledger,
                                   ngx_http_idem_fallback_ledger_begun, note);
}


/*
 * The ledger has the record, and the primary was asked what it has.  If it has
 * nothing, op->found is still that of the ledger.
 */

static ngx_int_t
ngx_http_idem_fallback_primary_has(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    if (op->result == NGX_HTTP_IDEM_FOUND) {
        op->where = &f->primary;
        return NGX_OK;
    }

    if (op->result == NGX_HTTP_IDEM_ACQUIRED) {
        ngx_http_idem_fallback_give_back(op, &f->primary);

    } else if (!ngx_http_idem_layer_answered(op)
               && op->found.state == NGX_HTTP_IDEM_IN_PROGRESS
               && (note & NGX_HTTP_IDEM_FALLBACK_WAITS_PRIMARY))
    {
        /* the holder is in the primary: only the primary can tell */
        return NGX_OK;
    }

    op->result = NGX_HTTP_IDEM_FOUND;
    op->where = f->ledger;
    op->abandoned = 0;
    op->expired = 0;

    return NGX_OK;
}


/*
 * The primary granted the lock, and the ledger was not asked, since it was
 * empty then; or our lock in the ledger may have expired in the meantime.
 */

static ngx_uint_t
ngx_http_idem_fallback_needs_recheck(ngx_http_idem_op_t *op, uintptr_t note)
{
    if (op->result != NGX_HTTP_IDEM_ACQUIRED
        || (note & NGX_HTTP_IDEM_FALLBACK_FULL))
    {
        return 0;
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_HOLDS_LEDGER) {
        return ngx_current_msec - op->start >= op->lease / 2;
    }

    return ngx_http_idem_fallback_in_use(ngx_http_idem_fallback_conf(op));
}


static ngx_int_t
ngx_http_idem_fallback_rechecked(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    switch (op->result) {

    case NGX_HTTP_IDEM_ACQUIRED:
        op->where = &f->both;
        op->sent_at = op->start;
        break;

    case NGX_HTTP_IDEM_FULL:
        op->result = NGX_HTTP_IDEM_ACQUIRED;
        op->where = &f->primary;
        op->sent_at = op->start;
        break;

    case NGX_HTTP_IDEM_FOUND:
        ngx_http_idem_fallback_give_back(op, &f->primary);

        op->where = f->ledger;
        break;

    default: /* NGX_HTTP_IDEM_ERROR */
        ngx_http_idem_fallback_give_back(op, &f->primary);

        if (note & NGX_HTTP_IDEM_FALLBACK_HOLDS_LEDGER) {
            ngx_http_idem_fallback_give_back(op, f->ledger);
        }

        op->where = NULL;
        op->error = "the fallback, which is in use, fails";
    }

    ngx_http_idem_fallback_flags(op, note);

    return NGX_OK;
}


/* the ledger was asked because the primary failed */

static ngx_int_t
ngx_http_idem_fallback_ledger_begun(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    switch (op->result) {

    case NGX_HTTP_IDEM_ACQUIRED:
    case NGX_HTTP_IDEM_FOUND:
    case NGX_HTTP_IDEM_GONE:
        ngx_http_idem_fallback_flags(op, note);

        op->where = f->ledger;
        break;

    default:

        /* the lock that it granted before */

        if (note & NGX_HTTP_IDEM_FALLBACK_HOLDS_LEDGER) {
            ngx_http_idem_fallback_give_back(op, f->ledger);
        }

        ngx_http_idem_op_error(op, "no answer, and the fallback fails, too");
        break;
    }

    return NGX_OK;
}


static void
ngx_http_idem_fallback_flags(ngx_http_idem_op_t *op, uintptr_t note)
{
    if (op->result == NGX_HTTP_IDEM_ACQUIRED) {
        op->abandoned |= ((note & NGX_HTTP_IDEM_FALLBACK_ABANDONED) != 0);
        op->expired |= ((note & NGX_HTTP_IDEM_FALLBACK_EXPIRED) != 0);
    }
}


/* operations after begin go to the store that answered it */

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

    if (op->kind == NGX_HTTP_IDEM_OP_RENEW) {
        ngx_http_idem_fallback_used(f, ngx_http_idem_lock_life(op));

    } else if (op->kind == NGX_HTTP_IDEM_OP_COMMIT) {
        ngx_http_idem_fallback_used(f, ngx_http_idem_record_life(op));
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

        if (op->where == &f->both) {
            ngx_http_idem_fallback_both_end(note);
        }

        return;
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_HOLDS_LEDGER) {
        ngx_http_idem_fallback_give_back(op, f->ledger);
    }

    if (note & NGX_HTTP_IDEM_FALLBACK_HOLDS_PRIMARY) {
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

        /* beside one in the primary, a lock in the ledger is not under hold */

        release->hold = (op->hold
                         && store != ngx_http_idem_fallback_conf(op)->ledger);
        release->lease = op->lease;
        release->ttl = op->ttl;
        release->lock.stray = op->lock.stray;

        (void) ngx_http_idem_op_detach(release);
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

    /* an old time would become a future one when ngx_msec_t wraps */

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

        if (old && (ngx_msec_int_t) (until - (ngx_msec_t) old) <= 0) {
            return;
        }

    } while (!ngx_atomic_cmp_set(&sh->until, old, until));
}
