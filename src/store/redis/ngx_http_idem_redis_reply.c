
/*
 * A reply, or the replies, to the commands of ..._redis_script.c and
 * ..._redis_plain.c as the result of the operation; or that it is to be asked
 * once more, by its script.
 *
 * A reply of a script whose tag is not that of its call is not ours, nor is
 * one of a plain begin with the lock of another record.  That of a plain
 * commit is a number: one that is another's is seen by what comes next, a
 * reply of another type, or too many.  Of an error nothing is trusted but
 * that it is one; of a record nothing before it is checked, see
 * ..._redis_record.c.
 *
 * Called by the connection and the backend when a reply is there.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem_number.h"
#include "store/redis/ngx_http_idem_redis.h"


/*
 * A reply is a string: the tag, a code, and what the script has to tell.  That
 * of a begin that found a record is an array of such a string and the first
 * two elements of the record.
 */

#define NGX_HTTP_IDEM_REDIS_AT_CODE   4
#define NGX_HTTP_IDEM_REDIS_AT_MORE   5

#define NGX_HTTP_IDEM_REDIS_LOST      '0'
#define NGX_HTTP_IDEM_REDIS_DONE      '1'
#define NGX_HTTP_IDEM_REDIS_FOUND     '2'           /* begin                */
#define NGX_HTTP_IDEM_REDIS_GONE      '3'           /* begin                */
#define NGX_HTTP_IDEM_REDIS_NO_ROOM   '2'           /* commit               */
#define NGX_HTTP_IDEM_REDIS_RUNNING   '4'           /* commit: lost to it   */


/* elements of a record that is over, if nobody waits for it */
#define NGX_HTTP_IDEM_REDIS_OVER_N    3

/* it would fill half of a request's pool */
#define NGX_HTTP_IDEM_REDIS_TAKE      2048


/* how begin got the lock */

#define NGX_HTTP_IDEM_REDIS_ABANDONED   '1'
#define NGX_HTTP_IDEM_REDIS_EXPIRED     '2'


static ngx_int_t ngx_http_idem_redis_plain_begun(
    ngx_http_idem_redis_call_t *call, redisReply *reply);
static ngx_int_t ngx_http_idem_redis_plain_record(
    ngx_http_idem_redis_call_t *call, redisReply *reply,
    ngx_str_t *lock, ngx_str_t *second);
static ngx_int_t ngx_http_idem_redis_plain_found(
    ngx_http_idem_redis_call_t *call, redisReply *reply);
static ngx_int_t ngx_http_idem_redis_plain_committed(
    ngx_http_idem_redis_call_t *call, redisReply *reply);
static void ngx_http_idem_redis_plain_refused(
    ngx_http_idem_redis_call_t *call, redisReply *reply);
static ngx_int_t ngx_http_idem_redis_begun(
    ngx_http_idem_op_t *op, ngx_str_t *head, redisReply *reply);
static void ngx_http_idem_redis_found(ngx_http_idem_op_t *op,
    redisReply *lock, redisReply *second, int64_t life);
static const char *ngx_http_idem_redis_keep(
    ngx_http_idem_op_t *op, ngx_str_t *part, redisReply *value);
static void ngx_http_idem_redis_refused(ngx_http_idem_op_t *op,
    redisReply *reply);


#define ngx_http_idem_redis_is_busy(reply)                                    \
    ((reply)->type == REDIS_REPLY_ERROR && (reply)->len >= 7                  \
     && ngx_strncmp((reply)->str, "BUSYKEY", 7) == 0)


/*
 * Of PTTL and RESTORE.  Scripts do not reply with a number or a status, nor
 * LRANGE: where a reply is missing in the stream, that is seen at once, and
 * not when those to a later call have come.
 */

ngx_int_t
ngx_http_idem_redis_reply_before(ngx_http_idem_redis_call_t *call)
{
    int  type;

    type = call->before[call->nbefore - 1]->type;

    if (call->nbefore < call->due) {
        return (type == REDIS_REPLY_INTEGER
                || (type == REDIS_REPLY_ERROR
                    && !ngx_http_idem_redis_is_busy(call->before[0])))
               ? NGX_OK : NGX_ERROR;
    }

    return (type == REDIS_REPLY_STATUS || type == REDIS_REPLY_ERROR)
           ? NGX_OK : NGX_ERROR;
}


/*
 * Of several commands, that of the one which decides: the rest only look.
 * That something is there is no error.
 */

redisReply *
ngx_http_idem_redis_reply_error(
    ngx_http_idem_redis_call_t *call, redisReply *reply)
{
    redisReply  *restore;

    if (call->nbefore) {
        restore = call->before[call->nbefore - 1];

        if (restore->type == REDIS_REPLY_ERROR
            && !ngx_http_idem_redis_is_busy(restore))
        {
            return restore;
        }
    }

    return (reply->type == REDIS_REPLY_ERROR) ? reply : NULL;
}


