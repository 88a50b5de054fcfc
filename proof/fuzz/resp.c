
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/redis/ngx_redis_codec.c src/store/redis/ngx_http_idem_redis_reply.c src/store/redis/ngx_http_idem_redis_record.c src/record/ngx_http_idem_record.c src/record/ngx_http_idem_sum.c ; libs: -lhiredis -lz */

/*
 * What a Redis says, as it is read: a first byte chooses the operation, and
 * whether it is a native command: a begin may have two replies then; the rest
 * is a stream of replies.  The results do not depend on how the stream is
 * cut, and what begin found lies in memory of the operation's own.
 *
 * nginx's own functions are not at hand here: those that reading needs are
 * below, those that writing needs are not called.
 */


#include "fuzz.h"

#include "store/redis/ngx_http_idem_redis.h"


#define BLOCKS_MAX   64
#define REPLIES_MAX  8
#define TAG          7


volatile ngx_cycle_t  *ngx_cycle;

static void   *blocks[BLOCKS_MAX];
static size_t  nblocks;

static ngx_pool_cleanup_t  cleanups[BLOCKS_MAX];
static size_t              ncleanups;


void *
ngx_pnalloc(ngx_pool_t *pool, size_t size)
{
    if (nblocks == BLOCKS_MAX) {
        return NULL;
    }

    return blocks[nblocks++] = malloc(size);
}


u_char *
ngx_pstrdup(ngx_pool_t *pool, ngx_str_t *src)
{
    u_char  *dst;

    dst = ngx_pnalloc(pool, src->len);

    if (dst) {
        ngx_memcpy(dst, src->data, src->len);
    }

    return dst;
}


/* what it is told to clean is freed with the blocks */

ngx_pool_cleanup_t *
ngx_pool_cleanup_add(ngx_pool_t *pool, size_t size)
{
    if (ncleanups == BLOCKS_MAX) {
        return NULL;
    }

    return &cleanups[ncleanups++];
}


void *
ngx_alloc(size_t size, ngx_log_t *log)
{
    return malloc(size);
}


u_char *
ngx_strnstr(u_char *s1, char *s2, size_t n)
{
    size_t  len = strlen(s2);

    for ( /* void */ ; n >= len && *s1; s1++, n--) {
        if (memcmp(s1, s2, len) == 0) {
            return s1;
        }
    }

    return NULL;
}


/* only ever with "%s" */

u_char *
ngx_slprintf(u_char *buf, u_char *last, const char *fmt, ...)
{
    char     *s;
    va_list   args;

    va_start(args, fmt);

    for (s = va_arg(args, char *); *s && buf < last; s++) {
        *buf++ = (u_char) *s;
    }

    va_end(args);

    return buf;
}


void
ngx_log_error_core(ngx_uint_t level, ngx_log_t *log, ngx_err_t err,
    const char *fmt, ...)
{
}


/* events are not read here */

ngx_int_t
ngx_http_idem_redis_trail_result(ngx_http_idem_redis_call_t *call,
    u_char code, u_char *p, u_char *last)
{
    return NGX_OK;
}


/* as it is when it is sent */

static void
forget(ngx_http_idem_redis_call_t *call)
{
    if (call->call.first_reply) {
        freeReplyObject(call->call.first_reply);
        call->call.first_reply = NULL;
    }

    free(call->call.to_free);
    call->call.to_free = NULL;
    ngx_str_null(&call->expected);

    call->call.tries = 1;
    call->upgrade = 0;
    call->upgraded = 0;
}


/* reads the stream; what came of it, as a number */

