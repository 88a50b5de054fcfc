
/*
 * Trying again: commits that wait in the outbox, and locks that could not be
 * given back.
 *
 * Of all workers one at a time tries the commits, one after the other, the
 * oldest first.  While they fail, one is tried after each delay, which grows;
 * it then goes behind the others, so that one record that the store refuses
 * holds up none.  Who tries has the right to do so for a while, or until it
 * is gone.  A commit that is tried twice does no harm: it carries the token
 * of its holder.
 *
 * A worker that quits leaves what waits to the others, or to its successor;
 * it ends with nginx itself.
 *
 * A lock that could not be given back is tried again by this worker alone,
 * while its lease may last: then it ends by itself.
 *
 * Called by the outbox; calls the store inside it.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "observe/ngx_http_idempotency_events.h"
#include "observe/ngx_http_idempotency_metrics.h"
#include "store/layers/ngx_http_idempotency_layers.h"


/*
 * It is decided what becomes of it.  One that is lost to somebody who still
 * runs is not: a lock that was taken over may be given back, and then this
 * is the only response there is.
 */
#define ngx_http_idempotency_outbox_decided(op)                               \
    ((op)->result != NGX_HTTP_IDEMPOTENCY_ERROR && !(op)->running)

/* the right to try: longer than a try takes, mostly */
#define NGX_HTTP_IDEMPOTENCY_OUTBOX_OWNED     5000

/* a store that answers others is tried again, but not more often */
#define NGX_HTTP_IDEMPOTENCY_OUTBOX_HASTE     1000

/* releases that may wait in a worker; beyond, leases end by themselves */
#define NGX_HTTP_IDEMPOTENCY_OUTBOX_RELEASES  1024


typedef struct {
    ngx_queue_t                     queue;
    ngx_event_t                     timer;
    ngx_http_idempotency_outbox_t  *outbox;
    ngx_http_idempotency_op_t      *op;
    ngx_msec_t                      until;
    ngx_msec_t                      delay;
} ngx_http_idempotency_outbox_release_t;


static void ngx_http_idempotency_outbox_tick(ngx_event_t *ev);
static ngx_http_idempotency_op_t *ngx_http_idempotency_outbox_take(
    ngx_http_idempotency_outbox_t *o, ngx_msec_t *wait);
static void ngx_http_idempotency_outbox_retried(ngx_http_idempotency_op_t *op);
static void ngx_http_idempotency_outbox_told(ngx_http_idempotency_outbox_t *o,
    ngx_http_idempotency_op_t *op);
static void ngx_http_idempotency_outbox_over(
    ngx_http_idempotency_outbox_t *o);
static void ngx_http_idempotency_outbox_release_again(ngx_event_t *ev);
static void ngx_http_idempotency_outbox_release_done(
    ngx_http_idempotency_op_t *op);
static void ngx_http_idempotency_outbox_release_free(
    ngx_http_idempotency_outbox_release_t *release);


void
ngx_http_idempotency_outbox_retry_init(ngx_cycle_t *cycle,
    ngx_http_idempotency_outbox_t *o)
{
    ngx_queue_init(&o->releases);
    ngx_queue_init(&o->checks);

    o->tick.handler = ngx_http_idempotency_outbox_tick;
    o->tick.data = o;
    o->tick.log = cycle->log;
    o->tick.cancelable = 1;

    /* what others left */

    if (!ngx_http_idempotency_outbox_empty(o)) {
        ngx_http_idempotency_outbox_arm(o,
                                       NGX_HTTP_IDEMPOTENCY_OUTBOX_DELAY_MIN);
    }
}


