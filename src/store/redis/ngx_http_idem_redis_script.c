
/*
 * An operation as the commands that do it; ..._redis_reply.c reads the answer.
 *
 * An operation is a script: what it looks at and what it writes is one step.
 * A script is sent as it is until the server has answered it once on that
 * connection, then called by its SHA-1; a server that does not know it any
 * more is asked with the script itself.  Every script carries a tag that comes
 * back in its reply.
 *
 * A begin and most commits are plain commands at first: ..._redis_plain.c.
 *
 * Called by the connection when a call is sent.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_sha1.h>

#include "store/redis/ngx_http_idem_redis.h"

#include "ngx_http_idem_begin_lua.h"
#include "ngx_http_idem_renew_lua.h"
#include "ngx_http_idem_commit_lua.h"
#include "ngx_http_idem_release_lua.h"
#include "ngx_http_idem_watch_lua.h"


#define NGX_HTTP_IDEM_REDIS_SHA_LEN   40
#define NGX_HTTP_IDEM_REDIS_ARGS_MAX  16


typedef struct {
    const u_char   *text;
    const size_t   *len;
    ngx_uint_t      args;               /* ARGV                             */
    u_char          sha[NGX_HTTP_IDEM_REDIS_SHA_LEN];
} ngx_http_idem_redis_script_t;


static u_char *ngx_http_idem_redis_put_script(u_char *p,
    ngx_http_idem_redis_call_t *call);
static u_char *ngx_http_idem_redis_put_eval(u_char *p,
    ngx_http_idem_redis_call_t *call);
static u_char *ngx_http_idem_redis_put_lock(u_char *p,
    ngx_http_idem_op_t *op, uint64_t grace);


/* in the order of ngx_http_idem_op_e */

static ngx_http_idem_redis_script_t
    ngx_http_idem_redis_scripts[] =
{
    { ngx_http_idem_begin_lua,
      &ngx_http_idem_begin_lua_len, 7, "" },

    { ngx_http_idem_renew_lua,
      &ngx_http_idem_renew_lua_len, 4, "" },

    { ngx_http_idem_commit_lua,
      &ngx_http_idem_commit_lua_len, 6, "" },

    { ngx_http_idem_release_lua,
      &ngx_http_idem_release_lua_len, 3, "" },

    { ngx_http_idem_watch_lua,
      &ngx_http_idem_watch_lua_len, 1, "" }
};


void
ngx_http_idem_redis_script_init(void)
{
    u_char                         sha[20];
    ngx_uint_t                     i;
    ngx_sha1_t                     sha1;
    ngx_http_idem_redis_script_t  *script;

    for (i = 0; i < NGX_HTTP_IDEM_OP_N; i++) {
        script = &ngx_http_idem_redis_scripts[i];

        ngx_sha1_init(&sha1);
        ngx_sha1_update(&sha1, script->text, *script->len);
        ngx_sha1_final(sha, &sha1);

        ngx_hex_dump(script->sha, sha, sizeof(sha));
    }
}


/* the commands of call->op, behind what is to be sent on its connection */

ngx_int_t
ngx_http_idem_redis_script_encode(ngx_http_idem_redis_call_t *call)
{
    size_t                         size;
    u_char                        *p;
    ngx_http_idem_op_t            *op;
    ngx_http_idem_redis_t         *redis;
    ngx_http_idem_redis_conn_t    *conn;
    ngx_http_idem_redis_script_t  *script;

    op = call->op;
    conn = call->conn;
    redis = ngx_http_idem_redis_conf(op);
    script = &ngx_http_idem_redis_scripts[op->kind];

    /* enough for each way: the key stands up to three times in it */

    size = ngx_http_idem_redis_put_size(0)
               * (NGX_HTTP_IDEM_REDIS_ARGS_MAX + 1)
           + *script->len
           + 3 * (redis->prefix.len + 2 * NGX_HTTP_IDEM_ID_LEN)
           + ngx_http_idem_redis_payload_size(
                                         NGX_HTTP_IDEM_REDIS_LOCK_LEN
                                         + op->details.len)
           + NGX_HTTP_IDEM_REDIS_OUTCOME_LEN
           + NGX_HTTP_IDEM_TOKEN_LEN
           + redis->channel.len
           + 8 * NGX_INT64_LEN;

    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT) {
        size += op->size;
    }

    p = ngx_http_idem_redis_reserve(conn, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    call->tag = ++conn->tag;
    call->plain = ngx_http_idem_redis_is_plain(call);

    conn->out.last = call->plain
                     ? ngx_http_idem_redis_put_plain(p, call)
                     : ngx_http_idem_redis_put_script(p, call);

    return NGX_OK;
}


