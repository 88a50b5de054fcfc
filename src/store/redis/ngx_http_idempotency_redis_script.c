
/*
 * The scripts: an operation as the command that runs one, and a reply as the
 * result of the operation.
 *
 * A script is sent as it is until the server has answered it once on that
 * connection, then called by its SHA-1; a server that does not know it any
 * more is asked with the script itself.  Every call carries a tag that comes
 * back in the reply: one that does not match is not ours.  Whatever is read
 * from a record is checked here, before anybody sees it.
 *
 * Called by the connection when a call is sent, and by the backend when its
 * reply is there.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_sha1.h>

#include "store/redis/ngx_http_idempotency_redis.h"

#include "ngx_http_idempotency_begin_lua.h"
#include "ngx_http_idempotency_renew_lua.h"
#include "ngx_http_idempotency_commit_lua.h"
#include "ngx_http_idempotency_release_lua.h"
#include "ngx_http_idempotency_watch_lua.h"


#define NGX_HTTP_IDEMPOTENCY_REDIS_SHA_LEN   40
#define NGX_HTTP_IDEMPOTENCY_REDIS_ARGS_MAX  14

/* what a key may have to live: Redis refuses to count beyond its clock */
#define NGX_HTTP_IDEMPOTENCY_REDIS_LIFE_MAX                                   \
    ((uint64_t) 100 * 365 * 24 * 3600 * 1000)


/* codes of the replies, as the scripts have them */

#define NGX_HTTP_IDEMPOTENCY_REDIS_LOST      0
#define NGX_HTTP_IDEMPOTENCY_REDIS_DONE      1
#define NGX_HTTP_IDEMPOTENCY_REDIS_FOUND     2      /* begin                */
#define NGX_HTTP_IDEMPOTENCY_REDIS_NO_ROOM   2      /* commit               */
#define NGX_HTTP_IDEMPOTENCY_REDIS_RUNNING   3      /* commit: lost to it   */


/* fields of what begin found */

#define NGX_HTTP_IDEMPOTENCY_REDIS_F_LIFE      2
#define NGX_HTTP_IDEMPOTENCY_REDIS_F_VERSION   3
#define NGX_HTTP_IDEMPOTENCY_REDIS_F_STATE     4
#define NGX_HTTP_IDEMPOTENCY_REDIS_F_REASON    5
#define NGX_HTTP_IDEMPOTENCY_REDIS_F_CLAIM     6
#define NGX_HTTP_IDEMPOTENCY_REDIS_F_GRACE     7
#define NGX_HTTP_IDEMPOTENCY_REDIS_F_HOLD      8
#define NGX_HTTP_IDEMPOTENCY_REDIS_F_RESPONSE  9
#define NGX_HTTP_IDEMPOTENCY_REDIS_F_DETAILS   10
#define NGX_HTTP_IDEMPOTENCY_REDIS_F_N         11


/* how begin got the lock */

#define NGX_HTTP_IDEMPOTENCY_REDIS_ABANDONED   1
#define NGX_HTTP_IDEMPOTENCY_REDIS_EXPIRED     2


typedef struct {
    const u_char   *text;
    const size_t   *len;
    ngx_uint_t      args;               /* the key and ARGV                 */
    u_char          sha[NGX_HTTP_IDEMPOTENCY_REDIS_SHA_LEN];
} ngx_http_idempotency_redis_script_t;


static void ngx_http_idempotency_redis_refused(ngx_http_idempotency_op_t *op,
    redisReply *reply);
static void ngx_http_idempotency_redis_begun(ngx_http_idempotency_op_t *op,
    redisReply *reply);
static const char *ngx_http_idempotency_redis_found(
    ngx_http_idempotency_op_t *op, redisReply *reply);


/* in the order of ngx_http_idempotency_op_e */

static ngx_http_idempotency_redis_script_t
    ngx_http_idempotency_redis_scripts[] =
{
    { ngx_http_idempotency_begin_lua,
      &ngx_http_idempotency_begin_lua_len, 1 + 8, "" },

    { ngx_http_idempotency_renew_lua,
      &ngx_http_idempotency_renew_lua_len, 1 + 7, "" },

    { ngx_http_idempotency_commit_lua,
      &ngx_http_idempotency_commit_lua_len, 1 + 10, "" },

    { ngx_http_idempotency_release_lua,
      &ngx_http_idempotency_release_lua_len, 1 + 3, "" },

    { ngx_http_idempotency_watch_lua,
      &ngx_http_idempotency_watch_lua_len, 1 + 1, "" }
};


