
/*
 * An operation as the commands that do it; ..._redis_reply.c reads the answer.
 *
 * An operation is a script: what it looks at and what it writes is one step.
 * A script is sent as it is until the server has answered it once on that
 * connection, then called by its SHA-1; a server that does not know it any
 * more is asked with the script itself.
 *
 * A begin tries plain commands first, which cost the server a third of what a
 * script does:
 *
 *     PTTL key   SET key record NX GET PX life   PING tag
 *
 * SET is what decides.  No record: the lock is ours.  A record whose lease or
 * ttl lasts, and that is not our own: that is what there is.  PTTL was before
 * it, so a record that came in between may have a longer life than it tells,
 * not a shorter one.  Anything else is left to the script: a lease that is
 * over, our own token, something that is no record, an error; and what is
 * asked once more.  Redis 6 has no SET with NX and GET: there the script does
 * it all.
 *
 * A commit of a large response has two commands, so that Lua does not see it:
 * a SET of the record beside its key, for a short time, and a script that puts
 * it in its place.  If that can't be done, the script of a commit does it.
 *
 * Every call carries a tag that comes back in the reply.
 *
 * Called by the connection when a call is sent.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_sha1.h>

#include "store/redis/ngx_http_idempotency_redis.h"

#include "ngx_http_idempotency_begin_lua.h"
#include "ngx_http_idempotency_renew_lua.h"
#include "ngx_http_idempotency_commit_lua.h"
#include "ngx_http_idempotency_place_lua.h"
#include "ngx_http_idempotency_release_lua.h"
#include "ngx_http_idempotency_watch_lua.h"


#define NGX_HTTP_IDEMPOTENCY_REDIS_SHA_LEN   40
#define NGX_HTTP_IDEMPOTENCY_REDIS_ARGS_MAX  16

/* a response from which on place is cheaper than commit */
#define NGX_HTTP_IDEMPOTENCY_REDIS_LARGE     4096

/* ms: how long a record lies beside its key, if nobody puts it there */
#define NGX_HTTP_IDEMPOTENCY_REDIS_BESIDE    60000


typedef struct {
    const u_char   *text;
    const size_t   *len;
    ngx_uint_t      keys;
    ngx_uint_t      args;               /* ARGV                             */
    u_char          sha[NGX_HTTP_IDEMPOTENCY_REDIS_SHA_LEN];
} ngx_http_idempotency_redis_script_t;


static u_char *ngx_http_idempotency_redis_put_script(u_char *p,
    ngx_http_idempotency_redis_call_t *call);
static u_char *ngx_http_idempotency_redis_put_plain(u_char *p,
    ngx_http_idempotency_redis_call_t *call);
static u_char *ngx_http_idempotency_redis_put_place(u_char *p,
    ngx_http_idempotency_redis_call_t *call);
static u_char *ngx_http_idempotency_redis_put_eval(u_char *p,
    ngx_http_idempotency_redis_call_t *call, ngx_uint_t i);
static u_char *ngx_http_idempotency_redis_put_key(u_char *p,
    ngx_http_idempotency_op_t *op, ngx_uint_t beside);
static u_char *ngx_http_idempotency_redis_put_record(u_char *p,
    ngx_http_idempotency_op_t *op, uint64_t *life);


/* in the order of ngx_http_idempotency_op_e, then place */

static ngx_http_idempotency_redis_script_t
    ngx_http_idempotency_redis_scripts[] =
{
    { ngx_http_idempotency_begin_lua,
      &ngx_http_idempotency_begin_lua_len, 1, 3, "" },

    { ngx_http_idempotency_renew_lua,
      &ngx_http_idempotency_renew_lua_len, 1, 3, "" },

    { ngx_http_idempotency_commit_lua,
      &ngx_http_idempotency_commit_lua_len, 1, 4, "" },

    { ngx_http_idempotency_release_lua,
      &ngx_http_idempotency_release_lua_len, 1, 3, "" },

    { ngx_http_idempotency_watch_lua,
      &ngx_http_idempotency_watch_lua_len, 1, 1, "" },

    { ngx_http_idempotency_place_lua,
      &ngx_http_idempotency_place_lua_len, 2, 4, "" }
};