static u_char *
ngx_http_idem_redis_put_script(u_char *p, ngx_http_idem_redis_call_t *call)
{
    uint64_t             life, grace;
    ngx_str_t           *channel;
    ngx_http_idem_op_t  *op;

    op = call->op;
    channel = &ngx_http_idem_redis_conf(op)->channel;

    p = ngx_http_idem_redis_put_eval(p, call);

    if (op->kind == NGX_HTTP_IDEM_OP_WATCH) {
        return p;
    }

    life = ngx_http_idem_redis_record_life(op, &grace);

    switch (op->kind) {

    case NGX_HTTP_IDEM_OP_RELEASE:
        break;

    case NGX_HTTP_IDEM_OP_COMMIT:

        /* the lock is for a record that is gone: no lease is asked for then */

        p = ngx_http_idem_redis_put_lock(p, op, 0);
        p = ngx_http_idem_redis_put_outcome(p, op, grace);
        break;

    default: /* begin, renew */
        p = ngx_http_idem_redis_put_lock(p, op, grace);
    }

    p = ngx_http_idem_redis_put(p, op->token, NGX_HTTP_IDEM_TOKEN_LEN);

    if (op->kind != NGX_HTTP_IDEM_OP_RELEASE) {
        p = ngx_http_idem_redis_put_number(p, life);
    }

    if (op->kind == NGX_HTTP_IDEM_OP_BEGIN) {
        p = ngx_http_idem_redis_put_number(p, op->age);
        p = ngx_http_idem_redis_put_number(p, op->key_alone);
        p = ngx_http_idem_redis_put_number(p,
                                     op->again ? (op->leased ? 3 : 2)
                                               : op->waits);
    }

    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT
        || op->kind == NGX_HTTP_IDEM_OP_RELEASE)
    {
        p = ngx_http_idem_redis_put(p, channel->data, channel->len);
    }

    return p;
}


/* the script, its key, and the first of its arguments */

static u_char *
ngx_http_idem_redis_put_eval(u_char *p, ngx_http_idem_redis_call_t *call)
{
    ngx_uint_t                     kind;
    ngx_http_idem_redis_script_t  *script;

    kind = call->op->kind;
    script = &ngx_http_idem_redis_scripts[kind];

    p = ngx_http_idem_redis_put_count(p, 4 + script->args);

    /*
     * Whole until the server has shown that it has the script: a call that is
     * asked again would come behind what was sent meanwhile
     */

    call->whole = call->eval || !(call->conn->known & (1 << kind));

    if (call->whole) {
        p = ngx_http_idem_redis_put(p, "EVAL", 4);
        p = ngx_http_idem_redis_put(p, script->text, *script->len);

    } else {
        p = ngx_http_idem_redis_put(p, "EVALSHA", 7);
        p = ngx_http_idem_redis_put(p, script->sha,
                                        NGX_HTTP_IDEM_REDIS_SHA_LEN);
    }

    p = ngx_http_idem_redis_put(p, "1", 1);
    p = ngx_http_idem_redis_put_key(p, call->op);

    return ngx_http_idem_redis_put(p, &call->tag,
                                   NGX_HTTP_IDEM_REDIS_TAG_LEN);
}


u_char *
ngx_http_idem_redis_put_key(u_char *p, ngx_http_idem_op_t *op)
{
    ngx_str_t  *prefix;

    prefix = &ngx_http_idem_redis_conf(op)->prefix;

    p = ngx_http_idem_redis_put_line(p, '$',
                              prefix->len + 2 * NGX_HTTP_IDEM_ID_LEN);

    p = ngx_cpymem(p, prefix->data, prefix->len);
    p = ngx_hex_dump(p, op->id, NGX_HTTP_IDEM_ID_LEN);

    *p++ = CR; *p++ = LF;

    return p;
}


/* details are laid by begin, and stay with the lock */

static u_char *
ngx_http_idem_redis_put_lock(u_char *p, ngx_http_idem_op_t *op,
    uint64_t grace)
{
    size_t  len;

    len = (op->kind == NGX_HTTP_IDEM_OP_BEGIN) ? op->details.len : 0;

    p = ngx_http_idem_redis_put_line(p, '$',
                                  NGX_HTTP_IDEM_REDIS_LOCK_LEN + len);

    p = ngx_http_idem_redis_record_lock(p, op, grace);

    if (len) {
        p = ngx_cpymem(p, op->details.data, len);
    }

    *p++ = CR; *p++ = LF;

    return p;
}


u_char *
ngx_http_idem_redis_put_outcome(u_char *p,
    ngx_http_idem_op_t *op, uint64_t grace)
{
    size_t  size;

    size = (op->state == NGX_HTTP_IDEM_COMPLETED) ? op->size : 0;

    p = ngx_http_idem_redis_put_line(p, '$',
                              NGX_HTTP_IDEM_REDIS_OUTCOME_LEN + size);

    p = ngx_http_idem_redis_record_outcome(p, op, grace, size);
    p = ngx_http_idem_redis_put_chain(p, op->response, size);

    *p++ = CR; *p++ = LF;

    return p;
}
