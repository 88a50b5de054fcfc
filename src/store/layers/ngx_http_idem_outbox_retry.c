
/*
 * Trying again: commits that wait in the outbox.
 *
 * Of all workers one at a time does it.  It passes through what waits in the
 * order in which it was kept, so many records in a turn of the event loop, and
 * takes what may be tried now: of a node that does not answer one commit after
 * each delay, of any other all at once (..._outbox_lane.c).  What was looked
 * at goes behind the others.  Who tries has the right to do so for a while, or
 * until it is gone.  A commit that is tried twice does no harm: it carries the
 * token of its holder.
 *
 * One that the store refuses by itself has a pause of its own, which only this
 * worker knows of.
 *
 * A worker that quits leaves what waits to the others, or to its successor;
 * it ends with nginx itself.
 *
 * Called by the outbox; calls the store inside it.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layers.h"


/*
 * It is decided what becomes of it.  One that is lost to somebody who still
 * runs is not: a lock that was taken over may be given back, and then this
 * is the only response there is.
 */
#define ngx_http_idem_outbox_decided(op)                                      \
    ((op)->result != NGX_HTTP_IDEM_ERROR && !(op)->running)

/* the right to try: longer than a worker is busy, mostly */
#define NGX_HTTP_IDEM_OUTBOX_OWNED     5000

/* records that are looked at in a turn */
#define NGX_HTTP_IDEM_OUTBOX_SCAN      256

/* before a record is tried again that was refused by itself, or that too few
   replicas had */
#define NGX_HTTP_IDEM_OUTBOX_REFUSED   2000
#define NGX_HTTP_IDEM_OUTBOX_MISSED    5000


/* a record that is being tried, or is not to be before its time */

typedef struct {
    ngx_queue_t              queue;             /* in its bucket            */
    ngx_http_idem_outbox_t  *outbox;
    ngx_http_idem_op_t      *op;         /* NULL: not before "until" */
    ngx_msec_t               until;
    ngx_uint_t               lane;
    u_char                   id[NGX_HTTP_IDEM_ID_LEN];
} ngx_http_idem_outbox_try_t;


static void ngx_http_idem_outbox_tick(ngx_event_t *ev);
static ngx_msec_t ngx_http_idem_outbox_take(
    ngx_http_idem_outbox_t *o, ngx_queue_t *ops);
static ngx_int_t ngx_http_idem_outbox_own(ngx_http_idem_outbox_t *o);
static void ngx_http_idem_outbox_disown(ngx_http_idem_outbox_t *o);
static ngx_http_idem_op_t *ngx_http_idem_outbox_take_one(
    ngx_http_idem_outbox_t *o, ngx_http_idem_node_t *node);
static void ngx_http_idem_outbox_retried(ngx_http_idem_op_t *op);
static ngx_http_idem_outbox_try_t *ngx_http_idem_outbox_try(
    ngx_http_idem_outbox_t *o, u_char *id);
static void ngx_http_idem_outbox_tries_end(
    ngx_http_idem_outbox_t *o, ngx_uint_t all);
static void ngx_http_idem_outbox_told(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op);
static void ngx_http_idem_outbox_over(ngx_http_idem_outbox_t *o);


ngx_int_t
ngx_http_idem_outbox_retry_init(ngx_cycle_t *cycle, ngx_http_idem_outbox_t *o)
{
    ngx_uint_t  i;

    ngx_queue_init(&o->releases);
    ngx_queue_init(&o->checks);

    o->tries = ngx_palloc(cycle->pool,
                          NGX_HTTP_IDEM_OUTBOX_BUCKETS * sizeof(ngx_queue_t));
    o->work = ngx_pcalloc(cycle->pool, NGX_HTTP_IDEM_OUTBOX_LANES
                               * sizeof(ngx_http_idem_outbox_work_t));

    if (o->tries == NULL || o->work == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < NGX_HTTP_IDEM_OUTBOX_BUCKETS; i++) {
        ngx_queue_init(&o->tries[i]);
    }

    o->tick.handler = ngx_http_idem_outbox_tick;
    o->tick.data = o;
    o->tick.log = cycle->log;
    o->tick.cancelable = 1;

    /* what others left */

    if (!ngx_http_idem_outbox_empty(o)) {
        ngx_http_idem_outbox_arm(o, NGX_HTTP_IDEM_OUTBOX_DELAY_MIN);
    }

    return NGX_OK;
}