ngx_int_t
ngx_http_idem_redis_reply_result(
    ngx_http_idem_redis_call_t *call, redisReply *reply)
{
    u_char               code;
    ngx_str_t            head;
    redisReply          *first;
    ngx_http_idem_op_t  *op;

    op = call->op;

    if (ngx_http_idem_redis_is_busy(reply)) {
        /* it is that of a RESTORE, which never is the last */
        return NGX_ERROR;
    }

    if (call->plain) {
        return (op->kind == NGX_HTTP_IDEM_OP_BEGIN)
               ? ngx_http_idem_redis_plain_begun(call, reply)
               : ngx_http_idem_redis_plain_committed(call, reply);
    }

    if (reply->type == REDIS_REPLY_ERROR) {

        if (!call->whole && reply->len >= 8
            && ngx_strncmp(reply->str, "NOSCRIPT", 8) == 0)
        {
            call->conn->known = 0;
            call->eval = 1;
            return NGX_AGAIN;
        }

        ngx_http_idem_redis_refused(op, reply);
        return NGX_OK;
    }

    first = reply;

    if (reply->type == REDIS_REPLY_ARRAY && reply->elements) {
        first = reply->element[0];
    }

    if (first->type != REDIS_REPLY_STRING
        || first->len < NGX_HTTP_IDEM_REDIS_AT_MORE
        || ngx_memcmp(first->str, &call->tag, NGX_HTTP_IDEM_REDIS_TAG_LEN)
           != 0)
    {
        return NGX_ERROR;
    }

    head.data = (u_char *) first->str;
    head.len = (size_t) first->len;

    code = head.data[NGX_HTTP_IDEM_REDIS_AT_CODE];

    call->conn->known |= 1 << op->kind;

    switch (op->kind) {

    case NGX_HTTP_IDEM_OP_BEGIN:
        return ngx_http_idem_redis_begun(op, &head, reply);

    case NGX_HTTP_IDEM_OP_WATCH:

        if (head.len != NGX_HTTP_IDEM_REDIS_AT_MORE + 8) {
            return NGX_ERROR;
        }

        op->found.left = (ngx_msec_t) ngx_http_idem_get64(
                               head.data + NGX_HTTP_IDEM_REDIS_AT_MORE);
        op->result = NGX_HTTP_IDEM_OK;
        return NGX_OK;

    case NGX_HTTP_IDEM_OP_COMMIT:

        if (code == NGX_HTTP_IDEM_REDIS_NO_ROOM) {
            op->result = NGX_HTTP_IDEM_FULL;
            op->error = "there is no room in it";
            return NGX_OK;
        }

        op->running = (code == NGX_HTTP_IDEM_REDIS_RUNNING);

        /* fall through */

    default: /* renew, release */
        op->result = (code == NGX_HTTP_IDEM_REDIS_DONE)
                     ? NGX_HTTP_IDEM_OK : NGX_HTTP_IDEM_LOST;
        return NGX_OK;
    }
}


/* of RESTORE, the last of call->before, and of LRANGE */

static ngx_int_t
ngx_http_idem_redis_plain_begun(
    ngx_http_idem_redis_call_t *call, redisReply *reply)
{
    ngx_int_t            rc;
    ngx_str_t            lock, token;
    redisReply          *restore;
    ngx_http_idem_op_t  *op;

    op = call->op;
    restore = call->before[call->nbefore - 1];

    call->script = 1;

    if (restore->type == REDIS_REPLY_ERROR) {

        if (ngx_http_idem_redis_is_busy(restore)) {
            rc = ngx_http_idem_redis_plain_found(call, reply);

        } else {
            ngx_http_idem_redis_plain_refused(call, restore);
            rc = NGX_AGAIN;
        }

        if (rc == NGX_AGAIN) {
            /* as if it had not been sent: nothing is to be undone */
            call->tries--;
        }

        return rc;
    }

    rc = ngx_http_idem_redis_plain_record(call, reply, &lock, &token);

    if (rc != NGX_OK) {
        return rc;
    }

    if (token.len != NGX_HTTP_IDEM_TOKEN_LEN
        || ngx_memcmp(token.data, op->token, NGX_HTTP_IDEM_TOKEN_LEN)
           != 0)
    {
        return NGX_AGAIN;
    }

    op->result = NGX_HTTP_IDEM_ACQUIRED;
    op->abandoned = 0;
    op->expired = 0;

    return NGX_OK;
}


/* of LRANGE: the first two elements, of the record that was asked for */