void
ngx_http_idempotency_redis_script_init(void)
{
    u_char                                sha[20];
    ngx_uint_t                            i;
    ngx_sha1_t                            sha1;
    ngx_http_idempotency_redis_script_t  *script;

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_OP_N; i++) {
        script = &ngx_http_idempotency_redis_scripts[i];

        ngx_sha1_init(&sha1);
        ngx_sha1_update(&sha1, script->text, *script->len);
        ngx_sha1_final(sha, &sha1);

        ngx_hex_dump(script->sha, sha, sizeof(sha));
    }
}


/* the command of call->op, behind what is to be sent on its connection */

ngx_int_t
ngx_http_idempotency_redis_script_encode(
    ngx_http_idempotency_redis_call_t *call)
{
    size_t                                size;
    u_char                               *p;
    uint64_t                              life, grace;
    ngx_http_idempotency_op_t            *op;
    ngx_http_idempotency_redis_t         *redis;
    ngx_http_idempotency_redis_script_t  *script;

    u_char  key[2 * NGX_HTTP_IDEMPOTENCY_ID_LEN];
    u_char  claim[NGX_HTTP_IDEMPOTENCY_CLAIM_LEN];

    op = call->op;
    redis = ngx_http_idempotency_redis_conf(op);
    script = &ngx_http_idempotency_redis_scripts[op->kind];

    size = ngx_http_idempotency_redis_put_size(0)
               * (NGX_HTTP_IDEMPOTENCY_REDIS_ARGS_MAX + 1)
           + sizeof("EVALSHA") - 1
           + ngx_max(*script->len, NGX_HTTP_IDEMPOTENCY_REDIS_SHA_LEN)
           + redis->prefix.len + sizeof(key)
           + sizeof(claim) + NGX_HTTP_IDEMPOTENCY_TOKEN_LEN
           + redis->channel.len
           + 8 * NGX_INT64_LEN;

    if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_COMMIT) {
        size += op->size;

    } else if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_BEGIN) {
        size += op->details.len;
    }

    p = ngx_http_idempotency_redis_reserve(call->conn, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    call->tag = ++call->conn->tag;

    p = ngx_http_idempotency_redis_put_count(p, 2 + 1 + script->args);

    /*
     * Whole until the server has shown that it has the script: a call that is
     * asked again would come behind what was sent meanwhile
     */

    call->whole = call->eval || !(call->conn->known & (1 << op->kind));

    if (call->whole) {
        p = ngx_http_idempotency_redis_put(p, "EVAL", 4);
        p = ngx_http_idempotency_redis_put(p, script->text, *script->len);

    } else {
        p = ngx_http_idempotency_redis_put(p, "EVALSHA", 7);
        p = ngx_http_idempotency_redis_put(p, script->sha,
                                        NGX_HTTP_IDEMPOTENCY_REDIS_SHA_LEN);
    }

    p = ngx_http_idempotency_redis_put(p, "1", 1);

    ngx_hex_dump(key, op->id, NGX_HTTP_IDEMPOTENCY_ID_LEN);

    p = ngx_sprintf(p, "$%uz" CRLF "%V%*s" CRLF,
                    redis->prefix.len + sizeof(key), &redis->prefix,
                    sizeof(key), key);

    p = ngx_http_idempotency_redis_put_number(p, call->tag);

    if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_WATCH) {
        goto done;
    }

    p = ngx_http_idempotency_redis_put(p, op->token,
                                       NGX_HTTP_IDEMPOTENCY_TOKEN_LEN);

    if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_RELEASE) {
        p = ngx_http_idempotency_redis_put(p, redis->channel.data,
                                           redis->channel.len);
        goto done;
    }

    ngx_http_idempotency_claim_encode(claim, op->claim);

    p = ngx_http_idempotency_redis_put_number(p,
                                          NGX_HTTP_IDEMPOTENCY_REDIS_VERSION);
    p = ngx_http_idempotency_redis_put(p, claim, sizeof(claim));

    if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_COMMIT) {
        grace = ngx_min((uint64_t) op->grace,
                        NGX_HTTP_IDEMPOTENCY_REDIS_LIFE_MAX);
        life = grace + ngx_min((uint64_t) op->ttl,
                               NGX_HTTP_IDEMPOTENCY_REDIS_LIFE_MAX);

        p = ngx_http_idempotency_redis_put_number(p, ngx_max(life, 1));
        p = ngx_http_idempotency_redis_put_number(p, op->state);
        p = ngx_http_idempotency_redis_put_number(p, op->reason);

        if (op->state == NGX_HTTP_IDEMPOTENCY_COMPLETED) {
            p = ngx_http_idempotency_redis_put_chain(p, op->response,
                                                     op->size);
        } else {
            p = ngx_http_idempotency_redis_put(p, "", 0);
        }

        p = ngx_http_idempotency_redis_put(p, redis->channel.data,
                                           redis->channel.len);
        p = ngx_http_idempotency_redis_put_number(p, grace);
        goto done;
    }

    /*
     * A while longer than the lease, so that who takes over knows that it was
     * abandoned; under hold, for the ttl.
     */

    grace = op->lease;

    if (op->hold && op->ttl > 2 * op->lease) {
        grace = op->ttl - op->lease;
    }

    grace = ngx_min(grace, NGX_HTTP_IDEMPOTENCY_REDIS_LIFE_MAX);
    life = grace + ngx_min((uint64_t) op->lease,
                           NGX_HTTP_IDEMPOTENCY_REDIS_LIFE_MAX);

    p = ngx_http_idempotency_redis_put_number(p, life);
    p = ngx_http_idempotency_redis_put_number(p, grace);
    p = ngx_http_idempotency_redis_put_number(p, op->hold);

    if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_BEGIN) {
        p = ngx_http_idempotency_redis_put(p, op->details.data,
                                           op->details.len);
    }

