
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The operations of a remote store, whichever backend it has: how they
 * complete, and what is sent again by itself.
 *
 * Every operation can be resent: the token identifies the owner of a lock.
 * A begin that is abandoned after it was sent is followed by a release of its
 * token, and a release that failed by another one, which is retried for as
 * long as the lease could last.  Further ones also follow if a delayed copy of
 * the begin or of a renewal may still write the lock; under hold another worker
 * sends them if this one exits (..._orphans.c).
 *
 * A watch is queued before it is sent, so that a notification that overtakes
 * the reply finds the watch.
 *
 * Called by the backends; calls their connections.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/ngx_http_idem_store.h"


/*
 * maximum of outstanding releases of abandoned begins; leases end the rest,
 * and under hold the log says that there is a rest
 */
#define NGX_HTTP_IDEM_UNDOS     8192

/* how often each is sent once half of that number are outstanding */
#define NGX_HTTP_IDEM_UNDO_N    4

/* the delay before each next one doubles, up to this attempt */
#define NGX_HTTP_IDEM_UNDO_MAX  20

/* ... and up to this multiple of "timeout" if the server refused the last */
#define NGX_HTTP_IDEM_UNDO_REFUSED  4

/* interval of looking for locks of workers that are gone, ms */
#define NGX_HTTP_IDEM_ADOPT     1000

/* locks taken over at once, and the interval while there are more, ms */
#define NGX_HTTP_IDEM_ADOPT_N     256
#define NGX_HTTP_IDEM_ADOPT_MORE  10