void
ngx_http_idempotency_redis_script_init(void)
{
    u_char                                sha[20];
    ngx_uint_t                            i;
    ngx_sha1_t                            sha1;
    ngx_http_idempotency_redis_script_t  *script;

    for (i = 0; i <= NGX_HTTP_IDEMPOTENCY_REDIS_PLACE; i++) {
        script = &ngx_http_idempotency_redis_scripts[i];

        ngx_sha1_init(&sha1);
        ngx_sha1_update(&sha1, script->text, *script->len);
        ngx_sha1_final(sha, &sha1);

        ngx_hex_dump(script->sha, sha, sizeof(sha));
    }
}


/* the commands of call->op, behind what is to be sent on its connection */

ngx_int_t
ngx_http_idempotency_redis_script_encode(
    ngx_http_idempotency_redis_call_t *call)
{
    size_t                                size;
    u_char                               *p;
    ngx_uint_t                            first;
    ngx_http_idempotency_op_t            *op;
    ngx_http_idempotency_redis_t         *redis;
    ngx_http_idempotency_redis_conn_t    *conn;
    ngx_http_idempotency_redis_script_t  *script;

    op = call->op;
    conn = call->conn;
    redis = ngx_http_idempotency_redis_conf(op);
    script = &ngx_http_idempotency_redis_scripts[op->kind];

    /* enough for each way: the key stands up to three times in it */

    size = ngx_http_idempotency_redis_put_size(0)
               * (NGX_HTTP_IDEMPOTENCY_REDIS_ARGS_MAX + 1)
           + ngx_max(*script->len, ngx_http_idempotency_place_lua_len)
           + 3 * (redis->prefix.len + 2 * NGX_HTTP_IDEMPOTENCY_ID_LEN + 2)
           + NGX_HTTP_IDEMPOTENCY_REDIS_HEAD_LEN
           + redis->channel.len
           + 8 * NGX_INT64_LEN;

    if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_COMMIT) {
        size += op->size;

    } else if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_BEGIN) {
        size += op->details.len;
    }

    p = ngx_http_idempotency_redis_reserve(conn, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    call->tag = ++conn->tag;

    /* what is asked once more is asked by its script */

    first = (call->tries == 0 && !call->script);

    call->plain = (first
                   && op->kind == NGX_HTTP_IDEMPOTENCY_OP_BEGIN
                   && !(conn->known & NGX_HTTP_IDEMPOTENCY_REDIS_NO_PLAIN));

    /* in a cluster a slot may be on its way, and one of two keys with it */

    call->place = (first
                   && !redis->cluster
                   && op->kind == NGX_HTTP_IDEMPOTENCY_OP_COMMIT
                   && op->state == NGX_HTTP_IDEMPOTENCY_COMPLETED
                   && op->size >= NGX_HTTP_IDEMPOTENCY_REDIS_LARGE
                   && !(conn->known & NGX_HTTP_IDEMPOTENCY_REDIS_NO_PLACE));

    if (call->plain) {
        p = ngx_http_idempotency_redis_put_plain(p, call);

    } else if (call->place) {
        p = ngx_http_idempotency_redis_put_place(p, call);

    } else {
        p = ngx_http_idempotency_redis_put_script(p, call);
    }

    conn->out.last = p;

    return NGX_OK;
}


