
/*
 * A reply, or the replies, to the commands of ..._redis_script.c as the result
 * of the operation; or that it is to be asked once more, by its script.
 *
 * A reply whose tag is not that of its call is not ours.  Of an error nothing
 * is trusted but that it is one; of a record nothing before it is checked, see
 * ..._redis_record.c.
 *
 * Called by the connection and the backend when a reply is there.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "record/ngx_http_idempotency_number.h"
#include "store/redis/ngx_http_idempotency_redis.h"


/*
 * A reply is a string: the tag, a code, and what the script has to tell.  That
 * of a begin that found a record is an array of such a string and the record.
 */

#define NGX_HTTP_IDEMPOTENCY_REDIS_AT_CODE   4
#define NGX_HTTP_IDEMPOTENCY_REDIS_AT_MORE   5

#define NGX_HTTP_IDEMPOTENCY_REDIS_LOST      '0'
#define NGX_HTTP_IDEMPOTENCY_REDIS_DONE      '1'
#define NGX_HTTP_IDEMPOTENCY_REDIS_FOUND     '2'    /* begin                */
#define NGX_HTTP_IDEMPOTENCY_REDIS_NO_ROOM   '2'    /* commit               */
#define NGX_HTTP_IDEMPOTENCY_REDIS_NOTHING   '3'    /* place                */
#define NGX_HTTP_IDEMPOTENCY_REDIS_RUNNING   '4'    /* commit: lost to it   */


/* it would fill half of a request's pool */
#define NGX_HTTP_IDEMPOTENCY_REDIS_TAKE      2048


/* how begin got the lock */

#define NGX_HTTP_IDEMPOTENCY_REDIS_ABANDONED   '1'
#define NGX_HTTP_IDEMPOTENCY_REDIS_EXPIRED     '2'


static ngx_uint_t ngx_http_idempotency_redis_is_not_placed(
    ngx_http_idempotency_redis_call_t *call, redisReply *reply);
static ngx_int_t ngx_http_idempotency_redis_plain_result(
    ngx_http_idempotency_redis_call_t *call, redisReply *reply);
static ngx_int_t ngx_http_idempotency_redis_begun(
    ngx_http_idempotency_op_t *op, ngx_str_t *head, redisReply *reply);
static void ngx_http_idempotency_redis_found(ngx_http_idempotency_op_t *op,
    redisReply *value, int64_t life);
static const char *ngx_http_idempotency_redis_keep(
    ngx_http_idempotency_op_t *op, redisReply *value);
static void ngx_http_idempotency_redis_refused(ngx_http_idempotency_op_t *op,
    redisReply *reply);


/*
 * Scripts do not reply with a number or a status: where a reply is missing in
 * the stream, that is seen at once, and not when those to a later call have
 * come.
 */

ngx_int_t
ngx_http_idempotency_redis_reply_before(
    ngx_http_idempotency_redis_call_t *call)
{
    int  type;

    type = call->before[call->nbefore - 1]->type;

    if (type == REDIS_REPLY_ERROR) {
        return NGX_OK;
    }

    if (call->place) {
        return (type == REDIS_REPLY_STATUS) ? NGX_OK : NGX_ERROR;
    }

    if (call->nbefore == 1) {
        return (type == REDIS_REPLY_INTEGER) ? NGX_OK : NGX_ERROR;
    }

    return (type == REDIS_REPLY_NIL || type == REDIS_REPLY_STRING)
           ? NGX_OK : NGX_ERROR;
}


/* of several commands, that of the one which decides: the rest only look */

redisReply *
ngx_http_idempotency_redis_reply_error(
    ngx_http_idempotency_redis_call_t *call, redisReply *reply)
{
    if (call->nbefore && call->before[call->nbefore - 1]->type
                         == REDIS_REPLY_ERROR)
    {
        return call->before[call->nbefore - 1];
    }

    return (reply->type == REDIS_REPLY_ERROR) ? reply : NULL;
}