void
ngx_http_idem_outbox_retry_exit(ngx_http_idem_outbox_t *o)
{
    ngx_http_idem_outbox_disown(o);

    if (o->tick.timer_set) {
        ngx_del_timer(&o->tick);
    }

    ngx_http_idem_outbox_tries_end(o, 1);
    ngx_http_idem_outbox_check_exit(o);
    ngx_http_idem_outbox_release_exit(o);
}


void
ngx_http_idem_outbox_arm(ngx_http_idem_outbox_t *o, ngx_msec_t delay)
{
    if (ngx_exiting) {
        return;
    }

    if (o->tick.timer_set) {

        if ((ngx_msec_int_t) (o->tick.timer.key - ngx_current_msec)
            <= (ngx_msec_int_t) delay)
        {
            return;
        }

        ngx_del_timer(&o->tick);
    }

    ngx_add_timer(&o->tick, delay);
}


static void
ngx_http_idem_outbox_tick(ngx_event_t *ev)
{
    ngx_msec_t               wait;
    ngx_queue_t             *q, ops;
    ngx_http_idem_op_t      *op;
    ngx_http_idem_outbox_t  *o;

    o = ev->data;

    if (ngx_exiting) {
        ngx_http_idem_outbox_disown(o);
        return;
    }

    ngx_http_idem_outbox_over(o);

    if (ngx_http_idem_outbox_empty(o)) {
        ngx_http_idem_outbox_tries_end(o, 0);
        ngx_http_idem_outbox_disown(o);
        return;
    }

    ngx_queue_init(&ops);

    wait = ngx_http_idem_outbox_take(o, &ops);

    ngx_http_idem_outbox_arm(o, wait);

    while (!ngx_queue_empty(&ops)) {
        q = ngx_queue_head(&ops);
        ngx_queue_remove(q);

        op = ngx_queue_data(q, ngx_http_idem_op_t, queue);

        if (ngx_http_idem_store_submit(op) == NGX_OK) {
            ngx_http_idem_outbox_retried(op);
        }
    }
}


/* the commits that are to be tried now, by us; returns when to look again */

static ngx_msec_t
ngx_http_idem_outbox_take(ngx_http_idem_outbox_t *o, ngx_queue_t *ops)
{
    ngx_uint_t             n;
    ngx_msec_t             wait;
    ngx_queue_t           *q, *completed;
    ngx_http_idem_op_t    *op;
    ngx_http_idem_node_t  *node;

    completed = &o->z.zone->completed;

    ngx_http_idem_outbox_lock(o);

    if (o->connects != o->layer.named->connects
        && ngx_current_msec - o->rewritten
           >= NGX_HTTP_IDEM_OUTBOX_REFUSED)
    {
        o->connects = o->layer.named->connects;
        o->rewritten = ngx_current_msec;

        ngx_http_idem_outbox_tries_end(o, 0);
        ngx_http_idem_outbox_lanes_rewrite(o);
    }

    wait = NGX_HTTP_IDEM_OUTBOX_TICK;

    if (ngx_http_idem_outbox_own(o) != NGX_OK
        || ngx_queue_empty(completed))
    {
        goto done;
    }

    if (o->left == 0) {
        wait = ngx_http_idem_outbox_lanes_next(o, wait);

        if (wait) {
            goto done;
        }

        ngx_http_idem_outbox_pass_start(o);
    }

    for (n = 0; n < NGX_HTTP_IDEM_OUTBOX_SCAN && o->left; n++) {

        if (ngx_queue_empty(completed)) {
            o->left = 0;
            break;
        }

        o->left--;

        q = ngx_queue_head(completed);
        node = ngx_queue_data(q, ngx_http_idem_node_t, completed);

        if ((ngx_msec_int_t) (node->expires - ngx_current_msec) <= 0) {
            ngx_http_idem_zone_remove(&o->z, node);
            o->z.zone->expired++;
            continue;
        }

        ngx_http_idem_zone_requeue(&o->z, node);

        /* a lock of this nginx is among them after the zone was repaired */

        op = node->state != NGX_HTTP_IDEM_IN_PROGRESS
             ? ngx_http_idem_outbox_take_one(o, node) : NULL;

        if (op == NULL) {
            continue;
        }

        ngx_queue_insert_tail(ops, &op->queue);

        if (ngx_http_idem_outbox_lanes_next(o, 1) != 0) {
            /* that was all for now; what was not looked at stays as it is */
            o->left = 0;
            goto next;
        }
    }

    if (o->left) {
        wait = 0;
        goto done;
    }

    ngx_http_idem_outbox_pass_end(o);

next:

    wait = ngx_http_idem_outbox_lanes_next(o, NGX_HTTP_IDEM_OUTBOX_TICK);

done:

    ngx_http_idem_outbox_unlock(o);

    return wait;
}


