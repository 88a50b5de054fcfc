
/*
 * A begin and a commit as plain commands, which cost the server a third of
 * what a script does; ..._redis_reply.c reads their replies.
 *
 * A begin is
 *
 *     RESTORE key life { our lock, our token }   LRANGE key 0 1
 *
 * RESTORE lays the lock with its life in one step, if there is nothing, and is
 * refused (BUSYKEY) otherwise; it is the only command that does that to a
 * list.  LRANGE tells what is there then: our own token, so that the reply is
 * ours; or a completed record that lasts as long as its key does.  Anything
 * else is left to the script: a lock of somebody else, whose lease may be
 * over, something that is no record, an error; what is asked once more; and
 * the begin of one that waits, which is not to take what is gone.
 *
 * Who has to know what is left of a record (a cache, or a begin where records
 * outlive their ttl for a grace) has a PTTL before them: a record that came in
 * between may have a longer life than it tells, not a shorter one.
 *
 * A commit is
 *
 *     LINSERT key BEFORE our token, the outcome
 *
 * which is done only where that token is, and tells by the length of the list
 * whether somebody waits.  It leaves the life of the key as it is: so a begin
 * lays its lock for the ttl and a margin of it, and this is for those that
 * come within half of that.  Their record lasts for its ttl at least, and for
 * a hundredth more at most.  It is asked once: twice, it would be there twice.
 * One that comes late, behind the script that was asked in its place, adds an
 * outcome behind the first, which nobody reads.
 *
 * Called when a call is sent.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/layers/ngx_http_idem_layers.h"
#include "store/redis/ngx_http_idem_redis.h"


#define NGX_HTTP_IDEM_REDIS_PTTL                                              \
    "*2" CRLF "$4" CRLF "PTTL" CRLF

#define NGX_HTTP_IDEM_REDIS_RESTORE                                           \
    "*4" CRLF "$7" CRLF "RESTORE" CRLF

#define NGX_HTTP_IDEM_REDIS_LRANGE                                            \
    "*4" CRLF "$6" CRLF "LRANGE" CRLF

#define NGX_HTTP_IDEM_REDIS_LRANGE_END                                        \
    "$1" CRLF "0" CRLF "$1" CRLF "1" CRLF

#define NGX_HTTP_IDEM_REDIS_LINSERT                                           \
    "*5" CRLF "$7" CRLF "LINSERT" CRLF

#define NGX_HTTP_IDEM_REDIS_LINSERT_MORE                                      \
    "$6" CRLF "BEFORE" CRLF

#define ngx_http_idem_redis_put_words(p, words)                               \
    ngx_cpymem(p, words, sizeof(words) - 1)


static ngx_uint_t ngx_http_idem_redis_lasts_for_ttl(ngx_http_idem_op_t *op);
static u_char *ngx_http_idem_redis_put_begin(u_char *p,
    ngx_http_idem_redis_call_t *call);
static u_char *ngx_http_idem_redis_put_commit(u_char *p,
    ngx_http_idem_redis_call_t *call);


ngx_uint_t
ngx_http_idem_redis_is_plain(ngx_http_idem_redis_call_t *call)
{
    ngx_http_idem_op_t  *op;

    op = call->op;

    /* what is asked once more is asked by its script */

    if (call->tries || call->script
        || (call->conn->known & ngx_http_idem_redis_no_plain(op->kind)))
    {
        return 0;
    }

    switch (op->kind) {

    case NGX_HTTP_IDEM_OP_BEGIN:
        return !op->again;

    case NGX_HTTP_IDEM_OP_COMMIT:
        return ngx_http_idem_redis_lasts_for_ttl(op);

    default:
        return 0;
    }
}


/* whether the lock that begin laid has a life that is right for its record */

static ngx_uint_t
ngx_http_idem_redis_lasts_for_ttl(ngx_http_idem_op_t *op)
{
    uint64_t  margin;

    if (op->laid.store != op->store || op->grace || op->laid.life <= op->ttl
        || ngx_http_idem_op_retryable(op))
    {
        return 0;
    }

    margin = op->laid.life - op->ttl;

    return margin >= NGX_HTTP_IDEM_REDIS_MARGIN
           && margin <= op->ttl / 100
           && ngx_current_msec - op->laid.time <= margin / 2;
}


/* the lock is ours: what a commit may rely on */

void
ngx_http_idem_redis_laid(ngx_http_idem_op_t *op)
{
    uint64_t  grace;

    op->laid.store = op->store;
    op->laid.time = op->start;
    op->laid.life = ngx_http_idem_redis_record_life(op, &grace);
}


u_char *
ngx_http_idem_redis_put_plain(u_char *p, ngx_http_idem_redis_call_t *call)
{
    return (call->op->kind == NGX_HTTP_IDEM_OP_BEGIN)
           ? ngx_http_idem_redis_put_begin(p, call)
           : ngx_http_idem_redis_put_commit(p, call);
}


static u_char *
ngx_http_idem_redis_put_begin(u_char *p, ngx_http_idem_redis_call_t *call)
{
    u_char                  *key, *payload;
    size_t                   len, size;
    uint64_t                 life, grace;
    ngx_http_idem_op_t      *op;
    ngx_http_idem_layers_t  *layers;

    op = call->op;
    layers = op->store->layers;

    call->due = 1;

    if (op->grace || (layers && layers->cache)) {
        p = ngx_http_idem_redis_put_words(p, NGX_HTTP_IDEM_REDIS_PTTL);
        p = ngx_http_idem_redis_put_key(p, op);

        call->due = 2;
    }

    p = ngx_http_idem_redis_put_words(p, NGX_HTTP_IDEM_REDIS_RESTORE);

    key = p;
    p = ngx_http_idem_redis_put_key(p, op);
    len = p - key;

    life = ngx_http_idem_redis_record_life(op, &grace);
    size = NGX_HTTP_IDEM_REDIS_LOCK_LEN + op->details.len;

    p = ngx_http_idem_redis_put_number(p, life);
    p = ngx_http_idem_redis_put_line(p, '$',
                              ngx_http_idem_redis_payload_size(size));

    payload = p;
    p = ngx_http_idem_redis_payload_start(p, size);
    p = ngx_http_idem_redis_record_lock(p, op, grace);
    p = ngx_cpymem(p, op->details.data, op->details.len);
    p = ngx_http_idem_redis_payload_end(payload, p, op->token);

    *p++ = CR; *p++ = LF;

    p = ngx_http_idem_redis_put_words(p, NGX_HTTP_IDEM_REDIS_LRANGE);
    p = ngx_cpymem(p, key, len);

    return ngx_http_idem_redis_put_words(p, NGX_HTTP_IDEM_REDIS_LRANGE_END);
}


static u_char *
ngx_http_idem_redis_put_commit(u_char *p, ngx_http_idem_redis_call_t *call)
{
    ngx_http_idem_op_t  *op;

    op = call->op;

    p = ngx_http_idem_redis_put_words(p, NGX_HTTP_IDEM_REDIS_LINSERT);
    p = ngx_http_idem_redis_put_key(p, op);
    p = ngx_http_idem_redis_put_words(p, NGX_HTTP_IDEM_REDIS_LINSERT_MORE);
    p = ngx_http_idem_redis_put(p, op->token, NGX_HTTP_IDEM_TOKEN_LEN);

    return ngx_http_idem_redis_put_outcome(p, op, 0);
}