ngx_int_t
ngx_http_idempotency_redis_reply_result(
    ngx_http_idempotency_redis_call_t *call, redisReply *reply)
{
    u_char                      code;
    ngx_str_t                   head;
    redisReply                 *first;
    ngx_http_idempotency_op_t  *op;

    if (call->plain) {
        return ngx_http_idempotency_redis_plain_result(call, reply);
    }

    op = call->op;

    if (call->place && ngx_http_idempotency_redis_is_not_placed(call, reply)) {
        call->script = 1;
        return NGX_AGAIN;
    }

    if (reply->type == REDIS_REPLY_ERROR) {

        if (!call->whole && reply->len >= 8
            && ngx_strncmp(reply->str, "NOSCRIPT", 8) == 0)
        {
            call->conn->known = 0;
            call->eval = 1;
            return NGX_AGAIN;
        }

        ngx_http_idempotency_redis_refused(op, reply);
        return NGX_OK;
    }

    first = reply;

    if (reply->type == REDIS_REPLY_ARRAY && reply->elements) {
        first = reply->element[0];
    }

    if (first->type != REDIS_REPLY_STRING
        || first->len < NGX_HTTP_IDEMPOTENCY_REDIS_AT_MORE
        || ngx_memcmp(first->str, &call->tag,
                      NGX_HTTP_IDEMPOTENCY_REDIS_TAG_LEN)
           != 0)
    {
        return NGX_ERROR;
    }

    head.data = (u_char *) first->str;
    head.len = (size_t) first->len;

    code = head.data[NGX_HTTP_IDEMPOTENCY_REDIS_AT_CODE];

    call->conn->known |= 1 << (call->place ? NGX_HTTP_IDEMPOTENCY_REDIS_PLACE
                                           : op->kind);

    switch (op->kind) {

    case NGX_HTTP_IDEMPOTENCY_OP_BEGIN:
        return ngx_http_idempotency_redis_begun(op, &head, reply);

    case NGX_HTTP_IDEMPOTENCY_OP_WATCH:

        if (head.len != NGX_HTTP_IDEMPOTENCY_REDIS_AT_MORE + 8) {
            return NGX_ERROR;
        }

        op->found.left = (ngx_msec_t) ngx_http_idempotency_get64(
                               head.data + NGX_HTTP_IDEMPOTENCY_REDIS_AT_MORE);
        op->result = NGX_HTTP_IDEMPOTENCY_OK;
        return NGX_OK;

    case NGX_HTTP_IDEMPOTENCY_OP_COMMIT:

        if (call->place && code == NGX_HTTP_IDEMPOTENCY_REDIS_NOTHING) {
            call->script = 1;
            return NGX_AGAIN;
        }

        if (code == NGX_HTTP_IDEMPOTENCY_REDIS_NO_ROOM) {
            op->result = NGX_HTTP_IDEMPOTENCY_FULL;
            op->error = "there is no room in it";
            return NGX_OK;
        }

        op->running = (code == NGX_HTTP_IDEMPOTENCY_REDIS_RUNNING);

        /* fall through */

    default: /* renew, release */
        op->result = (code == NGX_HTTP_IDEMPOTENCY_REDIS_DONE)
                     ? NGX_HTTP_IDEMPOTENCY_OK : NGX_HTTP_IDEMPOTENCY_LOST;
        return NGX_OK;
    }
}


/* an error: nothing was done to the record, and its own script may do it */

static ngx_uint_t
ngx_http_idempotency_redis_is_not_placed(
    ngx_http_idempotency_redis_call_t *call, redisReply *reply)
{
    ngx_uint_t   i;
    redisReply  *replies[2];

    replies[0] = call->before[0];
    replies[1] = reply;

    for (i = 0; i < 2; i++) {

        if (replies[i]->type != REDIS_REPLY_ERROR) {
            continue;
        }

        if (ngx_http_idempotency_redis_error_is(replies[i], "NOPERM")
            || ngx_http_idempotency_redis_error_is(replies[i], "CROSSSLOT"))
        {
            call->conn->known |= NGX_HTTP_IDEMPOTENCY_REDIS_NO_PLACE;
        }

        if (ngx_http_idempotency_redis_error_is(replies[i], "NOSCRIPT")) {
            call->conn->known = 0;
        }

        return 1;
    }

    return 0;
}