void
ngx_http_idempotency_outbox_retry_exit(ngx_http_idempotency_outbox_t *o)
{
    ngx_queue_t                       *q;
    ngx_http_idempotency_outbox_sh_t  *sh;

    sh = ngx_http_idempotency_outbox_sh(o);

    ngx_http_idempotency_zone_lock(&o->z);

    if (sh->owner == ngx_pid) {
        sh->owner = 0;
    }

    ngx_http_idempotency_zone_unlock(&o->z);

    if (o->tick.timer_set) {
        ngx_del_timer(&o->tick);
    }

    if (o->retry) {
        ngx_http_idempotency_store_cancel(o->retry);
        ngx_destroy_pool(o->retry->pool);
        o->retry = NULL;
    }

    ngx_http_idempotency_outbox_check_exit(o);

    while (!ngx_queue_empty(&o->releases)) {
        q = ngx_queue_head(&o->releases);

        ngx_http_idempotency_outbox_release_free(
            ngx_queue_data(q, ngx_http_idempotency_outbox_release_t, queue));
    }
}


void
ngx_http_idempotency_outbox_arm(ngx_http_idempotency_outbox_t *o,
    ngx_msec_t delay)
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


/*
 * The store answered somebody.  Not the lock for every request meanwhile: a
 * look at the time, which may be that of a moment ago.
 */

void
ngx_http_idempotency_outbox_hasten(ngx_http_idempotency_outbox_t *o)
{
    ngx_msec_t                         next;
    ngx_http_idempotency_outbox_sh_t  *sh;

    sh = ngx_http_idempotency_outbox_sh(o);

    next = sh->tried + NGX_HTTP_IDEMPOTENCY_OUTBOX_HASTE;

    if ((ngx_msec_int_t) (next - ngx_current_msec) < 0) {
        next = ngx_current_msec;
    }

    if ((ngx_msec_int_t) (sh->next - next) <= 0) {
        return;
    }

    ngx_http_idempotency_zone_lock(&o->z);
    sh->next = next;
    ngx_http_idempotency_zone_unlock(&o->z);

    ngx_http_idempotency_outbox_arm(o, next - ngx_current_msec);
}


static void
ngx_http_idempotency_outbox_tick(ngx_event_t *ev)
{
    ngx_msec_t                      wait;
    ngx_http_idempotency_op_t      *op;
    ngx_http_idempotency_outbox_t  *o;

    o = ev->data;

    if (ngx_exiting) {
        return;
    }

    ngx_http_idempotency_outbox_over(o);

    if (ngx_http_idempotency_outbox_empty(o)) {
        return;
    }

    wait = NGX_HTTP_IDEMPOTENCY_OUTBOX_TICK;

    op = o->retry ? NULL : ngx_http_idempotency_outbox_take(o, &wait);

    ngx_http_idempotency_outbox_arm(o, wait);

    if (op == NULL) {
        return;
    }

    o->retry = op;

    op->handler = ngx_http_idempotency_outbox_retried;
    op->data = o;

    if (ngx_http_idempotency_store_submit(op) == NGX_OK) {
        ngx_http_idempotency_outbox_retried(op);
    }
}


/* the commit that is to be tried now, by us; NULL: look again after "wait" */

static ngx_http_idempotency_op_t *
ngx_http_idempotency_outbox_take(ngx_http_idempotency_outbox_t *o,
    ngx_msec_t *wait)
{
    ngx_queue_t                       *q;
    ngx_msec_int_t                     left;
    ngx_http_idempotency_op_t         *op;
    ngx_http_idempotency_node_t       *node;
    ngx_http_idempotency_outbox_sh_t  *sh;

    op = NULL;
    sh = ngx_http_idempotency_outbox_sh(o);

    ngx_http_idempotency_zone_lock(&o->z);

    if (sh->owner && sh->owner != ngx_pid
        && (ngx_msec_int_t) (sh->owned_until - ngx_current_msec) > 0
        && !(kill(sh->owner, 0) == -1 && ngx_errno == ESRCH))
    {
        goto done;
    }

    left = (ngx_msec_int_t) (sh->next - ngx_current_msec);

    if (left > 0) {
        *wait = ngx_min((ngx_msec_t) left, *wait);
        goto done;
    }

    while (!ngx_queue_empty(&o->z.zone->completed)) {
        q = ngx_queue_head(&o->z.zone->completed);
        node = ngx_queue_data(q, ngx_http_idempotency_node_t, completed);

        if ((ngx_msec_int_t) (node->expires - ngx_current_msec) > 0) {
            op = ngx_http_idempotency_outbox_op(o, node);
            break;
        }

        ngx_http_idempotency_zone_remove(&o->z, node);
        o->z.zone->expired++;
    }

    if (op) {
        sh->owner = ngx_pid;
        sh->owned_until = ngx_current_msec + NGX_HTTP_IDEMPOTENCY_OUTBOX_OWNED;
        sh->tried = ngx_current_msec;
    }

done:

    ngx_http_idempotency_zone_unlock(&o->z);

    return op;
}


