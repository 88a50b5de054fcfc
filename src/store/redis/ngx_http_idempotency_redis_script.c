
/*
 * An operation as the commands that do it, and their reply as its result.
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
 * Every call carries a tag that comes back in the reply: one that does not
 * match is not ours.
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

/* in conn->known: begins are scripts, the server has no SET with NX and GET */
#define NGX_HTTP_IDEMPOTENCY_REDIS_NO_PLAIN  (1 << NGX_HTTP_IDEMPOTENCY_OP_N)


/*
 * A reply is a string: the tag, a code, and what the script has to tell.  That
 * of a begin that found a record is an array of such a string and the record.
 */

#define NGX_HTTP_IDEMPOTENCY_REDIS_TAG_LEN   4
#define NGX_HTTP_IDEMPOTENCY_REDIS_AT_CODE   4
#define NGX_HTTP_IDEMPOTENCY_REDIS_AT_MORE   5

#define NGX_HTTP_IDEMPOTENCY_REDIS_LOST      '0'
#define NGX_HTTP_IDEMPOTENCY_REDIS_DONE      '1'
#define NGX_HTTP_IDEMPOTENCY_REDIS_FOUND     '2'    /* begin                */
#define NGX_HTTP_IDEMPOTENCY_REDIS_NO_ROOM   '2'    /* commit               */


/* how begin got the lock */

#define NGX_HTTP_IDEMPOTENCY_REDIS_ABANDONED   '1'
#define NGX_HTTP_IDEMPOTENCY_REDIS_EXPIRED     '2'


typedef struct {
    const u_char   *text;
    const size_t   *len;
    ngx_uint_t      args;               /* the key and ARGV                 */
    u_char          sha[NGX_HTTP_IDEMPOTENCY_REDIS_SHA_LEN];
} ngx_http_idempotency_redis_script_t;


static u_char *ngx_http_idempotency_redis_put_script(u_char *p,
    ngx_http_idempotency_redis_call_t *call);
static u_char *ngx_http_idempotency_redis_put_plain(u_char *p,
    ngx_http_idempotency_redis_call_t *call);
static u_char *ngx_http_idempotency_redis_put_key(u_char *p,
    ngx_http_idempotency_op_t *op);
static u_char *ngx_http_idempotency_redis_put_record(u_char *p,
    ngx_http_idempotency_op_t *op, uint64_t *life);
static ngx_int_t ngx_http_idempotency_redis_plain_result(
    ngx_http_idempotency_redis_call_t *call, redisReply *reply);
static ngx_int_t ngx_http_idempotency_redis_begun(
    ngx_http_idempotency_op_t *op, ngx_str_t *head, redisReply *reply);
static void ngx_http_idempotency_redis_found(ngx_http_idempotency_op_t *op,
    ngx_str_t *record, int64_t life);
static void ngx_http_idempotency_redis_refused(ngx_http_idempotency_op_t *op,
    redisReply *reply);


/* in the order of ngx_http_idempotency_op_e */

