
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Large strings are sent from the user's memory, and received into the memory
 * in which they stay.  Copying them would cost a large part of the time that
 * the kernel needs to transfer them.
 *
 * Sending: a command is encoded into the buffer of its connection, without
 * the bytes of the string.  These are sent in between, from the user's chain,
 * which is only read: several calls may send the same chain.  If the user
 * goes away before the string is sent (the call was cancelled, or was replied
 * to already), the rest is copied, since an incomplete command would end the
 * connection.  If the rest is long, the connection is closed instead: sending
 * it would delay all calls behind it.
 *
 * Receiving: hiredis parses a reply up to the length of an incomplete string.
 * If the string is large, the rest of it bypasses hiredis.
 *
 * Called by the connection, and by the user when it encodes a call.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis.h"


/* buffers in one writev() */
#define NGX_REDIS_PIECES    32

/* the longest rest that is copied when the user goes away */
#define NGX_REDIS_COPY_MAX  (1024 * 1024)

#if (HIREDIS_MAJOR == 0)
#define ngx_redis_reading(reader)  (reader)->rstack[0].type
#else
#define ngx_redis_reading(reader)  (reader)->task[0]->type
#endif


/* the unsent part of a call's string */

struct ngx_redis_bulk_s {
    ngx_queue_t        queue;                /* conn->bulks                 */
    ngx_redis_conn_t  *conn;                 /* NULL: not encoded yet       */
    ngx_redis_call_t  *call;                 /* NULL: the call is gone      */
    /* bytes of conn->out between the previous string and this one */
    size_t             before;
    ngx_chain_t       *in;
    size_t             offset;               /* in the first buffer of "in" */
    size_t             left;
    ngx_chain_t        link;                 /* the copy                    */
    ngx_buf_t          buf;
};


typedef struct {
    ngx_uint_t         n;
    size_t             size;
    ngx_chain_t        links[NGX_REDIS_PIECES];
    ngx_buf_t          bufs[NGX_REDIS_PIECES];
} ngx_redis_pieces_t;


static void ngx_redis_bulk_free(ngx_redis_bulk_t *bulk);
static void ngx_redis_piece(ngx_redis_pieces_t *pieces, u_char *p,
    size_t size);
static ngx_int_t ngx_redis_pieces(ngx_redis_conn_t *conn,
    ngx_redis_pieces_t *pieces);
static void ngx_redis_bulk_sent(ngx_redis_conn_t *conn, size_t sent);


ngx_int_t
ngx_redis_bulk(ngx_redis_call_t *call)
{
    ngx_redis_bulk_t  *bulk;

    if (call->bulk) {
        /* a previous attempt to encode this call ran out of memory */
        return NGX_OK;
    }

    bulk = ngx_calloc(sizeof(ngx_redis_bulk_t), ngx_cycle->log);
    if (bulk == NULL) {
        return NGX_ERROR;
    }

    bulk->call = call;
    call->bulk = bulk;

    return NGX_OK;
}


u_char *
ngx_redis_put_bulk(u_char *p, ngx_redis_call_t *call, ngx_chain_t *in,
    size_t size)
{
    ngx_queue_t       *q;
    ngx_redis_conn_t  *conn;
    ngx_redis_bulk_t  *bulk, *other;

    conn = call->conn;
    bulk = call->bulk;

    bulk->conn = conn;
    bulk->in = in;
    bulk->left = size;
    bulk->before = p - conn->out.pos;

    for (q = ngx_queue_head(&conn->bulks);
         q != ngx_queue_sentinel(&conn->bulks);
         q = ngx_queue_next(q))
    {
        other = ngx_queue_data(q, ngx_redis_bulk_t, queue);
        bulk->before -= other->before;
    }

    ngx_queue_insert_tail(&conn->bulks, &bulk->queue);
    conn->bulk += size;

    return p;
}


/* the user is about to free the string */

