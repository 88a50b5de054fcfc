
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The bytes of a record: its response, and what stands beside its claim.  Both
 * are chains of chunks; a response begins in the record itself.
 *
 * A chain is filled before anything refers to it, and freed when nothing does:
 * a worker that is killed in between leaves bytes that nobody finds, and a
 * repair takes them for free.
 *
 * Called by the zone and by those that use it, with the zone locked.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_zone.h"


/* where the next bytes come from */

typedef struct {
    ngx_chain_t                    *in;
    u_char                         *pos;
    size_t                          len;
} ngx_http_idem_source_t;


typedef void *(*ngx_http_idem_alloc_pt)(
    ngx_http_idem_records_t *z, ngx_uint_t kind);


static ngx_http_idem_chunk_t *ngx_http_idem_chunks_alloc(
    ngx_http_idem_records_t *z, size_t size, size_t *bytes,
    ngx_http_idem_alloc_pt alloc);
static void ngx_http_idem_chunks_free(ngx_http_idem_records_t *z,
    ngx_http_idem_chunk_t *chunk, size_t size, size_t *bytes);
static void *ngx_http_idem_details_alloc(
    ngx_http_idem_records_t *z, ngx_uint_t kind);
static void ngx_http_idem_source_read(
    ngx_http_idem_source_t *source, u_char *p, size_t n);


ngx_int_t
ngx_http_idem_zone_put(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, ngx_chain_t *in, size_t size)
{
    size_t                   left, n;
    ngx_http_idem_zone_t    *zone;
    ngx_http_idem_chunk_t   *chunk, *chunks;
    ngx_http_idem_source_t   source;

    zone = z->zone;
    chunks = NULL;

    n = ngx_min(size, NGX_HTTP_IDEM_NODE_ROOM);
    left = size - n;

    if (left) {

        /*
         * Nothing is evicted for what would not fit anyway.  What has expired
         * makes room first; free slots in blocks that are in use count as a
         * block.
         */

        while (left > (zone->room.nfree + 1) * NGX_HTTP_IDEM_BLOCK_SIZE
                      + zone->bytes + zone->details_bytes)
        {
            if (!ngx_http_idem_zone_purge_one(z, (ngx_uint_t) -1)) {
                return NGX_DECLINED;
            }
        }

        chunks = ngx_http_idem_chunks_alloc(z, left, &zone->bytes,
                                            ngx_http_idem_zone_alloc);
        if (chunks == NULL) {
            return NGX_DECLINED;
        }
    }

    source.in = in;
    source.len = 0;

    ngx_http_idem_source_read(&source, node->data, n);

    for (chunk = chunks; left; chunk = chunk->next) {
        n = ngx_http_idem_chunk_size(left)
            - NGX_HTTP_IDEM_CHUNK_HEAD;
        n = ngx_min(n, left);

        ngx_http_idem_source_read(&source, chunk->data, n);
        left -= n;
    }

    ngx_http_idem_zone_barrier();

    node->size = (uint32_t) size;
    node->chunks = chunks;

    /* what fits into the node itself leaves no room by going without it */

    if (chunks || z->full != NGX_HTTP_IDEM_FULL_EVICT) {
        ngx_http_idem_zone_requeue(z, node);
    }

    return NGX_OK;
}


void
ngx_http_idem_zone_drop(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node)
{
    size_t                  left;
    ngx_http_idem_chunk_t  *chunks;

    if (node->completed.next) {
        ngx_queue_remove(&node->completed);

        ngx_http_idem_zone_barrier();

        node->completed.next = NULL;
    }

    chunks = node->chunks;
    left = node->size;
    left -= ngx_min(left, NGX_HTTP_IDEM_NODE_ROOM);

    node->chunks = NULL;
    node->size = 0;

    ngx_http_idem_zone_barrier();

    ngx_http_idem_chunks_free(z, chunks, left, &z->zone->bytes);
}


/* what can't be is not copied, however it came about */

