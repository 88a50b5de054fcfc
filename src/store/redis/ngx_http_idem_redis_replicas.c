
/*
 * "replicas": a commit counts once so many replicas have it.
 *
 * Commits have connections of their own, since WAIT holds up what is behind
 * it.  All that are there go out together with one WAIT behind them, which
 * speaks for every write of its connection; what comes meanwhile is the next
 * lot.  A commit whose reply is there is held until that of its WAIT is.  If
 * the connection breaks before that, it is asked again: its script then finds
 * it committed, and writes all the same, so that the WAIT of the new
 * connection has something to speak for.
 *
 * Replicas that are there answer within a few milliseconds.  Where they do
 * not, what comes meanwhile is sent all the same, on a connection on which
 * nothing waits: only its acknowledgement is put off.  A WAIT also speaks for
 * whatever its server had done for others before the last write of its own
 * connection.  So of those that went ahead one is asked again, in front of the
 * next WAIT, and the rest are covered by it.
 *
 * A WAIT that counts too few is an answer: the response goes out, and it is
 * counted and logged; whoever asked knows, and may keep it.  A server that
 * does not answer at all is away, and the commit failed, as without replicas.
 *
 * Called by the connection when it sends, and by the backend with commits that
 * are done.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"


#define NGX_HTTP_IDEM_REDIS_REPLICAS_MAX      100
#define NGX_HTTP_IDEM_REDIS_REPLICAS_TIMEOUT  500
#define NGX_HTTP_IDEM_REDIS_REPLICAS_LONGEST  3600000

/* Redis looks ten times a second whether the time of a WAIT is over */
#define NGX_HTTP_IDEM_REDIS_REPLICAS_MARGIN   300

/* how long a commit waits for the WAIT of others before it goes ahead */
#define NGX_HTTP_IDEM_REDIS_REPLICAS_HURRY    10

/* how often a commit is asked of a server that stops being the master */
#define NGX_HTTP_IDEM_REDIS_REPLICAS_TRIES    5


static void ngx_http_idem_redis_replicas_time(
    ngx_http_idem_redis_call_t *call, ngx_uint_t n);
static void ngx_http_idem_redis_replicas_replied(
    ngx_http_idem_redis_call_t *call, redisReply *reply);
static ngx_uint_t ngx_http_idem_redis_replicas_demoted(redisReply *reply);
static void ngx_http_idem_redis_replicas_missed(
    ngx_http_idem_redis_conn_t *conn, ngx_http_idem_op_t *op,
    redisReply *reply);


/* behind the commits of a lot */