/* the zone is locked; NGX_DECLINED: another worker does it */

static ngx_int_t
ngx_http_idem_outbox_own(ngx_http_idem_outbox_t *o)
{
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);

    if (sh->owner && sh->owner != ngx_pid
        && (ngx_msec_int_t) (sh->owned_until - ngx_current_msec) > 0
        && !(kill(sh->owner, 0) == -1 && ngx_errno == ESRCH))
    {
        o->left = 0;
        return NGX_DECLINED;
    }

    sh->owner = ngx_pid;
    sh->owned_until = ngx_current_msec + NGX_HTTP_IDEM_OUTBOX_OWNED;

    return NGX_OK;
}


static void
ngx_http_idem_outbox_disown(ngx_http_idem_outbox_t *o)
{
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);

    if (sh->owner != ngx_pid) {
        return;
    }

    ngx_http_idem_outbox_lock(o);

    if (sh->owner == ngx_pid) {
        sh->owner = 0;
    }

    ngx_http_idem_outbox_unlock(o);

    o->left = 0;
}


/* NULL: not now */

static ngx_http_idem_op_t *
ngx_http_idem_outbox_take_one(ngx_http_idem_outbox_t *o,
    ngx_http_idem_node_t *node)
{
    ngx_uint_t                   lane;
    ngx_http_idem_op_t          *op;
    ngx_http_idem_outbox_try_t  *try;

    lane = ngx_http_idem_outbox_lane(o, node->id,
                                     ngx_http_idem_outbox_cause(node));

    o->work[lane].seen = 1;

    if (ngx_http_idem_outbox_lane_room(o, lane) == 0) {
        return NULL;
    }

    try = ngx_http_idem_outbox_try(o, node->id);

    if (try) {

        if (try->op
            || (try->lane == lane
                && (ngx_msec_int_t) (try->until - ngx_current_msec) > 0))
        {
            return NULL;
        }

        ngx_queue_remove(&try->queue);

    } else {
        try = ngx_alloc(sizeof(ngx_http_idem_outbox_try_t), ngx_cycle->log);
        if (try == NULL) {
            return NULL;
        }
    }

    op = ngx_http_idem_outbox_op(o, node);

    if (op == NULL) {
        ngx_free(try);
        return NULL;
    }

    try->outbox = o;
    try->op = op;
    try->lane = lane;
    ngx_memcpy(try->id, node->id, NGX_HTTP_IDEM_ID_LEN);

    ngx_queue_insert_tail(&o->tries[try->id[0]], &try->queue);

    op->handler = ngx_http_idem_outbox_retried;
    op->data = try;

    ngx_http_idem_outbox_lane_take(o, lane, op->size);

    /* of a node that may be away: soon told whether it is back */

    op->hasty = (ngx_http_idem_outbox_cause(node)
                 == NGX_HTTP_IDEM_OUTBOX_FAILED
                 && !ngx_http_idem_outbox_sh(o)->lanes[lane].open);

    return op;
}


/* the commit once more, with what is left of its time */

ngx_http_idem_op_t *
ngx_http_idem_outbox_op(ngx_http_idem_outbox_t *o, ngx_http_idem_node_t *node)
{
    ngx_buf_t           *b;
    ngx_chain_t         *cl;
    ngx_msec_int_t       left;
    ngx_http_idem_op_t  *op;

    op = ngx_http_idem_op_detached(o->layer.inner, NGX_HTTP_IDEM_OP_COMMIT,
                                   node->id, node->token);
    if (op == NULL) {
        return NULL;
    }

    b = ngx_create_temp_buf(op->pool, ngx_max(node->size, 1));
    cl = ngx_alloc_chain_link(op->pool);

    if (b == NULL || cl == NULL
        || ngx_http_idem_zone_copy(&o->z, node, b->last) != NGX_OK)
    {
        ngx_destroy_pool(op->pool);
        return NULL;
    }

    ngx_http_idem_zone_copy_details(&o->z, node, op->pool,
                                    NGX_MAX_SIZE_T_VALUE, &op->details);

    *op->claim = node->claim;

    b->last += node->size;

    cl->buf = b;
    cl->next = NULL;

    left = (ngx_msec_int_t) (node->until - ngx_current_msec);

    op->ttl = ngx_max(left, 0);
    op->lease = op->ttl;
    op->grace = node->expires - ngx_current_msec - op->ttl;
    op->hold = node->hold;
    op->known = (ngx_http_idem_outbox_cause(node)
                 == NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED);
    op->state = node->state;
    op->reason = node->reason;

    if (ngx_http_idem_op_retryable(op)) {

        /* what is left of the lease: then the same request may run */

        left = (ngx_msec_int_t) (node->u.locked_until - ngx_current_msec);
        op->lease = ngx_max(left, 1);
    }

    op->response = cl;
    op->size = node->size;

    return op;
}


