
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Encodes an operation as a command; ..._redis_reply.c parses the reply.
 *
 * Each operation is one native command if the server supports it.  The
 * version of the server, queried in the setup of a connection, decides:
 *
 *   begin     SET key lock NX GET PX life              Redis 7.0, Valkey
 *   renew     SET key lock IFEQ lock GET PX life       Redis 8.4, Valkey 8.1
 *   commit    SET key record IFEQ lock GET PX life
 *   release   DELIFEQ key lock                         Valkey 9.0
 *             DELEX key IFEQ lock                      Redis 8.4
 *
 * With GET the reply is the previous value.  A script is used if the server
 * does not support the command, if an operation is sent again, and if the
 * reply does not decide the operation: the record is in progress and its
 * lease may have expired, the record is gone, the memory is full, or there
 * was an error.  A script reads and writes in one atomic step.
 *
 * A commit may find that a script has changed its lock: marked it for a
 * waiter, or as one that was taken over.  The commit is then sent again, with
 * the value that it found for IFEQ, and the worker publishes if there is a
 * waiter.  So a large response does not pass through Lua.
 *
 * A begin needs to know how long the record has to live if there is a cache,
 * or if records outlive their ttl: by a grace period, or for waiters since the
 * ttl is short.  Then PTTL is sent before it.  A record that was written
 * between the two commands may live longer than PTTL says, but not shorter.
 *
 * A script is sent as a whole until the server has replied to it once on this
 * connection, and is called by its SHA-1 from then on.  If the server has
 * lost it, the script is sent again.  Every script call has a tag, which the
 * script returns in its reply.
 *
 * Called by the connection when a call is sent.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_sha1.h>

#include "ngx_http_idem_number.h"
#include "store/redis/ngx_http_idem_redis.h"

#include "ngx_http_idem_begin_lua.h"
#include "ngx_http_idem_renew_lua.h"
#include "ngx_http_idem_commit_lua.h"
#include "ngx_http_idem_release_lua.h"
#include "ngx_http_idem_watch_lua.h"
#include "ngx_http_idem_upgrade_lua.h"
#include "ngx_http_idem_get_lua.h"
#include "ngx_http_idem_remove_lua.h"
#include "ngx_http_idem_list_lua.h"
#include "ngx_http_idem_log_lua.h"
#include "ngx_http_idem_events_lua.h"


#define NGX_HTTP_IDEM_REDIS_SHA_LEN   40
#define NGX_HTTP_IDEM_REDIS_ARGS_MAX  16


typedef struct {
    const u_char   *text;
    const size_t   *len;
    ngx_uint_t      args;               /* number of ARGV                */
    u_char          sha[NGX_HTTP_IDEM_REDIS_SHA_LEN];
} ngx_http_idem_redis_script_t;


static ngx_uint_t ngx_http_idem_redis_is_native(
    ngx_http_idem_redis_call_t *call);
static u_char *ngx_http_idem_redis_put_native(u_char *p,
    ngx_http_idem_redis_call_t *call);
static u_char *ngx_http_idem_redis_put_script(u_char *p,
    ngx_http_idem_redis_call_t *call);
static u_char *ngx_http_idem_redis_put_eval(u_char *p,
    ngx_http_idem_redis_call_t *call);
static u_char *ngx_http_idem_redis_put_lock(u_char *p,
    ngx_http_idem_redis_call_t *call);
static u_char *ngx_http_idem_redis_put_outcome(u_char *p,
    ngx_http_idem_redis_call_t *call);


/* constant parts of commands are copied in their encoded form */

#define ngx_http_idem_redis_put_text(p, text)                                 \
    ngx_cpymem(p, text, sizeof(text) - 1)