done:

    call->conn->out.last = p;

    return NGX_OK;
}


ngx_int_t
ngx_http_idempotency_redis_script_result(
    ngx_http_idempotency_redis_call_t *call, redisReply *reply)
{
    int64_t                     tag, code;
    ngx_http_idempotency_op_t  *op;

    op = call->op;

    if (reply->type == REDIS_REPLY_ERROR) {

        if (!call->whole && reply->len >= 8
            && ngx_strncmp(reply->str, "NOSCRIPT", 8) == 0)
        {
            call->conn->known = 0;
            return NGX_AGAIN;
        }

        ngx_http_idempotency_redis_refused(op, reply);
        return NGX_OK;
    }

    if (ngx_http_idempotency_redis_number(reply, 0, &tag) != NGX_OK
        || tag != (int64_t) call->tag
        || ngx_http_idempotency_redis_number(reply, 1, &code) != NGX_OK
        || code < 0)
    {
        return NGX_ERROR;
    }

    call->conn->known |= 1 << op->kind;

    switch (op->kind) {

    case NGX_HTTP_IDEMPOTENCY_OP_BEGIN:

        if (code == NGX_HTTP_IDEMPOTENCY_REDIS_DONE) {
            ngx_http_idempotency_redis_begun(op, reply);
            return NGX_OK;
        }

        if (code != NGX_HTTP_IDEMPOTENCY_REDIS_FOUND
            || reply->elements != NGX_HTTP_IDEMPOTENCY_REDIS_F_N)
        {
            return NGX_ERROR;
        }

        op->error = ngx_http_idempotency_redis_found(op, reply);

        if (op->error) {
            op->result = NGX_HTTP_IDEMPOTENCY_ERROR;
            op->bad_record = 1;

            ngx_log_error(NGX_LOG_ERR, op->log, 0,
                          "idempotency: store \"%V\": record %*xs is not "
                          "usable: %s", &op->store->name, (size_t) 8, op->id,
                          op->error);
        }

        return NGX_OK;

    case NGX_HTTP_IDEMPOTENCY_OP_WATCH:
        op->found.left = (ngx_msec_t) code;
        op->result = NGX_HTTP_IDEMPOTENCY_OK;
        return NGX_OK;

    case NGX_HTTP_IDEMPOTENCY_OP_COMMIT:

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
        : "");

    p = ngx_http_idempotency_redis_error_text(p, last, reply);
    *p = '\0';

    if (ngx_http_idempotency_redis_error_is(reply, "WRONGTYPE")) {
        op->bad_record = 1;

        ngx_log_error(NGX_LOG_ERR, op->log, 0,
                      "idempotency: store \"%V\": record %*xs is not usable: "
                      "its key is not a hash", &op->store->name, (size_t) 8,
                      op->id);
    }
}


static void
ngx_http_idempotency_redis_begun(ngx_http_idempotency_op_t *op,
    redisReply *reply)
{
    int64_t  how;

    if (ngx_http_idempotency_redis_number(reply, 2, &how) != NGX_OK) {
        how = 0;
    }

    op->result = NGX_HTTP_IDEMPOTENCY_ACQUIRED;
    op->abandoned = (how == NGX_HTTP_IDEMPOTENCY_REDIS_ABANDONED);
    op->expired = (how == NGX_HTTP_IDEMPOTENCY_REDIS_EXPIRED);
}


/* what is wrong with the record, or NULL */