static ngx_http_idempotency_redis_script_t
    ngx_http_idempotency_redis_scripts[] =
{
    { ngx_http_idempotency_begin_lua,
      &ngx_http_idempotency_begin_lua_len, 1 + 3, "" },

    { ngx_http_idempotency_renew_lua,
      &ngx_http_idempotency_renew_lua_len, 1 + 3, "" },

    { ngx_http_idempotency_commit_lua,
      &ngx_http_idempotency_commit_lua_len, 1 + 4, "" },

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


/* the commands of call->op, behind what is to be sent on its connection */

ngx_int_t
ngx_http_idempotency_redis_script_encode(
    ngx_http_idempotency_redis_call_t *call)
{
    size_t                                size;
    u_char                               *p;
    ngx_http_idempotency_op_t            *op;
    ngx_http_idempotency_redis_t         *redis;
    ngx_http_idempotency_redis_conn_t    *conn;
    ngx_http_idempotency_redis_script_t  *script;

    op = call->op;
    conn = call->conn;
    redis = ngx_http_idempotency_redis_conf(op);
    script = &ngx_http_idempotency_redis_scripts[op->kind];

    /* enough for either way: the key stands twice in the plain one */

    size = ngx_http_idempotency_redis_put_size(0)
               * (NGX_HTTP_IDEMPOTENCY_REDIS_ARGS_MAX + 1)
           + sizeof("EVALSHA") - 1
           + ngx_max(*script->len, NGX_HTTP_IDEMPOTENCY_REDIS_SHA_LEN)
           + 2 * (redis->prefix.len + 2 * NGX_HTTP_IDEMPOTENCY_ID_LEN)
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

    call->plain = (op->kind == NGX_HTTP_IDEMPOTENCY_OP_BEGIN
                   && call->tries == 0
                   && !call->script
                   && !(conn->known & NGX_HTTP_IDEMPOTENCY_REDIS_NO_PLAIN));

    conn->out.last = call->plain
                     ? ngx_http_idempotency_redis_put_plain(p, call)
                     : ngx_http_idempotency_redis_put_script(p, call);

    return NGX_OK;
}


static u_char *
ngx_http_idempotency_redis_put_script(u_char *p,
    ngx_http_idempotency_redis_call_t *call)
{
    uint64_t                              life;
    ngx_str_t                            *channel;
    ngx_http_idempotency_op_t            *op;
    ngx_http_idempotency_redis_script_t  *script;

    op = call->op;
    channel = &ngx_http_idempotency_redis_conf(op)->channel;
    script = &ngx_http_idempotency_redis_scripts[op->kind];

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
    p = ngx_http_idempotency_redis_put_key(p, op);
    p = ngx_http_idempotency_redis_put(p, &call->tag,
                                       NGX_HTTP_IDEMPOTENCY_REDIS_TAG_LEN);

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
    p = ngx_http_idempotency_redis_put_key(p, op);
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


static u_char *
ngx_http_idempotency_redis_put_key(u_char *p, ngx_http_idempotency_op_t *op)
{
    ngx_str_t  *prefix;

    prefix = &ngx_http_idempotency_redis_conf(op)->prefix;

    p = ngx_http_idempotency_redis_put_line(p, '$',
                             prefix->len + 2 * NGX_HTTP_IDEMPOTENCY_ID_LEN);
    p = ngx_cpymem(p, prefix->data, prefix->len);
    p = ngx_hex_dump(p, op->id, NGX_HTTP_IDEMPOTENCY_ID_LEN);

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


/*
 * Scripts do not reply with a number: where one is missing in the stream, that
 * is seen at once, and not when the replies to a later call have come.
 */

ngx_int_t
ngx_http_idempotency_redis_script_before(
    ngx_http_idempotency_redis_call_t *call)
{
    int  type;

    type = call->before[call->nbefore - 1]->type;

    if (type == REDIS_REPLY_ERROR) {
        return NGX_OK;
    }

    if (call->nbefore == 1) {
        return (type == REDIS_REPLY_INTEGER) ? NGX_OK : NGX_ERROR;
    }

    return (type == REDIS_REPLY_NIL || type == REDIS_REPLY_STRING)
           ? NGX_OK : NGX_ERROR;
}


/* of several commands, that of the one which decides: the rest only look */

redisReply *
ngx_http_idempotency_redis_script_error(
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
ngx_http_idempotency_redis_script_result(
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

    call->conn->known |= 1 << op->kind;

    switch (op->kind) {

    case NGX_HTTP_IDEMPOTENCY_OP_BEGIN:
        return ngx_http_idempotency_redis_begun(op, &head, reply);

    case NGX_HTTP_IDEMPOTENCY_OP_WATCH:

        if (head.len != NGX_HTTP_IDEMPOTENCY_REDIS_AT_MORE + 8) {
            return NGX_ERROR;
        }

        op->found.left = (ngx_msec_t) ngx_http_idempotency_redis_get_bytes(
                            head.data + NGX_HTTP_IDEMPOTENCY_REDIS_AT_MORE, 8);
        op->result = NGX_HTTP_IDEMPOTENCY_OK;
        return NGX_OK;

    case NGX_HTTP_IDEMPOTENCY_OP_COMMIT:

        if (code == NGX_HTTP_IDEMPOTENCY_REDIS_NO_ROOM) {
            op->result = NGX_HTTP_IDEMPOTENCY_FULL;
            op->error = "there is no room in it";
            return NGX_OK;
        }

        /* fall through */

    default: /* renew, release */
        op->result = (code == NGX_HTTP_IDEMPOTENCY_REDIS_DONE)
                     ? NGX_HTTP_IDEMPOTENCY_OK : NGX_HTTP_IDEMPOTENCY_LOST;
        return NGX_OK;
    }
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
        ngx_http_idempotency_redis_found(op, &record, pttl->integer);
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

        ngx_http_idempotency_redis_found(op, &record,
                      (int64_t) ngx_http_idempotency_redis_get_bytes(more, 8));
        return NGX_OK;

    default:
        return NGX_ERROR;
    }
}


static void
ngx_http_idempotency_redis_found(ngx_http_idempotency_op_t *op,
    ngx_str_t *record, int64_t life)
{
    op->error = ngx_http_idempotency_redis_record_found(op, record, life);

    if (op->error == NULL) {
        return;
    }

    op->result = NGX_HTTP_IDEMPOTENCY_ERROR;
    op->bad_record = 1;

    ngx_log_error(NGX_LOG_ERR, op->log, 0,
                  "idempotency: store \"%V\": record %*xs is not usable: %s",
                  &op->store->name, (size_t) 8, op->id, op->error);
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
                      "its key is not a string", &op->store->name, (size_t) 8,
                      op->id);
    }
}