/* the commit once more, with what is left of its time */

ngx_http_idempotency_op_t *
ngx_http_idempotency_outbox_op(ngx_http_idempotency_outbox_t *o,
    ngx_http_idempotency_node_t *node)
{
    ngx_buf_t                  *b;
    ngx_chain_t                *cl;
    ngx_msec_int_t              left;
    ngx_http_idempotency_op_t  *op;

    op = ngx_http_idempotency_op_detached(o->layer.inner,
                                          NGX_HTTP_IDEMPOTENCY_OP_COMMIT,
                                          node->id, node->token);
    if (op == NULL) {
        return NULL;
    }

    b = ngx_create_temp_buf(op->pool, ngx_max(node->size, 1));
    cl = ngx_alloc_chain_link(op->pool);

    if (b == NULL || cl == NULL
        || ngx_http_idempotency_zone_copy(&o->z, node, b->last) != NGX_OK)
    {
        ngx_destroy_pool(op->pool);
        return NULL;
    }

    ngx_http_idempotency_zone_copy_details(&o->z, node, op->pool,
                                           &op->details);

    *op->claim = node->claim;

    b->last += node->size;

    cl->buf = b;
    cl->next = NULL;

    left = (ngx_msec_int_t) (node->until - ngx_current_msec);

    op->ttl = ngx_max(left, 0);
    op->lease = op->ttl;
    op->grace = node->expires - ngx_current_msec - op->ttl;
    op->hold = node->hold;
    op->state = node->state;
    op->reason = node->reason;

    if (ngx_http_idempotency_op_retryable(op)) {

        /* what is left of the lease: then the same request may run */

        left = (ngx_msec_int_t) (node->u.locked_until - ngx_current_msec);
        op->lease = ngx_max(left, 1);
    }

    op->response = cl;
    op->size = node->size;

    return op;
}


static void
ngx_http_idempotency_outbox_retried(ngx_http_idempotency_op_t *op)
{
    ngx_msec_t                         max;
    ngx_uint_t                         more;
    ngx_http_idempotency_outbox_t     *o;
    ngx_http_idempotency_outbox_sh_t  *sh;

    o = op->data;
    sh = ngx_http_idempotency_outbox_sh(o);

    (void) ngx_http_idempotency_outbox_tried(o, op);

    ngx_http_idempotency_zone_lock(&o->z);

    if (ngx_http_idempotency_outbox_decided(op)) {
        sh->delay = NGX_HTTP_IDEMPOTENCY_OUTBOX_DELAY_MIN;
        sh->next = ngx_current_msec;

    } else {

        /* hosts that lost the same store do not come back all at once */

        sh->next = ngx_current_msec + sh->delay
                   + (ngx_msec_t) ngx_random() % (sh->delay / 4 + 1);

        /*
         * While a lease may still last, a store that is back for a moment
         * must not be missed: once it has run out, another host runs again
         */

        max = (ngx_msec_int_t) (sh->urgent - ngx_current_msec) > 0
              ? NGX_HTTP_IDEMPOTENCY_OUTBOX_DELAY_URGENT
              : NGX_HTTP_IDEMPOTENCY_OUTBOX_DELAY_MAX;

        sh->delay = ngx_min(2 * sh->delay, max);
    }

    more = o->z.zone->records;

    /* while they land one after the other, the right is kept */

    if (sh->owner == ngx_pid
        && (more == 0 || !ngx_http_idempotency_outbox_decided(op)))
    {
        sh->owner = 0;
    }

    ngx_http_idempotency_zone_unlock(&o->z);

    if (more && ngx_http_idempotency_outbox_decided(op)) {
        ngx_http_idempotency_outbox_arm(o, 0);
    }

    o->retry = NULL;

    ngx_destroy_pool(op->pool);
}