static void
ngx_http_idem_outbox_retried(ngx_http_idem_op_t *op)
{
    ngx_msec_t                   wait;
    ngx_uint_t                   answered, missed;
    ngx_http_idem_outbox_t      *o;
    ngx_http_idem_outbox_try_t  *try;

    try = op->data;
    o = try->outbox;

    (void) ngx_http_idem_outbox_tried(o, op);

    answered = ngx_http_idem_layer_answered(op);
    missed = (op->unacknowledged && !op->hasty);

    ngx_http_idem_outbox_lock(o);

    ngx_http_idem_outbox_lane_done(o, try->lane, op->size);

    if (!answered) {
        ngx_http_idem_outbox_lane_failed(o, try->lane);

    } else if (missed) {
        ngx_http_idem_outbox_lane_missed(o, try->lane);

    } else {
        ngx_http_idem_outbox_lane_opened(o, try->lane);
    }

    wait = ngx_http_idem_outbox_lanes_next(o, NGX_HTTP_IDEM_OUTBOX_TICK);

    ngx_http_idem_outbox_unlock(o);

    ngx_http_idem_outbox_arm(o, wait);

    if (op->running || op->bad_record || missed) {

        /* others need not wait for it */

        try->op = NULL;
        try->until = ngx_current_msec
                     + (missed ? NGX_HTTP_IDEM_OUTBOX_MISSED
                               : NGX_HTTP_IDEM_OUTBOX_REFUSED);

    } else {
        ngx_queue_remove(&try->queue);
        ngx_free(try);
    }

    ngx_destroy_pool(op->pool);
}


static ngx_http_idem_outbox_try_t *
ngx_http_idem_outbox_try(ngx_http_idem_outbox_t *o, u_char *id)
{
    ngx_queue_t                 *q, *bucket;
    ngx_http_idem_outbox_try_t  *try;

    bucket = &o->tries[id[0]];

    for (q = ngx_queue_head(bucket); q != bucket; q = ngx_queue_next(q)) {
        try = ngx_queue_data(q, ngx_http_idem_outbox_try_t, queue);

        if (ngx_memcmp(try->id, id, NGX_HTTP_IDEM_ID_LEN) == 0) {
            return try;
        }
    }

    return NULL;
}


/* forgets pauses; "all": and what is under way, since the worker leaves */

static void
ngx_http_idem_outbox_tries_end(ngx_http_idem_outbox_t *o, ngx_uint_t all)
{
    ngx_uint_t                   i;
    ngx_queue_t                 *q, *next;
    ngx_http_idem_outbox_try_t  *try;

    for (i = 0; i < NGX_HTTP_IDEM_OUTBOX_BUCKETS; i++) {

        for (q = ngx_queue_head(&o->tries[i]);
             q != ngx_queue_sentinel(&o->tries[i]);
             q = next)
        {
            next = ngx_queue_next(q);
            try = ngx_queue_data(q, ngx_http_idem_outbox_try_t, queue);

            if (try->op && !all) {
                continue;
            }

            if (try->op) {
                ngx_http_idem_store_cancel(try->op);
                ngx_destroy_pool(try->op->pool);
            }

            ngx_queue_remove(q);
            ngx_free(try);
        }
    }
}