static ngx_int_t
ngx_http_idem_redis_plain_record(ngx_http_idem_redis_call_t *call,
    redisReply *reply, ngx_str_t *lock, ngx_str_t *second)
{
    if (reply->type == REDIS_REPLY_ERROR) {
        ngx_http_idem_redis_plain_refused(call, reply);
        return NGX_AGAIN;
    }

    if (reply->type != REDIS_REPLY_ARRAY) {
        return NGX_ERROR;
    }

    if (ngx_http_idem_redis_field(reply, 0, lock) != NGX_OK
        || ngx_http_idem_redis_field(reply, 1, second) != NGX_OK)
    {
        /* it is gone again, or no record */
        return NGX_AGAIN;
    }

    return ngx_http_idem_redis_record_other(call->op, lock)
           ? NGX_ERROR : NGX_OK;
}


/* of LRANGE: there is something */

static ngx_int_t
ngx_http_idem_redis_plain_found(
    ngx_http_idem_redis_call_t *call, redisReply *reply)
{
    int64_t              life;
    ngx_int_t            rc;
    ngx_str_t            lock, second;
    ngx_http_idem_op_t  *op;

    op = call->op;

    rc = ngx_http_idem_redis_plain_record(call, reply, &lock, &second);

    if (rc != NGX_OK) {
        return rc;
    }

    life = NGX_HTTP_IDEM_REDIS_LIFE_UNKNOWN;

    if (call->nbefore == 2) {

        if (call->before[0]->type == REDIS_REPLY_ERROR) {
            return NGX_AGAIN;
        }

        life = call->before[0]->integer;

        if (life < 0) {
            /* it came in between, or has no expiry */
            return NGX_AGAIN;
        }
    }

    if (!ngx_http_idem_redis_record_lasts(op, &lock, &second, life)) {
        return NGX_AGAIN;
    }

    if (op->waits && second.len == NGX_HTTP_IDEM_TOKEN_LEN) {
        /* in progress: the script says in the record that somebody waits */
        return NGX_AGAIN;
    }

    ngx_http_idem_redis_found(op, reply->element[0], reply->element[1], life);
    return NGX_OK;
}


/* of LINSERT: the length of the list, or why nothing was inserted */

static ngx_int_t
ngx_http_idem_redis_plain_committed(
    ngx_http_idem_redis_call_t *call, redisReply *reply)
{
    call->script = 1;

    if (reply->type == REDIS_REPLY_ERROR) {
        ngx_http_idem_redis_plain_refused(call, reply);
        return NGX_AGAIN;
    }

    if (reply->type != REDIS_REPLY_INTEGER) {
        return NGX_ERROR;
    }

    switch (reply->integer) {

    case -1: /* our token is not there */
    case 0:  /* there is no such key */
        return NGX_AGAIN;

    case NGX_HTTP_IDEM_REDIS_OVER_N:
        break;

    default:

        if (reply->integer < NGX_HTTP_IDEM_REDIS_OVER_N) {
            return NGX_ERROR;
        }

        call->waited = 1;
    }

    call->op->result = NGX_HTTP_IDEM_OK;

    return NGX_OK;
}


/*
 * The server can't do that (it does not know the command, or the payload), or
 * the user may not: no use in trying again.  What passes has other words.
 */

static void
ngx_http_idem_redis_plain_refused(
    ngx_http_idem_redis_call_t *call, redisReply *reply)
{
    if (ngx_strncmp(reply->str, "ERR ", 4) == 0
        || ngx_strncmp(reply->str, "NOPERM ", 7) == 0)
    {
        call->conn->known |= ngx_http_idem_redis_no_plain(call->op->kind);
    }
}