ngx_int_t
ngx_http_idem_zone_copy(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, u_char *p)
{
    size_t                  left, n;
    ngx_http_idem_chunk_t  *chunk;

    left = node->size;

    n = ngx_min(left, NGX_HTTP_IDEM_NODE_ROOM);
    p = ngx_cpymem(p, node->data, n);
    left -= n;

    for (chunk = node->chunks; left; chunk = chunk->next) {
        n = ngx_http_idem_chunk_size(left);

        if (!ngx_http_idem_room_within(&z->zone->room, chunk, n)) {
            return NGX_ERROR;
        }

        n = ngx_min(n - NGX_HTTP_IDEM_CHUNK_HEAD, left);

        p = ngx_cpymem(p, chunk->data, n);
        left -= n;
    }

    return chunk ? NGX_ERROR : NGX_OK;
}


/*
 * Sets or takes away what stands beside the claim.  Only older details give
 * way for it, and without room there is none.
 */

void
ngx_http_idem_zone_details(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, ngx_str_t *details)
{
    size_t                    size, left, n;
    u_char                   *p;
    ngx_queue_t              *head;
    ngx_http_idem_chunk_t    *chunk;
    ngx_http_idem_details_t  *d;

    d = node->details;

    if (d) {
        node->details = NULL;

        ngx_http_idem_zone_barrier();

        ngx_queue_remove(&d->queue);

        ngx_http_idem_chunks_free(z, (ngx_http_idem_chunk_t *) d,
                                  ngx_http_idem_details_size(d->len),
                                  &z->zone->details_bytes);
    }

    if (details == NULL || details->len == 0) {
        return;
    }

    size = ngx_http_idem_details_size(details->len);

    if (size > z->zone->room.nfree * NGX_HTTP_IDEM_BLOCK_SIZE
               + z->zone->details_bytes)
    {
        return;
    }

    chunk = ngx_http_idem_chunks_alloc(z, size, &z->zone->details_bytes,
                                       ngx_http_idem_details_alloc);
    if (chunk == NULL) {
        return;
    }

    d = (ngx_http_idem_details_t *) chunk;

    d->node = node;
    d->len = (uint32_t) details->len;

    p = details->data;
    left = details->len;

    n = ngx_http_idem_chunk_size(size)
        - offsetof(ngx_http_idem_details_t, data);
    n = ngx_min(n, left);

    ngx_memcpy(d->data, p, n);

    for (chunk = chunk->next; chunk; chunk = chunk->next) {
        p += n;
        left -= n;

        n = ngx_http_idem_chunk_size(left)
            - NGX_HTTP_IDEM_CHUNK_HEAD;
        n = ngx_min(n, left);

        ngx_memcpy(chunk->data, p, n);
    }

    /* from the head to the tail it is whole at any time */

    head = &z->zone->details;

    d->queue.prev = head->prev;
    d->queue.next = head;

    ngx_http_idem_zone_barrier();

    head->prev->next = &d->queue;
    head->prev = &d->queue;

    ngx_http_idem_zone_barrier();

    node->details = d;
}


ngx_uint_t
ngx_http_idem_zone_drop_details(ngx_http_idem_records_t *z)
{
    ngx_queue_t              *q;
    ngx_http_idem_details_t  *d;

    if (ngx_queue_empty(&z->zone->details)) {
        return 0;
    }

    q = ngx_queue_head(&z->zone->details);
    d = ngx_queue_data(q, ngx_http_idem_details_t, queue);

    ngx_http_idem_zone_details(z, d->node, NULL);

    z->zone->details_dropped++;

    return 1;
}


static void *
ngx_http_idem_details_alloc(ngx_http_idem_records_t *z, ngx_uint_t kind)
{
    void  *p;

    do {
        p = ngx_http_idem_room_alloc(&z->zone->room, kind);

    } while (p == NULL && ngx_http_idem_zone_drop_details(z));

    return p;
}


/* "max" bytes at most; empty if there are none, or no memory */