static void ngx_http_idem_remote_time_stop(ngx_http_idem_op_t *op);
static void ngx_http_idem_remote_timer_handler(ngx_event_t *ev);
static void ngx_http_idem_remote_overdue(ngx_event_t *ev);
static ngx_uint_t ngx_http_idem_remote_leave(ngx_http_idem_op_t *op);
static void ngx_http_idem_remote_repeated(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_remote_end(ngx_http_idem_op_t *op);
static void ngx_http_idem_remote_undo(ngx_http_idem_op_t *locked);
static void ngx_http_idem_remote_undo_expired(ngx_http_idem_op_t *op);
static void ngx_http_idem_remote_undo_start(
    ngx_http_idem_remote_t *remote, u_char *id, u_char *token,
    ngx_msec_t delay, ngx_msec_t life, ngx_uint_t hold, ngx_uint_t adopted);
static void ngx_http_idem_remote_stuck(ngx_http_idem_remote_t *remote,
    const char *what);
static void ngx_http_idem_remote_undo_due(ngx_http_idem_op_t *op,
    ngx_msec_t delay, ngx_uint_t released);
static void ngx_http_idem_remote_adopt(ngx_event_t *ev);
static ngx_int_t ngx_http_idem_remote_undo_again(ngx_http_idem_op_t *op);
static void ngx_http_idem_remote_undo_later(ngx_http_idem_op_t *op,
    ngx_msec_t delay);
static void ngx_http_idem_remote_undo_handler(ngx_event_t *ev);
static void ngx_http_idem_remote_unwatch(ngx_http_idem_op_t *op);


void
ngx_http_idem_remote_init(ngx_http_idem_remote_t *remote,
    const ngx_http_idem_remote_type_t *type, ngx_http_idem_store_t *store,
    ngx_msec_t timeout)
{
    remote->type = type;
    remote->store = store;
    remote->timeout = timeout;

    ngx_http_idem_polls_init(&remote->polls);

    ngx_queue_init(&remote->due);
    ngx_housekeeping_init(&remote->overdue, ngx_http_idem_remote_overdue,
                          remote);

    ngx_housekeeping_init(&remote->adopt, ngx_http_idem_remote_adopt, remote);
    ngx_add_timer(&remote->adopt, NGX_HTTP_IDEM_ADOPT);
}


void
ngx_http_idem_remote_exit(ngx_http_idem_remote_t *remote)
{
    ngx_housekeeping_stop(&remote->overdue);
    ngx_housekeeping_stop(&remote->adopt);
}


ngx_int_t
ngx_http_idem_remote_ask(ngx_http_idem_op_t *op)
{
    ngx_http_idem_remote_t  *remote;

    remote = ngx_http_idem_remote(op);

    if (ngx_http_idem_remote_is_undo(op) && op->ttl) {
        ngx_http_idem_remote_undo_later(op, op->ttl);
        return NGX_AGAIN;
    }

    if (op->kind == NGX_HTTP_IDEM_OP_WATCH) {

        /* before it is sent: a notification may overtake the reply */

        op->woken = 0;

        ngx_queue_insert_tail(&remote->polls.by_id[op->id[0]], &op->queue);

        remote->nwatches++;
        remote->type->listen(op);
    }

    if (remote->type->submit(op) == NGX_OK) {
        return NGX_AGAIN;
    }

    if (op->kind == NGX_HTTP_IDEM_OP_WATCH) {
        ngx_http_idem_remote_unwatch(op);
    }

    return ngx_http_idem_remote_end(op);
}


static void
ngx_http_idem_remote_unwatch(ngx_http_idem_op_t *op)
{
    ngx_http_idem_remote_t  *remote;

    remote = ngx_http_idem_remote(op);

    ngx_queue_remove(&op->queue);

    remote->nwatches--;
    remote->type->unlisten(op);
}


void
ngx_http_idem_remote_cancel(ngx_http_idem_op_t *op)
{
    ngx_uint_t  tried;

    tried = ngx_http_idem_remote_leave(op);

    if (op->kind == NGX_HTTP_IDEM_OP_WATCH) {
        ngx_http_idem_remote_unwatch(op);

    } else if (op->kind == NGX_HTTP_IDEM_OP_BEGIN && tried) {
        ngx_http_idem_remote_undo(op);
    }
}


/*
 * Nearly all operations of a store have the same timeout, so those that were
 * submitted first end first.  They are in a queue with one timer, which is
 * late rather than moved: a timer for each would be added to and removed from
 * nginx's tree twice in a request.
 */

void
ngx_http_idem_remote_time(ngx_http_idem_op_t *op, ngx_msec_t time)
{
    ngx_http_idem_remote_t  *remote;

    remote = ngx_http_idem_remote(op);

    ngx_http_idem_remote_time_stop(op);

    if (time != remote->timeout) {
        ngx_http_idem_op_timer(op, ngx_http_idem_remote_timer_handler, time);
        return;
    }

    op->due_at = ngx_current_msec + time;

    ngx_queue_insert_tail(&remote->due, &op->due);

    remote->overdue.cancelable = 0;

    if (!remote->overdue.timer_set) {
        ngx_add_timer(&remote->overdue, time);
    }
}


static void
ngx_http_idem_remote_time_stop(ngx_http_idem_op_t *op)
{
    ngx_http_idem_remote_t  *remote;

    if (op->due.next) {
        remote = ngx_http_idem_remote(op);

        ngx_queue_remove(&op->due);
        op->due.next = NULL;

        /* the timer is left, and keeps no worker from exiting */

        remote->overdue.cancelable = ngx_queue_empty(&remote->due);
    }

    ngx_housekeeping_stop(&op->timer);
}


static void
ngx_http_idem_remote_timer_handler(ngx_event_t *ev)
{
    ngx_http_idem_op_t  *op;

    op = ev->data;

    ngx_http_idem_remote(op)->type->timeout(op);
}


static void
ngx_http_idem_remote_overdue(ngx_event_t *ev)
{
    ngx_http_idem_op_t      *op;
    ngx_http_idem_remote_t  *remote;

    remote = ev->data;

    while (!ngx_queue_empty(&remote->due)) {
        op = ngx_queue_data(ngx_queue_head(&remote->due), ngx_http_idem_op_t,
                            due);

        if ((ngx_msec_int_t) (op->due_at - ngx_current_msec) > 0) {
            /* an operation that a timeout has started may have set it */
            ngx_housekeeping_within(ev, op->due_at - ngx_current_msec);
            return;
        }

        ngx_http_idem_remote_time_stop(op);
        remote->type->timeout(op);
    }
}


ngx_int_t
ngx_http_idem_remote_over(ngx_http_idem_op_t *op)
{
    ngx_msec_t  elapsed;

    elapsed = ngx_current_msec - op->start;

    if (!ngx_http_idem_remote_is_undo(op) || elapsed >= op->lease) {
        return NGX_OK;
    }

    /* the release continues, but does not keep a worker that shuts down */

    ngx_http_idem_remote_undo_due(op, 0, 0);

    ngx_http_idem_op_timer(op, ngx_http_idem_remote_timer_handler,
                           ngx_min(op->lease - elapsed,
                                   ngx_http_idem_remote(op)->timeout));
    op->timer.cancelable = 1;

    return NGX_DECLINED;
}


void
ngx_http_idem_remote_replied(ngx_http_idem_op_t *op)
{
    ngx_http_idem_remote_t  *remote;

    remote = ngx_http_idem_remote(op);

    if (ngx_http_idem_remote_leave(op) > 1) {
        ngx_http_idem_remote_repeated(op);
    }

    switch (op->kind) {

    case NGX_HTTP_IDEM_OP_WATCH:

        if (op->result == NGX_HTTP_IDEM_OK && op->found.left) {
            ngx_http_idem_poll_wait(op, remote->type->poll(op));
            return;
        }

        break;

    case NGX_HTTP_IDEM_OP_COMMIT:
    case NGX_HTTP_IDEM_OP_RELEASE:
    case NGX_HTTP_IDEM_OP_REMOVE:

        if (op->result != NGX_HTTP_IDEM_ERROR) {
            /* faster than the notification, and works without it */
            ngx_http_idem_polls_wake(&remote->polls, op->id);
        }

        break;

    default:
        break;
    }

    ngx_http_idem_remote_complete(op);
}


/* detaches the operation from its call; returns how often that was sent */

static ngx_uint_t
ngx_http_idem_remote_leave(ngx_http_idem_op_t *op)
{
    void  *call;

    ngx_http_idem_remote_time_stop(op);

    call = op->state_data;
    op->state_data = NULL;

    return call ? ngx_http_idem_remote(op)->type->leave(call) : 0;
}


void
ngx_http_idem_remote_fail(ngx_http_idem_op_t *op, const char *error)
{
    ngx_http_idem_op_error(op, error);

    if (ngx_http_idem_remote_leave(op)) {
        ngx_http_idem_remote_repeated(op);
    }
}


/*
 * A begin or a renewal has its result, or failed, and was sent more than
 * once: a delayed copy may still take effect.
 */

static void
ngx_http_idem_remote_repeated(ngx_http_idem_op_t *op)
{
    if (op->kind == NGX_HTTP_IDEM_OP_RENEW
        || (op->kind == NGX_HTTP_IDEM_OP_BEGIN
            && op->result == NGX_HTTP_IDEM_ACQUIRED))
    {
        op->lock.stray = 1;

    } else if (op->kind == NGX_HTTP_IDEM_OP_BEGIN
               && (op->result != NGX_HTTP_IDEM_FOUND
                   || op->found.state != NGX_HTTP_IDEM_COMPLETED
                   || op->found.left < op->lease))
    {
        /* an unknown outcome may be a lock that is released later, and a
           response may expire before the copy takes effect */
        ngx_http_idem_remote_undo(op);
    }
}


void
ngx_http_idem_remote_complete(ngx_http_idem_op_t *op)
{
    if (op->kind == NGX_HTTP_IDEM_OP_WATCH) {
        ngx_http_idem_remote_unwatch(op);
    }

    if (ngx_http_idem_remote_end(op) == NGX_OK) {
        ngx_http_idem_store_complete(op);
    }
}


/*
 * The operation has its result.  A release that failed is followed by further
 * ones, and so is one that a delayed copy may undo, or a commit of a record
 * that does not outlive the copy.  NGX_AGAIN: it is such a further one, and
 * continues.
 */

static ngx_int_t
ngx_http_idem_remote_end(ngx_http_idem_op_t *op)
{
    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT) {

        if (op->lock.stray && op->result == NGX_HTTP_IDEM_OK
            && op->ttl < op->lease)
        {
            ngx_http_idem_remote_undo_expired(op);
        }

        return NGX_OK;
    }

    if (op->kind != NGX_HTTP_IDEM_OP_RELEASE) {
        return NGX_OK;
    }

    if (ngx_http_idem_remote_is_undo(op)) {

        if (ngx_http_idem_remote_undo_again(op) == NGX_OK) {
            return NGX_AGAIN;
        }

        ngx_http_idem_remote(op)->undos--;

        if (op->hold) {
            ngx_http_idem_orphan_remove(op);
        }

        /* no error: another request has the record, or the lease is over */
        op->result = NGX_HTTP_IDEM_OK;

    } else if (op->lock.stray
               || (op->result == NGX_HTTP_IDEM_ERROR
                   && (op->hold || !op->bad_record)))
    {
        ngx_http_idem_remote_undo(op);
    }

    return NGX_OK;
}