ngx_int_t
ngx_http_idem_redis_replicas_ask(ngx_http_idem_redis_conn_t *conn)
{
    u_char      number[NGX_INT_T_LEN], time[NGX_INT_T_LEN];
    ngx_str_t   args[3];

    ngx_str_set(&args[0], "WAIT");

    args[1].data = number;
    args[1].len = ngx_sprintf(number, "%i", conn->redis->replicas) - number;

    args[2].data = time;
    args[2].len = ngx_sprintf(time, "%M", conn->redis->replicas_timeout)
                  - time;

    if (ngx_http_idem_redis_ask(conn,
                        ngx_http_idem_redis_replicas_replied, args, 3)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    conn->awaiting = 1;
    conn->wrote = 0;
    conn->asked = ngx_current_msec;

    /* these were done before anything of this lot is */

    ngx_queue_add(&conn->covered, &conn->early);
    ngx_queue_init(&conn->early);

    return NGX_OK;
}


/*
 * There are commits behind a WAIT that has no reply yet.  Once that takes long
 * they go ahead, to where they are not held up.
 */

void
ngx_http_idem_redis_replicas_hurry(ngx_http_idem_redis_conn_t *conn)
{
    ngx_msec_t                   since;
    ngx_http_idem_redis_call_t  *call;

    if (!conn->awaiting || ngx_queue_empty(&conn->unsent)) {
        return;
    }

    since = ngx_current_msec - conn->asked;

    if (since < NGX_HTTP_IDEM_REDIS_REPLICAS_HURRY) {

        if (!conn->timer.timer_set) {
            ngx_add_timer(&conn->timer,
                          NGX_HTTP_IDEM_REDIS_REPLICAS_HURRY - since);
        }

        return;
    }

    while (!ngx_queue_empty(&conn->unsent)) {
        call = ngx_queue_data(ngx_queue_head(&conn->unsent),
                              ngx_http_idem_redis_call_t, queue);

        call->early = 1;

        ngx_http_idem_redis_call_to(call,
                       ngx_http_idem_redis_conn_of(conn->node,
                                                   call->op, 1));
    }
}


/* one that went ahead is done; the next WAIT is to speak for it */

void
ngx_http_idem_redis_replicas_early(ngx_http_idem_redis_call_t *call)
{
    ngx_http_idem_redis_conn_t  *conn;

    ngx_http_idem_redis_call_unsent(call);

    conn = ngx_http_idem_redis_conn_of(call->conn->node, call->op, 0);

    call->early = 0;
    call->conn = conn;

    ngx_queue_remove(&call->queue);
    ngx_queue_insert_tail(&conn->early, &call->queue);

    /* that of the WAIT that is under way, and of the next one */

    ngx_http_idem_redis_replicas_time(call, 2);

    ngx_http_idem_redis_flush(conn);
}


/* a write for the next WAIT to speak for */

void
ngx_http_idem_redis_replicas_cover(ngx_http_idem_redis_conn_t *conn)
{
    ngx_queue_t  *q;

    if (ngx_queue_empty(&conn->early)) {
        return;
    }

    q = ngx_queue_head(&conn->early);

    ngx_queue_remove(q);
    ngx_queue_insert_head(&conn->unsent, q);
}


/* it is done on the master; its time now is that of the replicas */

void
ngx_http_idem_redis_replicas_hold(ngx_http_idem_redis_call_t *call)
{
    ngx_http_idem_redis_conn_t  *conn;

    conn = call->conn;
    conn->wrote = 1;

    ngx_queue_remove(&call->queue);
    ngx_queue_insert_tail(&conn->held, &call->queue);

    ngx_http_idem_redis_replicas_time(call, 1);
}


/* so many WAITs, and what the server takes to answer */

static void
ngx_http_idem_redis_replicas_time(
    ngx_http_idem_redis_call_t *call, ngx_uint_t n)
{
    ngx_msec_t                   margin;
    ngx_event_t                 *timer;
    ngx_http_idem_redis_conn_t  *conn;

    conn = call->conn;

    margin = ngx_max(conn->redis->timeout,
                     NGX_HTTP_IDEM_REDIS_REPLICAS_MARGIN);

    timer = &call->op->timer;

    /* anew: it would be left as it is if it is about the same */

    if (timer->timer_set) {
        ngx_del_timer(timer);
    }

    ngx_add_timer(timer, n * conn->redis->replicas_timeout + margin);
}


static void
ngx_http_idem_redis_replicas_replied(
    ngx_http_idem_redis_call_t *call, redisReply *reply)
{
    ngx_queue_t                 *q;
    ngx_http_idem_op_t          *op;
    ngx_http_idem_redis_conn_t  *conn;

    conn = call->conn;

    ngx_http_idem_redis_call_free(call);

    if (reply->type != REDIS_REPLY_INTEGER
        && reply->type != REDIS_REPLY_ERROR)
    {
        ngx_http_idem_redis_drop(conn,
                                 "a reply does not fit its command");
        return;
    }

    conn->awaiting = 0;

    if (conn->timer.timer_set) {
        ngx_del_timer(&conn->timer);
    }

    if (conn->wrote) {
        ngx_queue_add(&conn->held, &conn->covered);

    } else {
        /* it spoke for something older: the next one will do */
        ngx_queue_add(&conn->early, &conn->covered);
    }

    ngx_queue_init(&conn->covered);

    while (!ngx_queue_empty(&conn->held)) {
        q = ngx_queue_head(&conn->held);
        call = ngx_queue_data(q, ngx_http_idem_redis_call_t, queue);
        op = call->op;

        if (ngx_http_idem_redis_replicas_demoted(reply)
            && call->tries < NGX_HTTP_IDEM_REDIS_REPLICAS_TRIES)
        {
            ngx_http_idem_redis_call_again(call);
            continue;
        }

        if (reply->type == REDIS_REPLY_ERROR
            || reply->integer < conn->redis->replicas)
        {
            ngx_http_idem_redis_replicas_missed(conn, op, reply);
        }

        ngx_http_idem_redis_committed(op);
    }

    /* the next lot */

    if (!ngx_queue_empty(&conn->unsent) || !ngx_queue_empty(&conn->early)) {
        ngx_http_idem_redis_flush(conn);
    }
}


/* another one is the master: what it wrote may be worth nothing any more */

static ngx_uint_t
ngx_http_idem_redis_replicas_demoted(redisReply *reply)
{
    return ngx_http_idem_redis_error_is(reply, "UNBLOCKED")
           || ngx_http_idem_redis_error_is(reply, "replica instances");
}


/* one line a second is a warning: there may be thousands of commits */

static void
ngx_http_idem_redis_replicas_missed(ngx_http_idem_redis_conn_t *conn,
    ngx_http_idem_op_t *op, redisReply *reply)
{
    u_char                 *p;
    u_char                  why[128];
    ngx_uint_t              level;
    ngx_http_idem_redis_t  *redis;

    redis = conn->redis;

    op->unacknowledged = 1;

    if (op->known) {
        return;
    }

    ngx_http_idem_metrics_count(redis->store->metrics,
                                  NGX_HTTP_IDEM_COUNT_REPLICAS_MISSED);

    level = NGX_LOG_INFO;

    if (redis->missed != ngx_time()) {
        redis->missed = ngx_time();
        level = NGX_LOG_WARN;
    }

    if (reply->type == REDIS_REPLY_ERROR) {
        p = ngx_cpymem(why, "WAIT is refused: ",
                       sizeof("WAIT is refused: ") - 1);
        p = ngx_http_idem_redis_error_text(p, why + sizeof(why), reply);
    } else {
        p = ngx_snprintf(why, sizeof(why), "after %M ms",
                         ngx_current_msec - conn->asked);
    }

    ngx_log_error(level, op->log, 0,
                  "idempotency: store \"%V\": a commit is on %L of %i "
                  "replicas of %V, %*s; it is lost if its master is, record "
                  "%*xs", &redis->store->name,
                  (int64_t) (reply->type == REDIS_REPLY_INTEGER
                             ? reply->integer : 0),
                  redis->replicas, &conn->node->name,
                  (size_t) (p - why), why, (size_t) 8, op->id);
}


/* replicas <n> [timeout=<time>]; 0: off */

char *
ngx_http_idem_redis_set_replicas(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field)
{
    ngx_int_t   n;
    ngx_str_t   s;

    if (redis->replicas != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    n = ngx_atoi(value[1].data, value[1].len);

    if (n == NGX_ERROR || n > NGX_HTTP_IDEM_REDIS_REPLICAS_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid number of replicas \"%V\" in "
                           "\"replicas\" directive: it is from 0 (off) to "
                           "%d", &value[1],
                           NGX_HTTP_IDEM_REDIS_REPLICAS_MAX);
        return NGX_CONF_ERROR;
    }

    redis->replicas = n;
    redis->replicas_timeout = NGX_HTTP_IDEM_REDIS_REPLICAS_TIMEOUT;

    if (cf->args->nelts == 2) {
        return NGX_CONF_OK;
    }

    if (cf->args->nelts > 3
        || ngx_strncmp(value[2].data, "timeout=", 8) != 0)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" in \"replicas\" "
                           "directive: it takes a number and a time, for "
                           "example \"replicas 1 timeout=500ms\"",
                           &value[cf->args->nelts - 1]);
        return NGX_CONF_ERROR;
    }

    s.data = value[2].data + 8;
    s.len = value[2].len - 8;

    n = ngx_parse_time(&s, 0);

    /* 0 would be for ever */

    if (n == NGX_ERROR || n == 0
        || n > NGX_HTTP_IDEM_REDIS_REPLICAS_LONGEST)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"replicas\" directive: "
                           "it is a time from 1ms to 1h, for example "
                           "timeout=500ms", &value[2]);
        return NGX_CONF_ERROR;
    }

    redis->replicas_timeout = (ngx_msec_t) n;

    return NGX_CONF_OK;
}