static uint64_t
listen_to(ngx_uint_t kind, ngx_uint_t native, ngx_uint_t due, const uint8_t *p,
    size_t len, size_t piece)
{
    void                        *reply;
    size_t                       n;
    uint64_t                     sum;
    ngx_log_t                    log;
    ngx_int_t                    rc;
    ngx_uint_t                   replies;
    redisReader                 *reader;
    ngx_http_idem_op_t           op;
    ngx_http_idem_store_t        store;
    ngx_http_idem_redis_t        redis;
    ngx_http_idem_redis_call_t   call;
    ngx_redis_conn_t   conn;
    ngx_http_idem_claim_t        claim;

    ngx_memzero(&claim, sizeof(claim));
    ngx_memzero(&log, sizeof(log));
    ngx_memzero(&op, sizeof(op));
    ngx_memzero(&store, sizeof(store));
    ngx_memzero(&redis, sizeof(redis));
    ngx_memzero(&call, sizeof(call));
    ngx_memzero(&conn, sizeof(conn));

    op.kind = kind;
    op.store = &store;
    op.claim = &claim;
    store.conf = &redis;
    op.log = &log;
    op.pool = (ngx_pool_t *) &op;           /* only asked whether it is there */
    call.call.data = &op;
    call.call.conn = &conn;
    call.call.redis = &redis.client;
    call.tag = TAG;
    call.native = native;
    call.call.two_replies = due;
    call.call.tries = 1;

    reader = ngx_redis_reader(0);
    fuzz_check(reader != NULL);

    sum = 0;
    replies = 0;

    while (len && replies < REPLIES_MAX) {
        n = (piece && piece < len) ? piece : len;

        redisReaderFeed(reader, (const char *) p, n);
        p += n;
        len -= n;

        for ( ;; ) {
            reply = NULL;

            if (redisReaderGetReply(reader, &reply) != REDIS_OK) {
                len = 0;
                sum = sum * 31 + 1;
                break;
            }

            if (reply == NULL) {
                break;
            }

            if (call.call.two_replies && call.call.first_reply == NULL) {
                call.call.first_reply = reply;
                continue;
            }

            rc = ngx_http_idem_redis_reply_result(&call, reply);

            if (rc == NGX_OK) {
                fuzz_check(op.result <= NGX_HTTP_IDEM_ERROR);

                sum = sum * 31 + op.result;

                if (op.result == NGX_HTTP_IDEM_FOUND) {
                    sum = sum * 31 + op.found.state * 8 + op.found.reason;
                    fuzz_check(op.found.state
                               >= NGX_HTTP_IDEM_IN_PROGRESS
                               && op.found.state
                                  <= NGX_HTTP_IDEM_UNUSABLE);
                }
            }

            freeReplyObject(reply);

            forget(&call);

            if (op.result == NGX_HTTP_IDEM_FOUND && rc == NGX_OK) {

                /* with the reply gone: nothing may point into it */

                for (n = 0; n < op.found.response.len; n++) {
                    sum = sum * 31 + op.found.response.data[n];
                }

                for (n = 0; n < op.found.details.len; n++) {
                    sum = sum * 31 + op.found.details.data[n];
                }
            }

            if (++replies == REPLIES_MAX || rc == NGX_ERROR) {
                len = 0;
                break;
            }
        }
    }

    redisReaderFree(reader);

    forget(&call);

    while (nblocks) {
        free(blocks[--nblocks]);
    }

    while (ncleanups) {
        ncleanups--;
        cleanups[ncleanups].handler(cleanups[ncleanups].data);
    }

    return sum;
}


/* answers to people: they take another way, ..._redis_admin.c */

ngx_int_t
ngx_http_idem_redis_admin_result(ngx_http_idem_redis_call_t *call,
    u_char code, u_char *p, u_char *last)
{
    return NGX_ERROR;
}



int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t      sum;
    ngx_uint_t    kind, native, due;
    fuzz_input_t  in;

    in.p = data;
    in.len = size;
    kind = fuzz_byte(&in) % (2 * NGX_HTTP_IDEM_OP_N);
    native = (kind >= NGX_HTTP_IDEM_OP_N);
    due = 0;

    if (native) {
        kind -= NGX_HTTP_IDEM_OP_N;

        if (kind == NGX_HTTP_IDEM_OP_WATCH) {

            /* there is none: a begin with PTTL before it */

            kind = NGX_HTTP_IDEM_OP_BEGIN;
            due = 1;
        }
    }

    sum = listen_to(kind, native, due, in.p, in.len, 0);

    fuzz_check(listen_to(kind, native, due, in.p, in.len, 1) == sum);

    return 0;
}