/*
 * Sends releases of a lock that no request uses: the lock of an abandoned
 * begin, one that a delayed copy may write again, or one whose release failed.
 */

static void
ngx_http_idem_remote_undo(ngx_http_idem_op_t *locked)
{
    /* as long as the lock may live: under hold it outlives its lease */

    ngx_http_idem_remote_undo_start(ngx_http_idem_remote(locked),
                            locked->id, locked->token, 0,
                            locked->hold ? ngx_http_idem_lock_life(locked)
                                         : locked->lease,
                            locked->hold, 0);
}


/*
 * A delayed copy of the begin may take effect after the committed record has
 * expired.  No release is sent before that, also if the worker exits: if a
 * failover loses the commit, the lock of the request that ran has to stay.
 */

static void
ngx_http_idem_remote_undo_expired(ngx_http_idem_op_t *op)
{
    ngx_http_idem_remote_undo_start(ngx_http_idem_remote(op),
                            op->id, op->token, ngx_max(op->ttl, 1),
                            op->hold ? ngx_http_idem_lock_life(op)
                                     : op->lease,
                            0, 0);
}


static void
ngx_http_idem_remote_undo_start(ngx_http_idem_remote_t *remote, u_char *id,
    u_char *token, ngx_msec_t delay, ngx_msec_t life, ngx_uint_t hold,
    ngx_uint_t adopted)
{
    ngx_http_idem_op_t  *op;

    op = (remote->undos < NGX_HTTP_IDEM_UNDOS)
         ? ngx_http_idem_op_detached(remote->store, NGX_HTTP_IDEM_OP_RELEASE,
                                     id, token)
         : NULL;

    if (op == NULL) {

        if (hold) {
            ngx_http_idem_remote_stuck(remote, "a lock can't be given back, "
                                               "there are too many");
        }

        return;
    }

    remote->undos++;

    op->data = remote;
    op->ttl = delay;
    op->lease = delay + life;
    op->hold = hold;

    if (hold && !adopted && ngx_http_idem_orphan_add(op, life) != NGX_OK) {
        ngx_http_idem_remote_stuck(remote, "too many locks are to be given "
                                           "back; if the worker exits before "
                                           "that");
    }

    ngx_http_idem_remote_undo_due(op, 0, 0);

    if (hold && !adopted) {
        ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0,
                      "idempotency: store \"%V\": a lock is given back until "
                      "its record expires, record %*xs",
                      &remote->store->name, (size_t) 8, id);
    }

    (void) ngx_http_idem_op_detach(op);
}