void
ngx_http_idem_zone_copy_details(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, ngx_pool_t *pool, size_t max,
    ngx_str_t *details)
{
    size_t                    left, n;
    u_char                   *p, *last;
    ngx_http_idem_chunk_t    *chunk;
    ngx_http_idem_details_t  *d;

    details->len = 0;

    d = node->details;

    if (d == NULL) {
        return;
    }

    max = ngx_min(max, d->len);

    details->data = ngx_pnalloc(pool, max);

    if (details->data == NULL) {
        return;
    }

    last = details->data + max;
    left = d->len;

    n = ngx_http_idem_chunk_size(ngx_http_idem_details_size(left))
        - offsetof(ngx_http_idem_details_t, data);
    n = ngx_min(n, left);

    p = ngx_cpymem(details->data, d->data, ngx_min(n, max));
    left -= n;

    for (chunk = d->next; p < last; chunk = chunk->next) {
        n = ngx_http_idem_chunk_size(left);

        if (!ngx_http_idem_room_within(&z->zone->room, chunk, n)) {
            return;
        }

        n = ngx_min(n - NGX_HTTP_IDEM_CHUNK_HEAD, left);

        p = ngx_cpymem(p, chunk->data, ngx_min(n, (size_t) (last - p)));
        left -= n;
    }

    details->len = max;
}


size_t
ngx_http_idem_chunk_size(size_t size)
{
    size_t  slot;

    size += NGX_HTTP_IDEM_CHUNK_HEAD;

    if (size >= NGX_HTTP_IDEM_BLOCK_SIZE) {
        return NGX_HTTP_IDEM_BLOCK_SIZE;
    }

    for (slot = NGX_HTTP_IDEM_SLOT_MIN; slot < size; slot *= 2) {
        /* void */
    }

    /* rather two chunks than a slot with more than an eighth of it empty */

    if (slot > NGX_HTTP_IDEM_SLOT_MIN && slot - size > slot / 8) {
        slot /= 2;
    }

    return slot;
}


/* chunks for so many bytes; NULL if there is no room */

static ngx_http_idem_chunk_t *
ngx_http_idem_chunks_alloc(ngx_http_idem_records_t *z,
    size_t size, size_t *bytes, ngx_http_idem_alloc_pt alloc)
{
    size_t                  left, n;
    ngx_http_idem_chunk_t  *chunk, *first, **last;

    first = NULL;
    last = &first;

    for (left = size; left; /* void */ ) {
        n = ngx_http_idem_chunk_size(left);

        chunk = alloc(z, ngx_http_idem_room_kind(n));

        if (chunk == NULL) {
            ngx_http_idem_chunks_free(z, first, size, bytes);
            return NULL;
        }

        chunk->next = NULL;
        *last = chunk;
        last = &chunk->next;

        *bytes += n;

        n -= NGX_HTTP_IDEM_CHUNK_HEAD;
        left -= ngx_min(n, left);
    }

    return first;
}


/* "size" is what they were made for; they may be fewer */

static void
ngx_http_idem_chunks_free(ngx_http_idem_records_t *z,
    ngx_http_idem_chunk_t *chunk, size_t size, size_t *bytes)
{
    size_t                  n;
    ngx_http_idem_chunk_t  *next;

    for ( /* void */ ; chunk; chunk = next) {
        next = chunk->next;

        n = ngx_http_idem_chunk_size(size);
        *bytes -= n;

        n -= NGX_HTTP_IDEM_CHUNK_HEAD;
        size -= ngx_min(n, size);

        ngx_http_idem_room_free(&z->zone->room, chunk);
    }
}


static void
ngx_http_idem_source_read(ngx_http_idem_source_t *source, u_char *p, size_t n)
{
    size_t  len;

    while (n) {

        while (source->len == 0) {
            source->pos = source->in->buf->pos;
            source->len = source->in->buf->last - source->in->buf->pos;
            source->in = source->in->next;
        }

        len = ngx_min(n, source->len);

        p = ngx_cpymem(p, source->pos, len);

        source->pos += len;
        source->len -= len;
        n -= len;
    }
}
