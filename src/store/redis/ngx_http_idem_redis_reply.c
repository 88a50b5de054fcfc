
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Turns a reply into the result of the operation, or decides that the
 * operation is to be sent again as a script.
 *
 * A script's reply with another tag, or a record with another id, does not
 * belong to the call.  The reply to a native begin on a missing record is
 * nil, which can't be identified; an additional reply in the stream reveals
 * the mistake, see ngx_redis_receive.c.  The text of an error is not
 * trusted.  A record is checked before anything in it is used, see
 * ..._redis_record.c.
 *
 * Called by the backend when a reply was received.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem_number.h"
#include "store/redis/ngx_http_idem_redis.h"


/*
 * The reply of a script is a string: the tag, a code, and further data.  If a
 * begin found a record, the reply is an array of such a string and the
 * record.
 */

#define NGX_HTTP_IDEM_REDIS_AT_CODE   4
#define NGX_HTTP_IDEM_REDIS_AT_MORE   5

#define NGX_HTTP_IDEM_REDIS_DONE      '1'
#define NGX_HTTP_IDEM_REDIS_FOUND     '2'           /* begin                */
#define NGX_HTTP_IDEM_REDIS_GONE      '3'           /* begin                */
#define NGX_HTTP_IDEM_REDIS_NO_ROOM   '2'           /* commit               */
#define NGX_HTTP_IDEM_REDIS_RUNNING   '4'           /* commit: lost to it   */
#define NGX_HTTP_IDEM_REDIS_UPGRADED  '5'           /* upgrade              */


/* limit for copying, about half of a request's pool */
#define NGX_HTTP_IDEM_REDIS_TAKE      2048


/* how begin acquired the lock */

#define NGX_HTTP_IDEM_REDIS_ABANDONED   '1'
#define NGX_HTTP_IDEM_REDIS_EXPIRED     '2'


static ngx_int_t ngx_http_idem_redis_native_result(
    ngx_http_idem_redis_call_t *call, redisReply *reply);
static ngx_int_t ngx_http_idem_redis_native_found(
    ngx_http_idem_redis_call_t *call, redisReply *reply, ngx_str_t *record);
static ngx_int_t ngx_http_idem_redis_native_written(
    ngx_http_idem_redis_call_t *call, redisReply *reply, ngx_str_t *record);
static ngx_int_t ngx_http_idem_redis_script_refused(
    ngx_http_idem_redis_call_t *call, redisReply *reply);
static ngx_int_t ngx_http_idem_redis_script_result(
    ngx_http_idem_redis_call_t *call, u_char code, u_char *p, u_char *last);
static ngx_int_t ngx_http_idem_redis_script_begun(
    ngx_http_idem_redis_call_t *call, ngx_str_t *head, redisReply *reply);
static ngx_int_t ngx_http_idem_redis_script_before(ngx_http_idem_op_t *op,
    u_char *p, size_t len);
static void ngx_http_idem_redis_found(ngx_http_idem_op_t *op,
    redisReply *record, int64_t life);
static const char *ngx_http_idem_redis_keep(ngx_http_idem_op_t *op,
    redisReply *value);
static void ngx_http_idem_redis_refused(ngx_http_idem_op_t *op,
    redisReply *reply);