/* under hold, a lock that is not given back outlives its lease */

static void
ngx_http_idem_remote_stuck(ngx_http_idem_remote_t *remote, const char *what)
{
    ngx_http_idem_log_repeated(NGX_LOG_ERR, ngx_cycle->log, NULL,
                  "idempotency: store \"%V\": %s, the key of a request that "
                  "did not run is refused until its record expires",
                  &remote->store->name, what);
}


/* a release is sent in "delay" ms, and has a reply or times out after that */

static void
ngx_http_idem_remote_undo_due(ngx_http_idem_op_t *op, ngx_msec_t delay,
    ngx_uint_t released)
{
    if (op->hold) {
        ngx_http_idem_orphan_due(op,
                                 delay + ngx_http_idem_remote(op)->timeout,
                                 released);
    }
}


/* continues the releases of workers that exited or were killed */

static void
ngx_http_idem_remote_adopt(ngx_event_t *ev)
{
    ngx_uint_t                i, n, max;
    ngx_http_idem_remote_t   *remote;
    ngx_http_idem_adopted_t   adopted[NGX_HTTP_IDEM_ADOPT_N];

    remote = ev->data;

    if (ngx_exiting) {
        return;
    }

    max = ngx_min(NGX_HTTP_IDEM_UNDOS - remote->undos, NGX_HTTP_IDEM_ADOPT_N);

    n = ngx_http_idem_orphans_adopt(remote->store, adopted, max);

    for (i = 0; i < n; i++) {
        ngx_http_idem_remote_undo_start(remote, adopted[i].id,
                                        adopted[i].token, 0,
                                        adopted[i].life, 1, 1);
    }

    if (n) {
        ngx_log_error(NGX_LOG_NOTICE, ev->log, 0,
                      "idempotency: store \"%V\": locks are given back for "
                      "workers that are gone: %ui", &remote->store->name, n);
    }

    ngx_add_timer(ev, n == NGX_HTTP_IDEM_ADOPT_N ? NGX_HTTP_IDEM_ADOPT_MORE
                                                 : NGX_HTTP_IDEM_ADOPT);
}