ngx_uint_t
ngx_http_idempotency_outbox_tried(ngx_http_idempotency_outbox_t *o,
    ngx_http_idempotency_op_t *op)
{
    ngx_uint_t                    here;
    ngx_http_idempotency_node_t  *node;

    ngx_http_idempotency_zone_lock(&o->z);

    node = ngx_http_idempotency_zone_find(&o->z, op->id);

    /* it may have been tried twice at the same time: who is second is late */

    here = node
           && ngx_memcmp(node->token, op->token,
                         NGX_HTTP_IDEMPOTENCY_TOKEN_LEN)
              == 0;

    if (here) {

        if (ngx_http_idempotency_outbox_decided(op)) {
            ngx_http_idempotency_zone_remove(&o->z, node);

        } else {
            ngx_http_idempotency_zone_requeue(&o->z, node);
        }
    }

    ngx_http_idempotency_zone_unlock(&o->z);

    if (here) {
        ngx_http_idempotency_outbox_told(o, op);
    }

    return here;
}


static void
ngx_http_idempotency_outbox_told(ngx_http_idempotency_outbox_t *o,
    ngx_http_idempotency_op_t *op)
{
    ngx_http_idempotency_outbox_sh_t  *sh;

    sh = ngx_http_idempotency_outbox_sh(o);

    if (op->running) {
        ngx_log_error(NGX_LOG_INFO, op->log, 0,
                      "idempotency: a commit that is kept has to wait, "
                      "another request has taken over in store \"%V\" and "
                      "still runs, record %*xs",
                      &o->layer.named->name, (size_t) 8, op->id);
        return;
    }

    switch (op->result) {

    case NGX_HTTP_IDEMPOTENCY_OK:
        (void) ngx_atomic_fetch_add(&sh->figures.landed, 1);

        ngx_log_error(NGX_LOG_NOTICE, op->log, 0,
                      "idempotency: a commit that was kept is in store "
                      "\"%V\" now, record %*xs",
                      &o->layer.named->name, (size_t) 8, op->id);
        break;

    case NGX_HTTP_IDEMPOTENCY_FULL:
        (void) ngx_atomic_fetch_add(&sh->figures.landed, 1);

        ngx_http_idempotency_record_event(o->layer.named,
                                     NGX_HTTP_IDEMPOTENCY_EVENT_STORAGE_ERROR,
                                     op->id, "no room for the response");

        ngx_log_error(NGX_LOG_ERR, op->log, 0,
                      "idempotency: there is no room in store \"%V\" for a "
                      "response that was kept, its retry is refused, "
                      "record %*xs",
                      &o->layer.named->name, (size_t) 8, op->id);
        break;

    case NGX_HTTP_IDEMPOTENCY_LOST:
        (void) ngx_atomic_fetch_add(&sh->figures.lost, 1);

        ngx_http_idempotency_metrics_count(o->layer.named,
                                      NGX_HTTP_IDEMPOTENCY_COUNT_LEASE_LOST);
        ngx_http_idempotency_record_event(o->layer.named,
                                         NGX_HTTP_IDEMPOTENCY_EVENT_LOCK_LOST,
                                         op->id, "outbox");

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


/* those whose time was over, whoever found them */

static void
ngx_http_idempotency_outbox_over(ngx_http_idempotency_outbox_t *o)
{
    ngx_uint_t                         n;
    ngx_http_idempotency_outbox_sh_t  *sh;

    sh = ngx_http_idempotency_outbox_sh(o);

    ngx_http_idempotency_zone_lock(&o->z);

    n = o->z.zone->expired - sh->expired;
    sh->expired += n;

    ngx_http_idempotency_zone_unlock(&o->z);

    if (n) {
        ngx_log_error(NGX_LOG_WARN, o->tick.log, 0,
                      "idempotency: %ui commits that were kept never reached "
                      "store \"%V\", their time is over",
                      n, &o->layer.named->name);
    }
}


void
ngx_http_idempotency_outbox_release_later(ngx_http_idempotency_outbox_t *o,
    ngx_http_idempotency_op_t *op)
{
    ngx_http_idempotency_op_t              *again;
    ngx_http_idempotency_outbox_release_t  *release;

    if (ngx_exiting
        || op->lease <= NGX_HTTP_IDEMPOTENCY_OUTBOX_DELAY_MIN
        || o->nreleases >= NGX_HTTP_IDEMPOTENCY_OUTBOX_RELEASES)
    {
        return;
    }

    again = ngx_http_idempotency_op_detached(o->layer.inner,
                                             NGX_HTTP_IDEMPOTENCY_OP_RELEASE,
                                             op->id, op->token);
    if (again == NULL) {
        return;
    }

    release = ngx_pcalloc(again->pool,
                          sizeof(ngx_http_idempotency_outbox_release_t));
    if (release == NULL) {
        ngx_destroy_pool(again->pool);
        return;
    }

    release->outbox = o;
    release->op = again;
    release->until = op->start + op->lease;

    if ((ngx_msec_int_t) (op->locked_until - release->until) > 0) {
        /* under hold it does not end by itself */
        release->until = op->locked_until;
    }

    release->delay = NGX_HTTP_IDEMPOTENCY_OUTBOX_DELAY_MIN;

    release->timer.handler = ngx_http_idempotency_outbox_release_again;
    release->timer.data = release;
    release->timer.log = ngx_cycle->log;
    release->timer.cancelable = 1;

    again->lease = op->lease;
    again->handler = ngx_http_idempotency_outbox_release_done;
    again->data = release;

    ngx_queue_insert_tail(&o->releases, &release->queue);
    o->nreleases++;

    ngx_add_timer(&release->timer, release->delay);
}


static void
ngx_http_idempotency_outbox_release_again(ngx_event_t *ev)
{
    ngx_http_idempotency_outbox_release_t  *release;

    release = ev->data;

    if (ngx_http_idempotency_store_submit(release->op) == NGX_OK) {
        ngx_http_idempotency_outbox_release_done(release->op);
    }
}


static void
ngx_http_idempotency_outbox_release_done(ngx_http_idempotency_op_t *op)
{
    ngx_http_idempotency_outbox_release_t  *release;

    release = op->data;

    release->delay = ngx_min(2 * release->delay,
                             NGX_HTTP_IDEMPOTENCY_OUTBOX_DELAY_MAX);

    if (ngx_http_idempotency_layer_answered(op)
        || (ngx_msec_int_t) (release->until - ngx_current_msec
                             - release->delay)
           <= 0)
    {
        ngx_http_idempotency_outbox_release_free(release);
        return;
    }

    ngx_add_timer(&release->timer, release->delay);
}


static void
ngx_http_idempotency_outbox_release_free(
    ngx_http_idempotency_outbox_release_t *release)
{
    ngx_http_idempotency_store_cancel(release->op);

    if (release->timer.timer_set) {
        ngx_del_timer(&release->timer);
    }

    ngx_queue_remove(&release->queue);
    release->outbox->nreleases--;

    ngx_destroy_pool(release->op->pool);
}