static u_char *
ngx_http_idempotency_redis_put_script(u_char *p,
    ngx_http_idempotency_redis_call_t *call)
{
    uint64_t                    life;
    ngx_str_t                  *channel;
    ngx_http_idempotency_op_t  *op;

    op = call->op;
    channel = &ngx_http_idempotency_redis_conf(op)->channel;

    p = ngx_http_idempotency_redis_put_eval(p, call, op->kind);

    switch (op->kind) {

    case NGX_HTTP_IDEMPOTENCY_OP_WATCH:
        return p;

    case NGX_HTTP_IDEMPOTENCY_OP_RELEASE:
        p = ngx_http_idempotency_redis_put(p, op->token,
                                           NGX_HTTP_IDEMPOTENCY_TOKEN_LEN);
        break;

    default: /* begin, renew, commit */
        p = ngx_http_idempotency_redis_put_record(p, op, &life);
        p = ngx_http_idempotency_redis_put_number(p, life);

        if (op->kind != NGX_HTTP_IDEMPOTENCY_OP_COMMIT) {
            return p;
        }
    }

    return ngx_http_idempotency_redis_put(p, channel->data, channel->len);
}


/* the script, its keys, and the first of its arguments */

static u_char *
ngx_http_idempotency_redis_put_eval(u_char *p,
    ngx_http_idempotency_redis_call_t *call, ngx_uint_t i)
{
    ngx_http_idempotency_redis_script_t  *script;

    script = &ngx_http_idempotency_redis_scripts[i];

    p = ngx_http_idempotency_redis_put_count(p,
                                             3 + script->keys + script->args);

    /*
     * Whole until the server has shown that it has the script: a call that is
     * asked again would come behind what was sent meanwhile
     */

    call->whole = call->eval || !(call->conn->known & (1 << i));

    if (call->whole) {
        p = ngx_http_idempotency_redis_put(p, "EVAL", 4);
        p = ngx_http_idempotency_redis_put(p, script->text, *script->len);

    } else {
        p = ngx_http_idempotency_redis_put(p, "EVALSHA", 7);
        p = ngx_http_idempotency_redis_put(p, script->sha,
                                        NGX_HTTP_IDEMPOTENCY_REDIS_SHA_LEN);
    }

    p = ngx_http_idempotency_redis_put_number(p, script->keys);
    p = ngx_http_idempotency_redis_put_key(p, call->op, 0);

    if (script->keys == 2) {
        p = ngx_http_idempotency_redis_put_key(p, call->op, 1);
    }

    return ngx_http_idempotency_redis_put(p, &call->tag,
                                          NGX_HTTP_IDEMPOTENCY_REDIS_TAG_LEN);
}


static u_char *
ngx_http_idempotency_redis_put_place(u_char *p,
    ngx_http_idempotency_redis_call_t *call)
{
    uint64_t                    life;
    ngx_str_t                  *channel;
    ngx_http_idempotency_op_t  *op;

    op = call->op;
    channel = &ngx_http_idempotency_redis_conf(op)->channel;

    p = ngx_cpymem(p, "*5" CRLF "$3" CRLF "SET" CRLF,
                   sizeof("*5" CRLF "$3" CRLF "SET" CRLF) - 1);

    p = ngx_http_idempotency_redis_put_key(p, op, 1);
    p = ngx_http_idempotency_redis_put_record(p, op, &life);
    p = ngx_http_idempotency_redis_put(p, "PX", 2);
    p = ngx_http_idempotency_redis_put_number(p,
                                         NGX_HTTP_IDEMPOTENCY_REDIS_BESIDE);

    call->due = 1;

    p = ngx_http_idempotency_redis_put_eval(p, call,
                                            NGX_HTTP_IDEMPOTENCY_REDIS_PLACE);
    p = ngx_http_idempotency_redis_put(p, op->token,
                                       NGX_HTTP_IDEMPOTENCY_TOKEN_LEN);
    p = ngx_http_idempotency_redis_put_number(p, life);

    return ngx_http_idempotency_redis_put(p, channel->data, channel->len);
}