#define ngx_http_idem_redis_lua(name, args)                                   \
    { ngx_http_idem_##name##_lua, &ngx_http_idem_##name##_lua_len, args, "" }


/* in the order of ngx_http_idem_op_e; at OP_N the upgrade of a record */

static ngx_http_idem_redis_script_t  ngx_http_idem_redis_scripts[] = {
    ngx_http_idem_redis_lua(begin, 6),
    ngx_http_idem_redis_lua(renew, 3),
    ngx_http_idem_redis_lua(commit, 4),
    ngx_http_idem_redis_lua(release, 3),
    ngx_http_idem_redis_lua(watch, 1),
    ngx_http_idem_redis_lua(upgrade, 2),
    ngx_http_idem_redis_lua(get, 2),
    ngx_http_idem_redis_lua(remove, 7),
    ngx_http_idem_redis_lua(list, 6),
    ngx_http_idem_redis_lua(log, 3),
    ngx_http_idem_redis_lua(events, 7)
};


void
ngx_http_idem_redis_command_init(void)
{
    u_char                         sha[20];
    ngx_uint_t                     i;
    ngx_sha1_t                     sha1;
    ngx_http_idem_redis_script_t  *script;

    for (i = 0; i <= NGX_HTTP_IDEM_OP_EVENTS; i++) {
        script = &ngx_http_idem_redis_scripts[i];

        ngx_sha1_init(&sha1);
        ngx_sha1_update(&sha1, script->text, *script->len);
        ngx_sha1_final(sha, &sha1);

        ngx_hex_dump(script->sha, sha, sizeof(sha));
    }
}


/* appends the commands of an operation to the buffer of its connection */

ngx_int_t
ngx_http_idem_redis_command_encode(ngx_redis_call_t *c)
{
    size_t                         size;
    u_char                        *p;
    ngx_http_idem_op_t            *op;
    ngx_http_idem_redis_call_t    *call;
    ngx_http_idem_redis_script_t  *script;

    static uint32_t                tag;

    op = c->data;
    call = (ngx_http_idem_redis_call_t *) c;
    script = &ngx_http_idem_redis_scripts[ngx_http_idem_redis_script_of(call)];

    /* enough for all forms: some contain the key and the lock twice */

    size = ngx_redis_put_size(0) * (NGX_HTTP_IDEM_REDIS_ARGS_MAX + 1)
           + *script->len
           + 2 * c->key.len
           + 2 * (NGX_HTTP_IDEM_REDIS_RECORD_LEN + op->details.len
                  + call->expected.len)
           + c->redis->channel.len
           + 8 * NGX_INT64_LEN;

    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT) {

        if (op->state != NGX_HTTP_IDEM_COMPLETED
            || op->size < NGX_REDIS_BULK_MIN)
        {
            size += op->size;

        } else if (ngx_redis_bulk(c) != NGX_OK) {
            return NGX_ERROR;
        }

    } else if (op->kind > NGX_HTTP_IDEM_OP_LIST) {
        size += ngx_http_idem_redis_trail_size(op);

    } else if (ngx_http_idem_op_is_admin(op)) {
        size += ngx_http_idem_redis_admin_size(ngx_http_idem_redis_conf(op));
    }

    p = ngx_redis_reserve(c->conn, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    call->tag = ++tag;
    call->native = ngx_http_idem_redis_is_native(call);

    c->conn->out.last = call->native
                        ? ngx_http_idem_redis_put_native(p, call)
                        : ngx_http_idem_redis_put_script(p, call);

    return NGX_OK;
}


/* the prefix and the id in hexadecimal */

size_t
ngx_http_idem_redis_key(ngx_http_idem_redis_t *redis, u_char *id, u_char *key)
{
    u_char  *p;

    p = ngx_cpymem(key, redis->prefix.data, redis->prefix.len);

    return ngx_hex_dump(p, id, NGX_HTTP_IDEM_ID_LEN) - key;
}


static ngx_uint_t
ngx_http_idem_redis_is_native(ngx_http_idem_redis_call_t *call)
{
    ngx_uint_t           ifeq, known;
    ngx_redis_conn_t    *conn;
    ngx_http_idem_op_t  *op;

    op = call->call.data;
    conn = call->call.conn;

    if (call->script || (call->call.tries && call->expected.len == 0)
        || (conn->flags & ngx_http_idem_redis_not(op->kind)))
    {
        return 0;
    }

    ifeq = (conn->version >= (conn->valkey ? ngx_redis_version(8, 1)
                                           : ngx_redis_version(8, 4)));

    /* whether the bytes of the lock are known */

    known = (op->lock.store == op->store || call->expected.len);

    switch (op->kind) {

    case NGX_HTTP_IDEM_OP_BEGIN:
        return !op->is_waiter && conn->version >= ngx_redis_version(7, 0);

    case NGX_HTTP_IDEM_OP_RENEW:
        return ifeq;

    case NGX_HTTP_IDEM_OP_COMMIT:
        return known && ifeq;

    case NGX_HTTP_IDEM_OP_RELEASE:
        return known && ifeq
               && (!conn->valkey || conn->version >= ngx_redis_version(9, 0));

    default: /* watch, and the operations of administration */
        return 0;
    }
}


static u_char *
ngx_http_idem_redis_put_native(u_char *p, ngx_http_idem_redis_call_t *call)
{
    uint64_t             life, grace;
    ngx_uint_t           begin;
    ngx_http_idem_op_t  *op;

    op = call->call.data;
    begin = (op->kind == NGX_HTTP_IDEM_OP_BEGIN);

    if (op->kind == NGX_HTTP_IDEM_OP_RELEASE) {

        p = call->call.conn->valkey
            ? ngx_http_idem_redis_put_text(p, "*3" CRLF "$7" CRLF "DELIFEQ"
                                              CRLF)
            : ngx_http_idem_redis_put_text(p, "*4" CRLF "$5" CRLF "DELEX"
                                              CRLF);
        p = ngx_redis_put(p, call->key, call->call.key.len);

        if (!call->call.conn->valkey) {
            p = ngx_http_idem_redis_put_text(p, "$4" CRLF "IFEQ" CRLF);
        }

        return ngx_http_idem_redis_put_lock(p, call);
    }

    if (begin
        && (op->grace || op->need_left
            || op->ttl < NGX_HTTP_IDEM_REDIS_WAITERS))
    {
        p = ngx_http_idem_redis_put_text(p, "*2" CRLF "$4" CRLF "PTTL" CRLF);
        p = ngx_redis_put(p, call->key, call->call.key.len);

        call->call.two_replies = 1;
    }

    life = ngx_http_idem_redis_record_life(op, &grace);

    p = ngx_redis_put_line(p, '*', begin ? 7 : 8);
    p = ngx_http_idem_redis_put_text(p, "$3" CRLF "SET" CRLF);
    p = ngx_redis_put(p, call->key, call->call.key.len);

    p = (op->kind == NGX_HTTP_IDEM_OP_COMMIT)
        ? ngx_http_idem_redis_put_outcome(p, call)
        : ngx_http_idem_redis_put_lock(p, call);

    if (begin) {
        p = ngx_http_idem_redis_put_text(p, "$2" CRLF "NX" CRLF);

    } else {
        p = ngx_http_idem_redis_put_text(p, "$4" CRLF "IFEQ" CRLF);
        p = ngx_http_idem_redis_put_lock(p, call);
    }

    p = ngx_http_idem_redis_put_text(p, "$3" CRLF "GET" CRLF
                                        "$2" CRLF "PX" CRLF);

    return ngx_redis_put_number(p, life);
}


static u_char *
ngx_http_idem_redis_put_script(u_char *p, ngx_http_idem_redis_call_t *call)
{
    uint64_t             life, grace;
    ngx_str_t           *channel;
    ngx_http_idem_op_t  *op;

    op = call->call.data;
    channel = &call->call.redis->channel;

    p = ngx_http_idem_redis_put_eval(p, call);

    if (call->upgrade) {
        return ngx_redis_put_number(p, op->may_wait || op->is_waiter);
    }

    if (op->kind > NGX_HTTP_IDEM_OP_LIST) {
        return ngx_http_idem_redis_put_trail(p, call);
    }

    if (ngx_http_idem_op_is_admin(op)) {
        return ngx_http_idem_redis_put_admin(p, call);
    }

    life = ngx_http_idem_redis_record_life(op, &grace);

    switch (op->kind) {

    case NGX_HTTP_IDEM_OP_BEGIN:
        p = ngx_http_idem_redis_put_lock(p, call);
        p = ngx_redis_put_number(p, life);
        p = ngx_redis_put_number(p, ngx_http_idem_op_age(op));
        p = ngx_redis_put_number(p, op->key_alone);
        return ngx_redis_put_number(p,
                                     op->is_waiter ? (op->lease_valid ? 3 : 2)
                                                   : op->may_wait);

    case NGX_HTTP_IDEM_OP_RENEW:
        p = ngx_http_idem_redis_put_lock(p, call);
        return ngx_redis_put_number(p, life);

    case NGX_HTTP_IDEM_OP_COMMIT:
        p = ngx_http_idem_redis_put_outcome(p, call);
        p = ngx_redis_put_number(p, life);
        break;

    case NGX_HTTP_IDEM_OP_RELEASE:
        p = ngx_redis_put(p, op->token, NGX_HTTP_IDEM_TOKEN_LEN);
        break;

    default: /* watch */
        return p;
    }

    return ngx_redis_put(p, channel->data, channel->len);
}


/* the script, its key, and the tag */

static u_char *
ngx_http_idem_redis_put_eval(u_char *p, ngx_http_idem_redis_call_t *call)
{
    ngx_uint_t                     n, list;
    ngx_http_idem_redis_script_t  *script;

    n = ngx_http_idem_redis_script_of(call);
    script = &ngx_http_idem_redis_scripts[n];

    list = (n == NGX_HTTP_IDEM_OP_LIST);

    p = ngx_redis_put_line(p, '*', (list ? 3 : 4) + script->args);

    /*
     * The script is sent as a whole until a reply proves that the server has
     * it: after NOSCRIPT the call would be sent again, behind later calls
     */

    call->whole = call->eval
                  || !(call->call.conn->flags & ngx_http_idem_redis_has(n));

    if (call->whole) {
        p = ngx_http_idem_redis_put_text(p, "$4" CRLF "EVAL" CRLF);
        p = ngx_redis_put(p, script->text, *script->len);

    } else {
        p = ngx_http_idem_redis_put_text(p, "$7" CRLF "EVALSHA" CRLF);
        p = ngx_redis_put(p, script->sha, NGX_HTTP_IDEM_REDIS_SHA_LEN);
    }

    if (list) {
        p = ngx_http_idem_redis_put_text(p, "$1" CRLF "0" CRLF);

    } else {
        p = ngx_http_idem_redis_put_text(p, "$1" CRLF "1" CRLF);
        p = ngx_redis_put(p, call->key, call->call.key.len);
    }

    return ngx_redis_put(p, &call->tag, NGX_HTTP_IDEM_REDIS_TAG_LEN);
}


static u_char *
ngx_http_idem_redis_put_lock(u_char *p, ngx_http_idem_redis_call_t *call)
{
    ngx_http_idem_op_t  *op;

    op = call->call.data;

    if (call->expected.len) {
        return ngx_redis_put(p, call->expected.data, call->expected.len);
    }

    p = ngx_redis_put_line(p, '$',
                           NGX_HTTP_IDEM_REDIS_RECORD_LEN + op->details.len);
    p = ngx_http_idem_redis_record_lock(p, op);
    p = ngx_cpymem(p, op->details.data, op->details.len);

    *p++ = CR; *p++ = LF;

    return p;
}


static u_char *
ngx_http_idem_redis_put_outcome(u_char *p, ngx_http_idem_redis_call_t *call)
{
    size_t               size;
    ngx_str_t            details;
    ngx_http_idem_op_t  *op;

    op = call->call.data;
    size = (op->state == NGX_HTTP_IDEM_COMPLETED) ? op->size : 0;
    details = op->details;

    if (details.len == 0 && call->expected.len) {
        ngx_http_idem_redis_record_details(&call->expected, &details);
    }

    p = ngx_redis_put_line(p, '$', NGX_HTTP_IDEM_REDIS_RECORD_LEN
                                   + details.len + size);

    p = ngx_http_idem_redis_record_outcome(p, op, &details, size);
    p = ngx_cpymem(p, details.data, details.len);

    p = call->call.bulk
        ? ngx_redis_put_bulk(p, &call->call, op->response, size)
        : ngx_redis_put_chain(p, op->response, size);

    *p++ = CR; *p++ = LF;

    return p;
}