ngx_int_t
ngx_http_idem_redis_reply_result(ngx_http_idem_redis_call_t *call,
    redisReply *reply)
{
    ngx_int_t            rc;
    ngx_str_t            head;
    redisReply          *first;
    ngx_http_idem_op_t  *op;

    op = call->call.data;

    if (call->native) {
        rc = ngx_http_idem_redis_native_result(call, reply);

        if (rc != NGX_DECLINED) {
            return rc;
        }

        /* does not count as sent: it wrote nothing that might have to be
           undone */

        call->call.tries--;
        call->script = 1;

        return NGX_AGAIN;
    }

    if (reply->type == REDIS_REPLY_ERROR) {
        return ngx_http_idem_redis_script_refused(call, reply);
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

    call->call.conn->flags |= ngx_http_idem_redis_has(
                                         ngx_http_idem_redis_script_of(call));

    if (op->kind == NGX_HTTP_IDEM_OP_BEGIN) {
        return ngx_http_idem_redis_script_begun(call, &head, reply);
    }

    return ngx_http_idem_redis_script_result(call,
                             head.data[NGX_HTTP_IDEM_REDIS_AT_CODE],
                             head.data + NGX_HTTP_IDEM_REDIS_AT_MORE,
                             head.data + head.len);
}


/* "p" is after the code of the reply */

static ngx_int_t
ngx_http_idem_redis_script_result(ngx_http_idem_redis_call_t *call,
    u_char code, u_char *p, u_char *last)
{
    ngx_http_idem_op_t  *op;

    op = call->call.data;

    switch (op->kind) {

    case NGX_HTTP_IDEM_OP_GET:
    case NGX_HTTP_IDEM_OP_REMOVE:
    case NGX_HTTP_IDEM_OP_LIST:
        return ngx_http_idem_redis_admin_result(call, code, p, last);

    case NGX_HTTP_IDEM_OP_LOG:
    case NGX_HTTP_IDEM_OP_EVENTS:
        return ngx_http_idem_redis_trail_result(call, code, p, last);

    case NGX_HTTP_IDEM_OP_WATCH:

        if (last - p != 8) {
            return NGX_ERROR;
        }

        op->found.left = (ngx_msec_t) ngx_http_idem_get64(p);
        op->result = NGX_HTTP_IDEM_OK;
        return NGX_OK;

    case NGX_HTTP_IDEM_OP_COMMIT:

        if (code == NGX_HTTP_IDEM_REDIS_NO_ROOM) {
            op->result = NGX_HTTP_IDEM_FULL;
            op->error = "there is no room in it";
            return NGX_OK;
        }

        op->running = (code == NGX_HTTP_IDEM_REDIS_RUNNING);

        /*
         * The native command may have committed although its reply was lost.
         * It has then overwritten the mark of the waiters in the lock that it
         * replaced.
         */

        call->waited = call->expected.len
                       && ngx_http_idem_redis_record_waited(&call->expected);

        /* fall through */

    default: /* renew, release */
        op->result = (code == NGX_HTTP_IDEM_REDIS_DONE)
                     ? NGX_HTTP_IDEM_OK : NGX_HTTP_IDEM_LOST;
        return NGX_OK;
    }
}


/* NGX_DECLINED: a script has to decide */

static ngx_int_t
ngx_http_idem_redis_native_result(ngx_http_idem_redis_call_t *call,
    redisReply *reply)
{
    ngx_str_t            record;
    ngx_http_idem_op_t  *op;

    op = call->call.data;

    if (reply->type == REDIS_REPLY_ERROR) {

        if (op->kind == NGX_HTTP_IDEM_OP_BEGIN) {
            call->upgrade = ngx_redis_error_is(reply, "WRONGTYPE");
        }

        /*
         * The server does not support the command after all, or the user has
         * no permission: not tried again on this connection.  Temporary errors
         * have other prefixes.
         */

        if (ngx_strncmp(reply->str, "ERR ", 4) == 0
            || ngx_strncmp(reply->str, "NOPERM ", 7) == 0)
        {
            call->call.conn->flags |= ngx_http_idem_redis_not(op->kind);
        }

        return NGX_DECLINED;
    }

    if (op->kind == NGX_HTTP_IDEM_OP_RELEASE) {

        /* the number of keys that DELIFEQ or DELEX has deleted */

        if (reply->type != REDIS_REPLY_INTEGER) {
            return NGX_ERROR;
        }

        /* the record is gone, is marked by a waiter, or has another holder */

        if (reply->integer != 1) {
            return NGX_DECLINED;
        }

        op->result = NGX_HTTP_IDEM_OK;
        return NGX_OK;
    }

    if (reply->type == REDIS_REPLY_NIL) {

        /* there was no record */

        if (op->kind != NGX_HTTP_IDEM_OP_BEGIN) {
            return NGX_DECLINED;
        }

        op->result = NGX_HTTP_IDEM_ACQUIRED;
        op->abandoned = 0;
        op->expired = 0;

        return NGX_OK;
    }

    if (reply->type != REDIS_REPLY_STRING) {
        return NGX_ERROR;
    }

    record.data = (u_char *) reply->str;
    record.len = (size_t) reply->len;

    if (ngx_http_idem_redis_record_other(op, &record)) {
        return NGX_ERROR;
    }

    return (op->kind == NGX_HTTP_IDEM_OP_BEGIN)
           ? ngx_http_idem_redis_native_found(call, reply, &record)
           : ngx_http_idem_redis_native_written(call, reply, &record);
}


static ngx_int_t
ngx_http_idem_redis_native_found(ngx_http_idem_redis_call_t *call,
    redisReply *reply, ngx_str_t *record)
{
    int64_t              life;
    redisReply          *pttl;
    ngx_http_idem_op_t  *op;

    op = call->call.data;
    pttl = call->call.first_reply;
    life = NGX_HTTP_IDEM_REDIS_LIFE_UNKNOWN;

    if (pttl) {

        /* negative: the record was written after PTTL, or has no expiry */

        life = (pttl->type == REDIS_REPLY_INTEGER) ? pttl->integer : -1;
    }

    if (!ngx_http_idem_redis_record_usable(op, record, life)) {
        return NGX_DECLINED;
    }

    ngx_http_idem_redis_found(op, reply, life);

    return NGX_OK;
}


/* the previous value of a renewal or a commit: our own lock, or not */

static ngx_int_t
ngx_http_idem_redis_native_written(ngx_http_idem_redis_call_t *call,
    redisReply *reply, ngx_str_t *record)
{
    ngx_http_idem_op_t  *op;

    op = call->call.data;

    if (call->expected.len
        ? record->len == call->expected.len
          && ngx_memcmp(record->data, call->expected.data, record->len) == 0
        : ngx_http_idem_redis_record_is_lock(op, record))
    {
        call->waited = ngx_http_idem_redis_record_waited(record);
        op->result = NGX_HTTP_IDEM_OK;

        return NGX_OK;
    }

    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT
        && call->expected.len == 0
        && ngx_http_idem_redis_record_ours(op, record))
    {
        /* our lock was changed; the call takes over the memory of the
           reply */

        call->expected = *record;
        call->call.to_free = record->data;
        reply->str = NULL;

        return NGX_AGAIN;
    }

    return NGX_DECLINED;
}