static ngx_int_t
ngx_http_idem_redis_begun(ngx_http_idem_op_t *op,
    ngx_str_t *head, redisReply *reply)
{
    u_char     *more;
    ngx_str_t   lock, second;

    more = head->data + NGX_HTTP_IDEM_REDIS_AT_MORE;

    switch (head->data[NGX_HTTP_IDEM_REDIS_AT_CODE]) {

    case NGX_HTTP_IDEM_REDIS_DONE:

        if (head->len != NGX_HTTP_IDEM_REDIS_AT_MORE + 1) {
            return NGX_ERROR;
        }

        op->result = NGX_HTTP_IDEM_ACQUIRED;
        op->abandoned = (*more == NGX_HTTP_IDEM_REDIS_ABANDONED);
        op->expired = (*more == NGX_HTTP_IDEM_REDIS_EXPIRED);
        return NGX_OK;

    case NGX_HTTP_IDEM_REDIS_GONE:
        op->result = NGX_HTTP_IDEM_GONE;
        return NGX_OK;

    case NGX_HTTP_IDEM_REDIS_FOUND:

        if (head->len != NGX_HTTP_IDEM_REDIS_AT_MORE + 8
            || ngx_http_idem_redis_field(reply, 1, &lock) != NGX_OK
            || ngx_http_idem_redis_field(reply, 2, &second) != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_http_idem_redis_found(op, reply->element[1], reply->element[2],
                      (int64_t) ngx_http_idem_get64(more));
        return NGX_OK;

    default:
        return NGX_ERROR;
    }
}


static void
ngx_http_idem_redis_found(ngx_http_idem_op_t *op,
    redisReply *lock, redisReply *second, int64_t life)
{
    ngx_str_t  elements[2];

    elements[0].data = (u_char *) lock->str;
    elements[0].len = (size_t) lock->len;
    elements[1].data = (u_char *) second->str;
    elements[1].len = (size_t) second->len;

    op->error = ngx_http_idem_redis_record_found(op, &elements[0],
                                                 &elements[1], life);

    if (op->error == NULL) {
        op->error = ngx_http_idem_redis_keep(op, &op->found.details, lock);
    }

    if (op->error == NULL) {
        op->error = ngx_http_idem_redis_keep(op, &op->found.response, second);
    }

    if (op->error == NULL) {
        return;
    }

    op->result = NGX_HTTP_IDEM_ERROR;
    op->bad_record = 1;

    ngx_log_error(NGX_LOG_ERR, op->log, 0,
                  "idempotency: store \"%V\": record %*xs is not usable: %s",
                  &op->store->name, (size_t) 8, op->id, op->error);
}


/*
 * A part of what was found outlives the reply.  A large one is not copied: its
 * memory goes over to the pool.
 */

static const char *
ngx_http_idem_redis_keep(ngx_http_idem_op_t *op,
    ngx_str_t *part, redisReply *value)
{
    u_char              *p;
    ngx_pool_cleanup_t  *cln;

    if (part->len == 0) {
        return NULL;
    }

    if (value->len >= NGX_HTTP_IDEM_REDIS_TAKE) {

        cln = ngx_pool_cleanup_add(op->pool, 0);
        if (cln == NULL) {
            return "there is no memory for its response";
        }

        cln->handler = free;
        cln->data = value->str;

        value->str = NULL;
        value->len = 0;

        return NULL;
    }

    p = ngx_pnalloc(op->pool, part->len);
    if (p == NULL) {
        return "there is no memory for its response";
    }

    ngx_memcpy(p, part->data, part->len);
    part->data = p;

    return NULL;
}


/* the server's word for it, in op->error */

static void
ngx_http_idem_redis_refused(ngx_http_idem_op_t *op, redisReply *reply)
{
    u_char         *p, *last;

    static u_char   text[NGX_HTTP_IDEM_REDIS_ERROR_LEN];

    if (ngx_http_idem_redis_error_is(reply, "OOM command")) {
        op->result = NGX_HTTP_IDEM_FULL;
        op->error = "Redis is at its maxmemory";
        return;
    }

    op->result = NGX_HTTP_IDEM_ERROR;

    /* an error of a watch is gone before it could change */

    p = op->pool ? ngx_pnalloc(op->pool, sizeof(text)) : NULL;

    if (p == NULL) {
        p = text;
    }

    op->error = (char *) p;

    last = p + sizeof(text) - 1;

    p = ngx_slprintf(p, last, "%s",
        ngx_http_idem_redis_error_is(reply, "WRONGTYPE")
            ? "the key of the record holds something else: "
        : ngx_http_idem_redis_error_is(reply, "READONLY")
            ? "the server is a replica: "
        : ngx_http_idem_redis_error_is(reply, "NOAUTH")
          || ngx_http_idem_redis_error_is(reply, "unauthenticated")
            ? "the server wants a password: "
        : ngx_http_idem_redis_error_is(reply, "NOPERM")
            ? "the user may not do that: "
        : ngx_http_idem_redis_conf(op)->cluster == 0
          && (ngx_strncmp(reply->str, "MOVED ", 6) == 0
              || ngx_strncmp(reply->str, "ASK ", 4) == 0)
            ? "the server is of a cluster, and there is no \"cluster on\": "
        : "");

    p = ngx_http_idem_redis_error_text(p, last, reply);
    *p = '\0';

    if (ngx_http_idem_redis_error_is(reply, "WRONGTYPE")) {
        op->bad_record = 1;

        ngx_log_error(NGX_LOG_ERR, op->log, 0,
                      "idempotency: store \"%V\": record %*xs is not usable: "
                      "its key is not a list", &op->store->name, (size_t) 8,
                      op->id);
    }
}