/* of PTTL and SET, in call->before, and of PING */

static ngx_int_t
ngx_http_idempotency_redis_plain_result(
    ngx_http_idempotency_redis_call_t *call, redisReply *reply)
{
    ngx_str_t                   record;
    redisReply                 *pttl, *set;
    ngx_http_idempotency_op_t  *op;

    op = call->op;
    pttl = call->before[0];
    set = call->before[1];

    if (set->type == REDIS_REPLY_ERROR) {

        if (ngx_http_idempotency_redis_error_is(set, "syntax error")) {
            call->conn->known |= NGX_HTTP_IDEMPOTENCY_REDIS_NO_PLAIN;
        }

        goto script;
    }

    if (pttl->type == REDIS_REPLY_ERROR || reply->type == REDIS_REPLY_ERROR) {
        goto script;
    }

    if (reply->type != REDIS_REPLY_STRING
        || reply->len != NGX_HTTP_IDEMPOTENCY_REDIS_TAG_LEN
        || ngx_memcmp(reply->str, &call->tag,
                      NGX_HTTP_IDEMPOTENCY_REDIS_TAG_LEN)
           != 0)
    {
        return NGX_ERROR;
    }

    if (set->type == REDIS_REPLY_NIL) {
        op->result = NGX_HTTP_IDEMPOTENCY_ACQUIRED;
        op->abandoned = 0;
        op->expired = 0;
        return NGX_OK;
    }

    record.data = (u_char *) set->str;
    record.len = (size_t) set->len;

    if (ngx_http_idempotency_redis_record_lasts(op, &record, pttl->integer)) {
        ngx_http_idempotency_redis_found(op, set, pttl->integer);
        return NGX_OK;
    }

script:

    call->script = 1;

    if (set->type != REDIS_REPLY_NIL) {
        /* as if it had not been sent: nothing is to be undone */
        call->tries--;
    }

    return NGX_AGAIN;
}