static ngx_int_t
ngx_http_idem_redis_script_refused(ngx_http_idem_redis_call_t *call,
    redisReply *reply)
{
    ngx_http_idem_op_t  *op;

    op = call->call.data;

    if (!call->whole && ngx_strncmp(reply->str, "NOSCRIPT", 8) == 0) {
        /* does not count as sent: nothing was executed */

        call->call.conn->flags &= ~ngx_http_idem_redis_scripts_all;
        call->call.tries--;
        call->eval = 1;

        return NGX_AGAIN;
    }

    if (ngx_redis_error_is(reply, "WRONGTYPE")) {

        if (op->kind == NGX_HTTP_IDEM_OP_BEGIN && !call->upgraded) {
            call->upgrade = 1;
            call->upgraded = 1;
            return NGX_AGAIN;
        }

        if (op->kind == NGX_HTTP_IDEM_OP_WATCH) {

            /* a lock of the previous version: poll it */

            op->result = NGX_HTTP_IDEM_OK;
            op->found.left = NGX_HTTP_IDEM_REDIS_LOOK;
            return NGX_OK;
        }
    }

    ngx_http_idem_redis_refused(op, reply);

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_redis_script_begun(ngx_http_idem_redis_call_t *call,
    ngx_str_t *head, redisReply *reply)
{
    u_char              *more;
    ngx_str_t            record;
    ngx_http_idem_op_t  *op;

    op = call->call.data;
    more = head->data + NGX_HTTP_IDEM_REDIS_AT_MORE;

    switch (head->data[NGX_HTTP_IDEM_REDIS_AT_CODE]) {

    case NGX_HTTP_IDEM_REDIS_UPGRADED:

        if (!call->upgrade) {
            return NGX_ERROR;
        }

        call->upgrade = 0;
        call->upgraded = 1;
        call->eval = 0;
        call->call.tries--;

        return NGX_AGAIN;

    case NGX_HTTP_IDEM_REDIS_DONE:

        if (call->upgrade || head->len < NGX_HTTP_IDEM_REDIS_AT_MORE + 1) {
            return NGX_ERROR;
        }

        op->abandoned = (*more == NGX_HTTP_IDEM_REDIS_ABANDONED);
        op->expired = (*more == NGX_HTTP_IDEM_REDIS_EXPIRED);

        op->result = NGX_HTTP_IDEM_ACQUIRED;
        head->len -= NGX_HTTP_IDEM_REDIS_AT_MORE + 1;

        return ngx_http_idem_redis_script_before(op, more + 1, head->len);

    case NGX_HTTP_IDEM_REDIS_GONE:
        op->result = NGX_HTTP_IDEM_GONE;
        return NGX_OK;

    case NGX_HTTP_IDEM_REDIS_FOUND:

        if (head->len != NGX_HTTP_IDEM_REDIS_AT_MORE + 8
            || ngx_redis_field(reply, 1, &record) != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_http_idem_redis_found(op, reply->element[1],
                                  (int64_t) ngx_http_idem_get64(more));
        return NGX_OK;

    default:
        return NGX_ERROR;
    }
}


/* of the previous record: the time of its request, and its labels */

static ngx_int_t
ngx_http_idem_redis_script_before(ngx_http_idem_op_t *op, u_char *p,
    size_t len)
{
    ngx_str_t  *details;

    if (!op->abandoned && !op->expired) {
        return len ? NGX_ERROR : NGX_OK;
    }

    if (len < sizeof(uint64_t)) {
        return NGX_ERROR;
    }

    op->original = ngx_http_idem_get64(p);

    len -= sizeof(uint64_t);

    if (op->expired) {
        return len ? NGX_ERROR : NGX_OK;
    }

    details = &op->found.details;

    details->data = p + sizeof(uint64_t);
    details->len = ngx_min(len, NGX_HTTP_IDEM_LABELS_MAX);
    details->data = ngx_pstrdup(op->pool, details);

    if (details->data == NULL) {
        details->len = 0;
    }

    return NGX_OK;
}


static void
ngx_http_idem_redis_found(ngx_http_idem_op_t *op, redisReply *value,
    int64_t life)
{
    ngx_str_t  record;

    record.data = (u_char *) value->str;
    record.len = (size_t) value->len;

    op->error = ngx_http_idem_redis_record_found(op, &record, life);

    if (op->error == NULL) {
        op->error = ngx_http_idem_redis_keep(op, value);
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
 * The record has to outlive the reply.  A large record is not copied: the
 * pool takes over its memory.
 */

static const char *
ngx_http_idem_redis_keep(ngx_http_idem_op_t *op, redisReply *value)
{
    ngx_pool_cleanup_t     *cln;
    ngx_http_idem_found_t  *found;

    found = &op->found;

    if (value->len < NGX_HTTP_IDEM_REDIS_TAKE) {
        found->details.data = ngx_pstrdup(op->pool, &found->details);
        found->response.data = ngx_pstrdup(op->pool, &found->response);

        return (found->details.data && found->response.data)
               ? NULL : "there is no memory for its response";
    }

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


/* sets op->error to the error of the server */

static void
ngx_http_idem_redis_refused(ngx_http_idem_op_t *op, redisReply *reply)
{
    u_char  *p, *last;

    static u_char   text[NGX_REDIS_ERROR_LEN];

    if (ngx_redis_error_is(reply, "OOM command")) {
        op->result = NGX_HTTP_IDEM_FULL;
        op->error = "Redis is at its maxmemory";
        return;
    }

    op->result = NGX_HTTP_IDEM_ERROR;

    /*
     * The last two: of a command that a script calls, Redis 7 and 6.  NOPERM
     * is of the script itself or its key, and names what is missing.
     */

    op->denied = ngx_redis_error_is(reply, "NOPERM")
                 || ngx_redis_error_is(reply, "ACL failure in script")
                 || ngx_redis_error_is(reply, "The user executing the script");

    /* a watch has no pool; its error is used before "text" can change */

    p = op->pool ? ngx_pnalloc(op->pool, sizeof(text)) : NULL;

    if (p == NULL) {
        p = text;
    }

    op->error = (char *) p;

    last = p + sizeof(text);

    p = ngx_slprintf(p, last, "%s",
        ngx_redis_error_is(reply, "WRONGTYPE")
            ? "the key of the record holds something else: "
        : ngx_redis_error_is(reply, "READONLY")
            ? "the server is a replica: "
        : ngx_redis_error_is(reply, "NOAUTH")
          || ngx_redis_error_is(reply, "unauthenticated")
            ? "the server wants a password: "
        : op->denied && (ngx_redis_error_is(reply, "NOPERM")
                         || !ngx_http_idem_op_is_admin(op))
            ? "the user may not do that: "
        : op->denied
            ? (op->kind == NGX_HTTP_IDEM_OP_LOG
               ? "the user may not do that, give it +xadd: "
               : op->kind == NGX_HTTP_IDEM_OP_EVENTS
               ? "the user may not do that, give it +xrange +xdel: "
               : "the user may not do that, give it +scan +strlen: ")
        : ngx_http_idem_redis_conf(op)->client.cluster == 0
          && (ngx_strncmp(reply->str, "MOVED ", 6) == 0
              || ngx_strncmp(reply->str, "ASK ", 4) == 0)
            ? "the server is of a cluster, and there is no \"cluster on\": "
        : "");

    (void) ngx_redis_error_text(p, last, reply);

    if (ngx_redis_error_is(reply, "WRONGTYPE")) {
        op->bad_record = 1;

        ngx_log_error(NGX_LOG_ERR, op->log, 0,
                      "idempotency: store \"%V\": record %*xs is not usable: "
                      "its key is not a string", &op->store->name, (size_t) 8,
                      op->id);
    }
}