static u_char *
ngx_http_idempotency_redis_put_plain(u_char *p,
    ngx_http_idempotency_redis_call_t *call)
{
    u_char                     *key;
    size_t                      len;
    uint64_t                    life;
    ngx_http_idempotency_op_t  *op;

    op = call->op;

    p = ngx_cpymem(p, "*2" CRLF "$4" CRLF "PTTL" CRLF,
                   sizeof("*2" CRLF "$4" CRLF "PTTL" CRLF) - 1);

    key = p;
    p = ngx_http_idempotency_redis_put_key(p, op, 0);
    len = p - key;

    p = ngx_cpymem(p, "*7" CRLF "$3" CRLF "SET" CRLF,
                   sizeof("*7" CRLF "$3" CRLF "SET" CRLF) - 1);

    p = ngx_cpymem(p, key, len);
    p = ngx_http_idempotency_redis_put_record(p, op, &life);

    p = ngx_cpymem(p, "$2" CRLF "NX" CRLF "$3" CRLF "GET" CRLF
                      "$2" CRLF "PX" CRLF,
                   sizeof("$2" CRLF "NX" CRLF "$3" CRLF "GET" CRLF
                          "$2" CRLF "PX" CRLF) - 1);

    p = ngx_http_idempotency_redis_put_number(p, life);

    p = ngx_cpymem(p, "*2" CRLF "$4" CRLF "PING" CRLF,
                   sizeof("*2" CRLF "$4" CRLF "PING" CRLF) - 1);

    call->due = 2;

    return ngx_http_idempotency_redis_put(p, &call->tag,
                                          NGX_HTTP_IDEMPOTENCY_REDIS_TAG_LEN);
}


/* one beside it has braces around it: a cluster keeps both in one place */

static u_char *
ngx_http_idempotency_redis_put_key(u_char *p, ngx_http_idempotency_op_t *op,
    ngx_uint_t beside)
{
    ngx_str_t  *prefix;

    prefix = &ngx_http_idempotency_redis_conf(op)->prefix;

    p = ngx_http_idempotency_redis_put_line(p, '$',
                prefix->len + 2 * NGX_HTTP_IDEMPOTENCY_ID_LEN + 2 * beside);

    if (beside) {
        *p++ = '{';
    }

    p = ngx_cpymem(p, prefix->data, prefix->len);
    p = ngx_hex_dump(p, op->id, NGX_HTTP_IDEMPOTENCY_ID_LEN);

    if (beside) {
        *p++ = '}';
    }

    *p++ = CR; *p++ = LF;

    return p;
}


/* as it is to be, and for how long the key is to live */

static u_char *
ngx_http_idempotency_redis_put_record(u_char *p,
    ngx_http_idempotency_op_t *op, uint64_t *life)
{
    size_t     size;
    uint64_t   grace, left;
    ngx_str_t  details;

    size = 0;
    ngx_str_null(&details);

    if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_COMMIT) {
        grace = op->grace;
        left = op->ttl;

        if (op->state == NGX_HTTP_IDEMPOTENCY_COMPLETED) {
            size = op->size;
        }

    } else {

        /*
         * A while longer than the lease, so that who takes over knows that it
         * was abandoned; under hold, for the ttl.
         */

        left = op->lease;
        grace = op->lease;

        if (op->hold && op->ttl > 2 * op->lease) {
            grace = op->ttl - op->lease;
        }

        if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_BEGIN) {
            details = op->details;
        }
    }

    grace = ngx_min(grace, NGX_HTTP_IDEMPOTENCY_REDIS_LIFE_MAX);
    *life = grace + ngx_min(left, NGX_HTTP_IDEMPOTENCY_REDIS_LIFE_MAX);
    *life = ngx_max(*life, 1);

    p = ngx_http_idempotency_redis_put_line(p, '$',
                      NGX_HTTP_IDEMPOTENCY_REDIS_HEAD_LEN + size + details.len);

    p = ngx_http_idempotency_redis_record_head(p, op, grace, size);
    p = ngx_http_idempotency_redis_put_chain(p, op->response, size);

    if (details.len) {
        p = ngx_cpymem(p, details.data, details.len);
    }

    *p++ = CR; *p++ = LF;

    return p;
}