static ngx_int_t
ngx_http_idempotency_redis_begun(ngx_http_idempotency_op_t *op,
    ngx_str_t *head, redisReply *reply)
{
    u_char     *more;
    ngx_str_t   record;

    more = head->data + NGX_HTTP_IDEMPOTENCY_REDIS_AT_MORE;

    switch (head->data[NGX_HTTP_IDEMPOTENCY_REDIS_AT_CODE]) {

    case NGX_HTTP_IDEMPOTENCY_REDIS_DONE:

        if (head->len != NGX_HTTP_IDEMPOTENCY_REDIS_AT_MORE + 1) {
            return NGX_ERROR;
        }

        op->result = NGX_HTTP_IDEMPOTENCY_ACQUIRED;
        op->abandoned = (*more == NGX_HTTP_IDEMPOTENCY_REDIS_ABANDONED);
        op->expired = (*more == NGX_HTTP_IDEMPOTENCY_REDIS_EXPIRED);
        return NGX_OK;

    case NGX_HTTP_IDEMPOTENCY_REDIS_FOUND:

        if (head->len != NGX_HTTP_IDEMPOTENCY_REDIS_AT_MORE + 8
            || ngx_http_idempotency_redis_field(reply, 1, &record) != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_http_idempotency_redis_found(op, reply->element[1],
                      (int64_t) ngx_http_idempotency_get64(more));
        return NGX_OK;

    default:
        return NGX_ERROR;
    }
}


static void
ngx_http_idempotency_redis_found(ngx_http_idempotency_op_t *op,
    redisReply *value, int64_t life)
{
    ngx_str_t  record;

    record.data = (u_char *) value->str;
    record.len = (size_t) value->len;

    op->error = ngx_http_idempotency_redis_record_found(op, &record, life);

    if (op->error == NULL) {
        op->error = ngx_http_idempotency_redis_keep(op, value);
    }

    if (op->error == NULL) {
        return;
    }

    op->result = NGX_HTTP_IDEMPOTENCY_ERROR;
    op->bad_record = 1;

    ngx_log_error(NGX_LOG_ERR, op->log, 0,
                  "idempotency: store \"%V\": record %*xs is not usable: %s",
                  &op->store->name, (size_t) 8, op->id, op->error);
}


/*
 * What was found outlives the reply.  A large one is not copied: its memory
 * goes over to the pool.
 */

static const char *
ngx_http_idempotency_redis_keep(ngx_http_idempotency_op_t *op,
    redisReply *value)
{
    u_char                        *p;
    ngx_pool_cleanup_t            *cln;
    ngx_http_idempotency_found_t  *found;

    found = &op->found;

    if (found->response.len + found->details.len == 0) {
        return NULL;
    }

    if (value->len >= NGX_HTTP_IDEMPOTENCY_REDIS_TAKE) {

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

    p = ngx_pnalloc(op->pool, found->response.len + found->details.len);
    if (p == NULL) {
        return "there is no memory for its response";
    }

    if (found->response.len) {
        ngx_memcpy(p, found->response.data, found->response.len);
        found->response.data = p;
        p += found->response.len;
    }

    if (found->details.len) {
        ngx_memcpy(p, found->details.data, found->details.len);
        found->details.data = p;
    }

    return NULL;
}


/* the server's word for it, in op->error */

static void
ngx_http_idempotency_redis_refused(ngx_http_idempotency_op_t *op,
    redisReply *reply)
{
    u_char         *p, *last;

    static u_char   text[NGX_HTTP_IDEMPOTENCY_REDIS_ERROR_LEN];

    if (ngx_http_idempotency_redis_error_is(reply, "OOM command")) {
        op->result = NGX_HTTP_IDEMPOTENCY_FULL;
        op->error = "Redis is at its maxmemory";
        return;
    }

    op->result = NGX_HTTP_IDEMPOTENCY_ERROR;

    /* an error of a watch is gone before it could change */

    p = op->pool ? ngx_pnalloc(op->pool, sizeof(text)) : NULL;

    if (p == NULL) {
        p = text;
    }

    op->error = (char *) p;

    last = p + sizeof(text) - 1;

    p = ngx_slprintf(p, last, "%s",
        ngx_http_idempotency_redis_error_is(reply, "WRONGTYPE")
            ? "the key of the record holds something else: "
        : ngx_http_idempotency_redis_error_is(reply, "READONLY")
            ? "the server is a replica: "
        : ngx_http_idempotency_redis_error_is(reply, "NOAUTH")
          || ngx_http_idempotency_redis_error_is(reply, "unauthenticated")
            ? "the server wants a password: "
        : ngx_http_idempotency_redis_error_is(reply, "NOPERM")
            ? "the user may not do that: "
        : ngx_http_idempotency_redis_conf(op)->cluster == 0
          && (ngx_strncmp(reply->str, "MOVED ", 6) == 0
              || ngx_strncmp(reply->str, "ASK ", 4) == 0)
            ? "the server is of a cluster, and there is no \"cluster on\": "
        : "");

    p = ngx_http_idempotency_redis_error_text(p, last, reply);
    *p = '\0';

    if (ngx_http_idempotency_redis_error_is(reply, "WRONGTYPE")) {
        op->bad_record = 1;

        ngx_log_error(NGX_LOG_ERR, op->log, 0,
                      "idempotency: store \"%V\": record %*xs is not usable: "
                      "its key is not a string", &op->store->name, (size_t) 8,
                      op->id);
    }
}