void
ngx_redis_bulk_leave(ngx_redis_call_t *call)
{
    size_t             n, len;
    u_char            *p;
    ngx_chain_t       *in;
    ngx_redis_conn_t  *conn;
    ngx_redis_bulk_t  *bulk;

    bulk = call->bulk;

    if (bulk == NULL) {
        return;
    }

    call->bulk = NULL;
    bulk->call = NULL;

    conn = bulk->conn;
    in = bulk->in;

    if (conn == NULL) {
        ngx_redis_bulk_free(bulk);
        return;
    }

    bulk->in = NULL;

    p = (bulk->left > NGX_REDIS_COPY_MAX)
        ? NULL : ngx_alloc(bulk->left, ngx_cycle->log);

    if (p == NULL) {

        /* not closed here, since the caller is still using the connection */

        conn->truncated = 1;
        ngx_redis_flush(conn);

        return;
    }

    bulk->buf.start = p;
    bulk->buf.pos = p;

    for (len = bulk->left; len && in; in = in->next) {
        n = ngx_min((size_t) (in->buf->last - in->buf->pos) - bulk->offset,
                    len);

        p = ngx_cpymem(p, in->buf->pos + bulk->offset, n);

        bulk->offset = 0;
        len -= n;
    }

    bulk->buf.last = p;
    bulk->link.buf = &bulk->buf;
    bulk->in = &bulk->link;
}


static void
ngx_redis_bulk_free(ngx_redis_bulk_t *bulk)
{
    if (bulk->call) {
        bulk->call->bulk = NULL;
    }

    if (bulk->conn) {
        ngx_queue_remove(&bulk->queue);
        bulk->conn->bulk -= bulk->left;
    }

    if (bulk->buf.start) {
        ngx_free(bulk->buf.start);
    }

    ngx_free(bulk);
}


/* sends up to "max" bytes; returns what c->send() would */

ssize_t
ngx_redis_bulk_send(ngx_redis_conn_t *conn, size_t max)
{
    off_t                sent;
    ngx_chain_t         *rest;
    ngx_connection_t    *c;
    ngx_redis_pieces_t   pieces;

    pieces.n = 0;
    pieces.size = max;

    if (ngx_redis_pieces(conn, &pieces) != NGX_OK) {
        return NGX_ERROR;
    }

    c = conn->connection;
    sent = c->sent;

    rest = c->send_chain(c, pieces.links, 0);

    if (rest == NGX_CHAIN_ERROR) {
        return NGX_ERROR;
    }

    sent = c->sent - sent;

    if (sent == 0) {
        return NGX_AGAIN;
    }

    ngx_redis_bulk_sent(conn, (size_t) sent);

    return sent;
}


/* builds a chain of conn->out and the strings inside it */

static ngx_int_t
ngx_redis_pieces(ngx_redis_conn_t *conn, ngx_redis_pieces_t *pieces)
{
    size_t             n, left, offset;
    u_char            *p;
    ngx_queue_t       *q;
    ngx_chain_t       *in;
    ngx_redis_bulk_t  *bulk;

    p = conn->out.pos;

    for (q = ngx_queue_head(&conn->bulks);
         q != ngx_queue_sentinel(&conn->bulks);
         q = ngx_queue_next(q))
    {
        bulk = ngx_queue_data(q, ngx_redis_bulk_t, queue);

        ngx_redis_piece(pieces, p, bulk->before);
        p += bulk->before;

        in = bulk->in;
        offset = bulk->offset;

        for (left = bulk->left; left; left -= n) {

            if (in == NULL) {
                /* the chain is shorter than announced */
                return NGX_ERROR;
            }

            n = ngx_min((size_t) (in->buf->last - in->buf->pos) - offset,
                        left);

            ngx_redis_piece(pieces, in->buf->pos + offset, n);

            in = in->next;
            offset = 0;
        }
    }

    ngx_redis_piece(pieces, p, conn->out.last - p);

    return NGX_OK;
}


static void
ngx_redis_piece(ngx_redis_pieces_t *pieces, u_char *p, size_t size)
{
    ngx_buf_t   *b;
    ngx_uint_t   n;

    n = pieces->n;
    size = ngx_min(size, pieces->size);

    if (size == 0 || n == NGX_REDIS_PIECES) {
        /* the limit is reached: later pieces must not be sent before this
           one */
        return;
    }

    b = &pieces->bufs[n];

    ngx_memzero(b, sizeof(ngx_buf_t));

    b->pos = p;
    b->last = p + size;
    b->memory = 1;

    pieces->links[n].buf = b;
    pieces->links[n].next = NULL;

    if (n) {
        pieces->links[n - 1].next = &pieces->links[n];
    }

    pieces->n++;
    pieces->size -= size;
}


