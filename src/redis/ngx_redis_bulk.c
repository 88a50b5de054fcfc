
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Large strings: sent from where they are, and received into the memory in
 * which they stay.  A copy of either would cost a large part of what the
 * kernel takes to carry it.
 *
 * Out: a command is written into the buffer of its connection, all but the
 * bytes of the string.  These go out in between, from the user's own chain,
 * which is only read: several calls may send the same one.  When the user is
 * gone before they are out (the call was cancelled, or has its reply already),
 * the rest is copied: half a command would be the end of the connection.  Of a
 * long rest it is, since that would hold up all that is behind it.
 *
 * In: hiredis reads a reply up to the length of a string that is not whole yet.
 * If that is large, the rest of it does not pass through hiredis.
 *
 * Called by the connection, and by the user when it encodes a call.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis.h"


/* pieces of memory in one write */
#define NGX_REDIS_PIECES    32

/* what is copied at most when its user is gone */
#define NGX_REDIS_COPY_MAX  (1024 * 1024)

#if (HIREDIS_MAJOR == 0)
#define ngx_redis_reading(reader)  (reader)->rstack[0].type
#else
#define ngx_redis_reading(reader)  (reader)->task[0]->type
#endif


/* what is to be sent of the string of a call */

struct ngx_redis_bulk_s {
    ngx_queue_t        queue;                /* conn->bulks                 */
    ngx_redis_conn_t  *conn;                 /* NULL: not encoded yet       */
    ngx_redis_call_t  *call;                 /* NULL: it is gone            */
    size_t             before;               /* bytes of conn->out between it
                                                and the one before          */
    ngx_chain_t       *in;
    size_t             offset;               /* in the first of these       */
    size_t             left;
    ngx_chain_t        link;                 /* of the copy                 */
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
        /* there was no memory for the rest of the command */
        return NGX_OK;
    }

    bulk = ngx_alloc(sizeof(ngx_redis_bulk_t), ngx_cycle->log);
    if (bulk == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(bulk, sizeof(ngx_redis_bulk_t));

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


/* its user is about to be gone, and its string with it */

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

        /* not now: whoever leaves is in the middle of something */

        conn->cut = 1;
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


/* as c->send(): what there is to send, of "max" bytes */

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


/* the buffer of the connection, and the strings that stand in it */

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
                /* it is shorter than told */
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
        /* nothing may come behind a gap */
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


/* the connection ends; its calls are sent again from the beginning */

void
ngx_redis_bulk_close(ngx_redis_conn_t *conn)
{
    while (!ngx_queue_empty(&conn->bulks)) {
        ngx_redis_bulk_free(ngx_queue_data(ngx_queue_head(&conn->bulks),
                                           ngx_redis_bulk_t, queue));
    }

    conn->cut = 0;

    if (conn->in.start) {
        free(conn->in.start);
        ngx_memzero(&conn->in, sizeof(ngx_buf_t));
    }
}


/*
 * hiredis has no whole reply.  NGX_OK: it reads on, or we do.  Memory of
 * malloc(), since it becomes that of a reply
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


/* of a string whose last byte is there; NULL: it is none, or there is no
   memory */

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