/*
 * The release may overtake its begin: the begin is in the buffer of a
 * connection that was closed while the server stalled, and the release took
 * another connection; or the begin is in a transaction that waits for a
 * standby.  Then the begin takes the lock after the release.  So the release is
 * sent again, at growing intervals, for as long as such a lock may live: a lock
 * that was delayed stays for about as long as it was delayed.  None of these
 * timers delays the exit of a worker.
 */

static ngx_int_t
ngx_http_idem_remote_undo_again(ngx_http_idem_op_t *op)
{
    ngx_msec_t               elapsed, delay;
    ngx_http_idem_remote_t  *remote;

    remote = ngx_http_idem_remote(op);
    elapsed = ngx_current_msec - op->start;

    if (elapsed >= op->lease) {
        return NGX_DECLINED;
    }

    op->attempt++;

    /* a lock that ends with its lease gives way to those under hold */

    if (remote->undos > NGX_HTTP_IDEM_UNDOS / 2
        && (op->attempt >= NGX_HTTP_IDEM_UNDO_N
            || (!op->hold && op->result != NGX_HTTP_IDEM_ERROR)))
    {
        return NGX_DECLINED;
    }

    delay = remote->timeout
            << (ngx_min(op->attempt, NGX_HTTP_IDEM_UNDO_MAX) - 1);

    if (op->result == NGX_HTTP_IDEM_ERROR) {
        /* the lock is certainly there */
        delay = ngx_min(delay, NGX_HTTP_IDEM_UNDO_REFUSED * remote->timeout);
    }

    delay = ngx_min(delay, op->lease - elapsed);

    ngx_http_idem_remote_undo_due(op, delay,
                                  op->result != NGX_HTTP_IDEM_ERROR);

    ngx_http_idem_remote_undo_later(op, delay);

    return NGX_OK;
}


static void
ngx_http_idem_remote_undo_later(ngx_http_idem_op_t *op, ngx_msec_t delay)
{
    ngx_http_idem_op_timer(op, ngx_http_idem_remote_undo_handler, delay);
    op->timer.cancelable = 1;
}


static void
ngx_http_idem_remote_undo_handler(ngx_event_t *ev)
{
    ngx_http_idem_op_t  *op;

    op = ev->data;

    if (ngx_http_idem_remote(op)->type->submit(op) != NGX_OK) {
        ngx_http_idem_remote_complete(op);
    }
}


void
ngx_http_idem_remote_message(ngx_http_idem_remote_t *remote, u_char *hex,
    size_t len, ngx_uint_t removed)
{
    u_char  id[NGX_HTTP_IDEM_ID_LEN];

    if (ngx_http_idem_id_parse(hex, len, id) != NGX_OK) {
        return;
    }

    ngx_http_idem_polls_wake(&remote->polls, id);

    if (removed && remote->store->forget) {
        remote->store->forget(remote->store, id);
    }
}