ngx_uint_t
ngx_http_idem_outbox_tried(ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op)
{
    ngx_uint_t                  here, waited;
    ngx_http_idem_node_t       *node;
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);
    waited = 0;

    ngx_http_idem_outbox_lock(o);

    node = ngx_http_idem_zone_find(&o->z, op->id);

    /* it may have been tried twice at the same time: who is second is late */

    here = node
           && ngx_memcmp(node->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN)
              == 0;

    if (here) {
        waited = (ngx_http_idem_outbox_cause(node)
                  == NGX_HTTP_IDEM_OUTBOX_FAILED);

        if (!ngx_http_idem_outbox_decided(op)) {
            /* it stays */

        } else if (!op->unacknowledged) {
            ngx_http_idem_zone_remove(&o->z, node);

            if (!waited && sh->unacknowledged) {
                sh->unacknowledged--;
            }

        } else if (waited) {

            /* it is there, as long as its server is */

            node->again = NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED;
            sh->unacknowledged++;

            ngx_http_idem_outbox_lane_use(o,
                ngx_http_idem_outbox_lane(o, node->id,
                                 NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED));
        }
    }

    ngx_http_idem_outbox_unlock(o);

    if (here && (waited || op->result == NGX_HTTP_IDEM_LOST)) {
        ngx_http_idem_outbox_told(o, op);
    }

    return here;
}


static void
ngx_http_idem_outbox_told(ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op)
{
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);

    if (op->running) {
        ngx_log_error(NGX_LOG_INFO, op->log, 0,
                      "idempotency: a commit that is kept has to wait, "
                      "another request has taken over in store \"%V\" and "
                      "still runs, record %*xs",
                      &o->layer.named->name, (size_t) 8, op->id);
        return;
    }

    switch (op->result) {

    case NGX_HTTP_IDEM_OK:
        (void) ngx_atomic_fetch_add(&sh->figures.landed, 1);

        ngx_log_error(NGX_LOG_NOTICE, op->log, 0,
                      "idempotency: a commit that was kept is in store "
                      "\"%V\" now, record %*xs",
                      &o->layer.named->name, (size_t) 8, op->id);
        break;

    case NGX_HTTP_IDEM_FULL:
        (void) ngx_atomic_fetch_add(&sh->figures.landed, 1);

        ngx_http_idem_store_event(o->layer.named,
                                  NGX_HTTP_IDEM_EVENT_STORAGE_ERROR, op->id,
                                  "no room for the response");

        ngx_log_error(NGX_LOG_ERR, op->log, 0,
                      "idempotency: there is no room in store \"%V\" for a "
                      "response that was kept, its retry is refused, "
                      "record %*xs",
                      &o->layer.named->name, (size_t) 8, op->id);
        break;

    case NGX_HTTP_IDEM_LOST:
        (void) ngx_atomic_fetch_add(&sh->figures.lost, 1);

        ngx_http_idem_metrics_count(o->layer.named->metrics,
                                    NGX_HTTP_IDEM_COUNT_LEASE_LOST);
        ngx_http_idem_store_event(o->layer.named,
                                  NGX_HTTP_IDEM_EVENT_LOCK_LOST, op->id,
                                  "outbox");

        ngx_log_error(NGX_LOG_WARN, op->log, 0,
                      "idempotency: a commit that was kept is dropped, "
                      "another request had taken over in store \"%V\" "
                      "meanwhile, record %*xs",
                      &o->layer.named->name, (size_t) 8, op->id);
        break;

    default:
        ngx_log_error(NGX_LOG_INFO, op->log, 0,
                      "idempotency: a commit that is kept failed again in "
                      "store \"%V\": %s, record %*xs",
                      &o->layer.named->name,
                      op->error ? op->error : "no answer",
                      (size_t) 8, op->id);
        break;
    }
}


/*
 * Those whose time was over, whoever found them.  What the store has, and only
 * replicas may lack, did reach it.
 */

static void
ngx_http_idem_outbox_over(ngx_http_idem_outbox_t *o)
{
    ngx_uint_t                  n, known;
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);

    ngx_http_idem_outbox_lock(o);

    n = o->z.zone->expired - sh->expired;
    sh->expired += n;

    known = ngx_min(n, sh->unacknowledged);
    sh->unacknowledged -= known;
    n -= known;

    if (o->z.zone->records == 0) {
        sh->unacknowledged = 0;
    }

    ngx_http_idem_outbox_unlock(o);

    if (n) {
        ngx_log_error(NGX_LOG_WARN, o->tick.log, 0,
                      "idempotency: %ui commits that were kept never reached "
                      "store \"%V\", their time is over",
                      n, &o->layer.named->name);
    }
}