static void
ngx_redis_bulk_sent(ngx_redis_conn_t *conn, size_t sent)
{
    size_t             n;
    ngx_redis_bulk_t  *bulk;

    while (!ngx_queue_empty(&conn->bulks)) {
        bulk = ngx_queue_data(ngx_queue_head(&conn->bulks), ngx_redis_bulk_t,
                              queue);

        n = ngx_min(bulk->before, sent);

        bulk->before -= n;
        conn->out.pos += n;
        sent -= n;

        n = ngx_min(bulk->left, sent);

        bulk->left -= n;
        conn->bulk -= n;
        sent -= n;

        if (bulk->left || bulk->before) {

            for (bulk->offset += n;
                 bulk->offset
                     && bulk->offset >= (size_t) (bulk->in->buf->last
                                                  - bulk->in->buf->pos);
                 bulk->in = bulk->in->next)
            {
                bulk->offset -= bulk->in->buf->last - bulk->in->buf->pos;
            }

            return;
        }

        ngx_redis_bulk_free(bulk);
    }

    conn->out.pos += sent;
}


/* the connection is closed; its calls will be encoded again */

void
ngx_redis_bulk_close(ngx_redis_conn_t *conn)
{
    while (!ngx_queue_empty(&conn->bulks)) {
        ngx_redis_bulk_free(ngx_queue_data(ngx_queue_head(&conn->bulks),
                                           ngx_redis_bulk_t, queue));
    }

    conn->truncated = 0;

    if (conn->in.start) {
        free(conn->in.start);
        ngx_memzero(&conn->in, sizeof(ngx_buf_t));
    }
}


/*
 * Called when hiredis needs more bytes for a reply.  If it is in the middle
 * of a large string, the string is received here from now on.  Its memory
 * comes from malloc(), since it becomes the memory of a reply.
 */

ngx_int_t
ngx_redis_bulk_expect(ngx_redis_conn_t *conn)
{
    size_t        len, have;
    u_char       *p, *last;
    redisReader  *reader, *fresh;

    reader = conn->reader;

    if (reader->ridx != 0
        || ngx_redis_reading(reader) != REDIS_REPLY_STRING)
    {
        return NGX_OK;
    }

    p = (u_char *) reader->buf + reader->pos;
    last = (u_char *) reader->buf + reader->len;

    for (len = 0; p < last && *p >= '0' && *p <= '9'; p++) {
        len = len * 10 + (*p - '0');

        if (len > NGX_REDIS_REPLY_MAX) {
            return NGX_ERROR;
        }
    }

    if (len < NGX_REDIS_BULK_MIN || last - p < 2 || p[0] != CR || p[1] != LF) {
        return NGX_OK;
    }

    p += 2;
    have = last - p;

    if (have >= len) {
        return NGX_OK;
    }

    fresh = ngx_redis_reader((uintptr_t) reader->privdata);
    if (fresh == NULL) {
        return NGX_ERROR;
    }

    conn->in.start = malloc(len + 2);
    if (conn->in.start == NULL) {
        redisReaderFree(fresh);
        return NGX_ERROR;
    }

    conn->in.pos = conn->in.start;
    conn->in.last = ngx_cpymem(conn->in.start, p, have);
    conn->in.end = conn->in.start + len + 2;

    redisReaderFree(reader);
    conn->reader = fresh;

    return NGX_OK;
}


/* makes a reply of a string that was received completely; NULL: the string is
   not terminated by CRLF, or there is no memory */

redisReply *
ngx_redis_bulk_reply(ngx_redis_conn_t *conn)
{
    u_char      *end;
    redisReply  *reply;

    end = conn->in.end - 2;

    if (end[0] != CR || end[1] != LF) {
        return NULL;
    }

    reply = malloc(sizeof(redisReply));
    if (reply == NULL) {
        return NULL;
    }

    ngx_memzero(reply, sizeof(redisReply));

    *end = '\0';

    reply->type = REDIS_REPLY_STRING;
    reply->str = (char *) conn->in.start;
    reply->len = end - conn->in.start;

    ngx_memzero(&conn->in, sizeof(ngx_buf_t));

    return reply;
}