static const char *
ngx_http_idempotency_redis_found(ngx_http_idempotency_op_t *op,
    redisReply *reply)
{
    int64_t                        version, state, reason, life, grace;
    ngx_int_t                      rc;
    ngx_str_t                      s;
    ngx_http_idempotency_found_t  *found;

    found = &op->found;

    ngx_memzero(found, sizeof(ngx_http_idempotency_found_t));

    op->result = NGX_HTTP_IDEMPOTENCY_FOUND;
    found->verify = 1;

    if (ngx_http_idempotency_redis_number(reply,
                             NGX_HTTP_IDEMPOTENCY_REDIS_F_VERSION, &version)
        != NGX_OK)
    {
        return "it is not one of ours";
    }

    if (version < NGX_HTTP_IDEMPOTENCY_REDIS_VERSION - 1
        || version > NGX_HTTP_IDEMPOTENCY_REDIS_VERSION + 1)
    {
        return "it is of a version that this one does not read";
    }

    if (ngx_http_idempotency_redis_number(reply,
                                   NGX_HTTP_IDEMPOTENCY_REDIS_F_LIFE, &life)
        != NGX_OK
        || life < 0)
    {
        return "it has no expiry";
    }

    if (ngx_http_idempotency_redis_field(reply,
                                     NGX_HTTP_IDEMPOTENCY_REDIS_F_CLAIM, &s)
        != NGX_OK
        || ngx_http_idempotency_claim_decode(s.data, s.len, &found->claim)
           != NGX_OK)
    {
        return "its claim is corrupt";
    }

    if (ngx_http_idempotency_redis_field(reply,
                                   NGX_HTTP_IDEMPOTENCY_REDIS_F_DETAILS, &s)
        == NGX_OK
        && s.len)
    {
        found->details.data = ngx_pnalloc(op->pool, s.len);

        if (found->details.data) {
            found->details.len = s.len;
            ngx_memcpy(found->details.data, s.data, s.len);
        }
    }

    found->left = (ngx_msec_t) life;

    rc = ngx_http_idempotency_redis_number(reply,
                                 NGX_HTTP_IDEMPOTENCY_REDIS_F_STATE, &state);

    if (rc == NGX_DECLINED) {

        /* a commit had room for no more than that */

        found->state = NGX_HTTP_IDEMPOTENCY_UNUSABLE;
        found->reason = NGX_HTTP_IDEMPOTENCY_REASON_NO_ROOM;
        return NULL;
    }

    if (rc != NGX_OK) {
        return "its state is corrupt";
    }

    if (ngx_http_idempotency_redis_number(reply,
                                 NGX_HTTP_IDEMPOTENCY_REDIS_F_GRACE, &grace)
        != NGX_OK)
    {
        return "its lease or ttl is corrupt";
    }

    if (life > grace) {
        found->left = (ngx_msec_t) (life - grace);
    }

    switch (state) {

    case NGX_HTTP_IDEMPOTENCY_IN_PROGRESS:

        found->state = NGX_HTTP_IDEMPOTENCY_IN_PROGRESS;

        if (life <= grace) { /* under hold */
            found->state = NGX_HTTP_IDEMPOTENCY_UNUSABLE;
            found->reason = NGX_HTTP_IDEMPOTENCY_REASON_UNKNOWN;
        }

        return NULL;

    case NGX_HTTP_IDEMPOTENCY_UNUSABLE:

        if (ngx_http_idempotency_redis_number(reply,
                               NGX_HTTP_IDEMPOTENCY_REDIS_F_REASON, &reason)
            != NGX_OK
            || reason <= NGX_HTTP_IDEMPOTENCY_REASON_NONE
            || reason > NGX_HTTP_IDEMPOTENCY_REASON_EVICTED)
        {
            return "its reason is corrupt";
        }

        found->state = NGX_HTTP_IDEMPOTENCY_UNUSABLE;
        found->reason = (ngx_http_idempotency_reason_e) reason;
        return NULL;

    case NGX_HTTP_IDEMPOTENCY_COMPLETED:

        if (ngx_http_idempotency_redis_field(reply,
                                  NGX_HTTP_IDEMPOTENCY_REDIS_F_RESPONSE, &s)
            != NGX_OK
            || s.len == 0)
        {
            return "its response is missing";
        }

        found->response.data = ngx_pnalloc(op->pool, s.len);

        if (found->response.data == NULL) {
            return "there is no memory for its response";
        }

        found->response.len = s.len;
        ngx_memcpy(found->response.data, s.data, s.len);

        found->state = NGX_HTTP_IDEMPOTENCY_COMPLETED;
        return NULL;

    default:
        return "its state is corrupt";
    }
}
