
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The bytes of a record: its response, and the details beside its claim.
 * Both are chains of chunks; the first bytes of a response are in the record
 * itself.
 *
 * A chain is valid once it is written and its record is completed, and is
 * freed after the last pointer to it is gone.  A worker that is killed in
 * between leaves bytes that no record refers to, and a repair makes them
 * free.
 *
 * Called by the zone and by its users, with the zone locked.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_zone.h"


/* the header of details, in the first of their chunks */
#define NGX_HTTP_IDEM_DETAILS_HEAD                                            \
    (offsetof(ngx_http_idem_details_t, data) - NGX_HTTP_IDEM_CHUNK_HEAD)


static ngx_http_idem_details_t *ngx_http_idem_details_write(
    ngx_http_idem_records_t *z, ngx_str_t *details, size_t size);
static void ngx_http_idem_chunks_free(ngx_http_idem_records_t *z,
    ngx_http_idem_chunk_t *chunk, size_t size, size_t *bytes);
static ngx_int_t ngx_http_idem_fill_start(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_copy_t *copy, ngx_chain_t *in,
    size_t size);
static void ngx_http_idem_copy_in(ngx_http_idem_copy_t *copy, u_char *p,
    size_t n);


/*
 * The record owns the chunks from the first one on: an operation that takes
 * over, removes or repairs the record frees them.  The writer notices that by
 * comparing copy->first with node->chunks.
 */

ngx_int_t
ngx_http_idem_zone_write(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_copy_t *copy, ngx_chain_t *in,
    size_t size, size_t piece)
{
    size_t                   n, done;
    ngx_http_idem_copy_t     whole;
    ngx_http_idem_chunk_t   *chunk;

    if (copy == NULL) {
        ngx_memzero(&whole, sizeof(ngx_http_idem_copy_t));

        copy = &whole;
        piece = NGX_MAX_SIZE_T_VALUE;
    }

    if ((copy->first == NULL || copy->first != item->chunks)
        && ngx_http_idem_fill_start(z, item, copy, in, size) != NGX_OK)
    {
        return NGX_DECLINED;
    }

    /* the record must not be evicted to make room for itself */

    if (item->completed.next) {
        ngx_queue_remove(&item->completed);
        item->completed.next = NULL;
    }

    for (done = 0; copy->left; done += n) {

        if (done >= piece) {
            ngx_queue_insert_tail(&z->zone->writing, &item->completed);
            return NGX_AGAIN;
        }

        n = ngx_http_idem_chunk_size(copy->left);

        chunk = ngx_http_idem_zone_alloc(z, ngx_http_idem_arena_kind(n));

        if (chunk == NULL) {
            ngx_http_idem_zone_free_response(z, item);
            copy->first = NULL;
            return NGX_DECLINED;
        }

        z->zone->bytes += n;
        z->zone->writing_bytes += n;
        copy->bytes += n;

        n = ngx_min(n - NGX_HTTP_IDEM_CHUNK_HEAD, copy->left);

        chunk->next = NULL;
        ngx_http_idem_copy_in(copy, chunk->data, n);

        if (copy->first) {
            copy->chunk->next = chunk;

        } else {
            copy->first = chunk;
            item->chunks = chunk;
        }

        copy->chunk = chunk;
        copy->left -= n;
    }

    ngx_http_idem_zone_barrier();

    z->zone->writing_bytes -= copy->bytes;

    /* a response that fits into the record frees nothing when evicted */

    if (item->chunks || z->full != NGX_HTTP_IDEM_FULL_EVICT) {
        ngx_http_idem_zone_requeue(z, item);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_fill_start(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_copy_t *copy, ngx_chain_t *in,
    size_t size)
{
    size_t                 n;
    ngx_http_idem_zone_t  *zone;

    zone = z->zone;

    ngx_http_idem_zone_free_pieces(z, item);

    n = ngx_min(size, NGX_HTTP_IDEM_ITEM_ROOM);

    copy->first = NULL;
    copy->in = in;
    copy->len = 0;
    copy->left = size - n;
    copy->bytes = 0;

    /*
     * Evicts nothing for a response that would not fit anyway.  Expired
     * records are purged first.  The free slots of used blocks count as one
     * block.
     */

    while (copy->left
           && copy->left > (zone->arena.nfree + 1) * NGX_HTTP_IDEM_BLOCK_SIZE
                           + zone->bytes - zone->writing_bytes
                           + zone->details_bytes)
    {
        if (!ngx_http_idem_zone_purge_one(z, (ngx_uint_t) -1)
            && !ngx_http_idem_zone_evict_pieces(z))
        {
            return NGX_DECLINED;
        }
    }

    ngx_http_idem_copy_in(copy, item->data, n);

    item->size = (uint32_t) size;

    return NGX_OK;
}


/*
 * A holder renews its lease with each piece.  If the lease expired, its
 * worker was killed or stalls.  A holder that continues later starts the copy
 * again.
 */

ngx_uint_t
ngx_http_idem_zone_evict_pieces(ngx_http_idem_records_t *z)
{
    ngx_queue_t           *q, *head;
    ngx_http_idem_item_t  *item;

    head = &z->zone->writing;

    for (q = ngx_queue_head(head); q != head; q = ngx_queue_next(q)) {
        item = ngx_queue_data(q, ngx_http_idem_item_t, completed);

        if ((ngx_msec_int_t) (item->until - ngx_current_msec) < 0) {
            ngx_http_idem_zone_free_response(z, item);
            return 1;
        }
    }

    return 0;
}


void
ngx_http_idem_zone_free_response(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item)
{
    size_t                  left, bytes;
    ngx_http_idem_chunk_t  *chunks;

    if (item->completed.next) {
        ngx_queue_remove(&item->completed);

        ngx_http_idem_zone_barrier();

        item->completed.next = NULL;
    }

    chunks = item->chunks;
    left = item->size;
    left -= ngx_min(left, NGX_HTTP_IDEM_ITEM_ROOM);

    item->chunks = NULL;
    item->size = 0;

    ngx_http_idem_zone_barrier();

    bytes = z->zone->bytes;

    ngx_http_idem_chunks_free(z, chunks, left, &z->zone->bytes);

    /* the record was never completed */

    if (item->state < NGX_HTTP_IDEM_COMPLETED) {
        z->zone->writing_bytes -= bytes - z->zone->bytes;
    }
}


ngx_int_t
ngx_http_idem_zone_read(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, u_char *p)
{
    ngx_http_idem_copy_t  copy;

    ngx_memzero(&copy, sizeof(ngx_http_idem_copy_t));

    copy.out = p;

    return ngx_http_idem_zone_read_piece(z, item, &copy,
                                         NGX_MAX_SIZE_T_VALUE);
}


/* checks every pointer, whatever may have corrupted it */

ngx_int_t
ngx_http_idem_zone_read_piece(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_copy_t *copy, size_t piece)
{
    size_t                  n, done;
    ngx_http_idem_chunk_t  *chunk;

    if (!ngx_http_idem_zone_copy_valid(item, copy)) {
        copy->first = item->chunks;
        copy->size = item->size;
        copy->expires = item->expires;

        ngx_memcpy(copy->token, item->token, NGX_HTTP_IDEM_TOKEN_LEN);

        n = ngx_min((size_t) item->size, NGX_HTTP_IDEM_ITEM_ROOM);

        copy->out = ngx_cpymem(copy->out, item->data, n);
        copy->left = item->size - n;
        copy->chunk = item->chunks;
    }

    chunk = copy->chunk;

    for (done = 0; copy->left; done += n) {

        if (done >= piece) {
            copy->chunk = chunk;
            return NGX_AGAIN;
        }

        n = ngx_http_idem_chunk_size(copy->left);

        if (!ngx_http_idem_arena_within(&z->zone->arena, chunk, n)) {
            return NGX_ERROR;
        }

        n = ngx_min(n - NGX_HTTP_IDEM_CHUNK_HEAD, copy->left);

        copy->out = ngx_cpymem(copy->out, chunk->data, n);
        copy->left -= n;

        chunk = chunk->next;
    }

    return chunk ? NGX_ERROR : NGX_OK;
}


/*
 * The chunks of a completed record never change, and a token is committed
 * only once: with the same token it is the same response.
 */

ngx_uint_t
ngx_http_idem_zone_copy_valid(ngx_http_idem_item_t *item,
    ngx_http_idem_copy_t *copy)
{
    return item->state == NGX_HTTP_IDEM_COMPLETED
           && copy->first == item->chunks
           && copy->size == item->size
           && copy->expires == item->expires
           && ngx_memcmp(copy->token, item->token, NGX_HTTP_IDEM_TOKEN_LEN)
              == 0;
}


/*
 * Replaces or removes the details beside the claim.  Only older details are
 * evicted to make room; without room the record has no details.
 */

void
ngx_http_idem_zone_details(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_str_t *details)
{
    size_t                    size;
    ngx_http_idem_details_t  *d;

    d = item->details;

    if (d) {
        item->details = NULL;

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

    if (size > z->zone->arena.nfree * NGX_HTTP_IDEM_BLOCK_SIZE
               + z->zone->details_bytes)
    {
        return;
    }

    d = ngx_http_idem_details_write(z, details, size);
    if (d == NULL) {
        return;
    }

    d->item = item;
    d->len = (uint32_t) details->len;

    ngx_http_idem_zone_append(&z->zone->details, &d->queue);

    ngx_http_idem_zone_barrier();

    item->details = d;
}


ngx_uint_t
ngx_http_idem_zone_evict_details(ngx_http_idem_records_t *z)
{
    ngx_queue_t              *q;
    ngx_http_idem_details_t  *d;

    if (ngx_queue_empty(&z->zone->details)) {
        return 0;
    }

    q = ngx_queue_head(&z->zone->details);
    d = ngx_queue_data(q, ngx_http_idem_details_t, queue);

    ngx_http_idem_zone_details(z, d->item, NULL);

    z->zone->details_evicted++;

    return 1;
}


/* copies "max" bytes at most; empty: no details, or no memory */

void
ngx_http_idem_zone_copy_details(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_pool_t *pool, size_t max,
    ngx_str_t *details)
{
    size_t                    left, skip, n;
    u_char                   *p, *last;
    ngx_http_idem_chunk_t    *chunk;
    ngx_http_idem_details_t  *d;

    details->len = 0;

    d = item->details;

    if (d == NULL) {
        return;
    }

    max = ngx_min(max, d->len);

    details->data = ngx_pnalloc(pool, max);

    if (details->data == NULL) {
        return;
    }

    p = details->data;
    last = p + max;
    left = ngx_http_idem_details_size(d->len);
    skip = NGX_HTTP_IDEM_DETAILS_HEAD;

    for (chunk = (ngx_http_idem_chunk_t *) d; p < last; chunk = chunk->next) {
        n = ngx_http_idem_chunk_size(left);

        if (!ngx_http_idem_arena_within(&z->zone->arena, chunk, n)) {
            return;
        }

        n = ngx_min(n - NGX_HTTP_IDEM_CHUNK_HEAD, left);
        left -= n;

        p = ngx_cpymem(p, chunk->data + skip,
                       ngx_min(n - skip, (size_t) (last - p)));
        skip = 0;
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

    /* two chunks are better than a slot of which more than 1/8 is unused */

    if (slot > NGX_HTTP_IDEM_SLOT_MIN && slot - size > slot / 8) {
        slot /= 2;
    }

    return slot;
}


/* writes chunks of "size" bytes, but for the header; NULL: there is no room */

static ngx_http_idem_details_t *
ngx_http_idem_details_write(ngx_http_idem_records_t *z, ngx_str_t *details,
    size_t size)
{
    size_t                  left, skip, n;
    u_char                 *p, *end;
    ngx_http_idem_chunk_t  *chunk, *first, **last;

    first = NULL;
    last = &first;
    p = details->data;
    end = p + details->len;
    skip = NGX_HTTP_IDEM_DETAILS_HEAD;

    for (left = size; left; left -= n) {
        n = ngx_http_idem_chunk_size(left);

        do {
            chunk = ngx_http_idem_arena_alloc(&z->zone->arena,
                                              ngx_http_idem_arena_kind(n));

        } while (chunk == NULL && ngx_http_idem_zone_evict_details(z));

        if (chunk == NULL) {
            ngx_http_idem_chunks_free(z, first, size,
                                      &z->zone->details_bytes);
            return NULL;
        }

        chunk->next = NULL;
        *last = chunk;
        last = &chunk->next;

        z->zone->details_bytes += n;

        n = ngx_min(n - NGX_HTTP_IDEM_CHUNK_HEAD, left);

        ngx_memcpy(chunk->data + skip, p,
                   ngx_min(n - skip, (size_t) (end - p)));
        p += ngx_min(n - skip, (size_t) (end - p));
        skip = 0;
    }

    return (ngx_http_idem_details_t *) first;
}


/* "size" is the size they were allocated for; some may be missing */

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

        ngx_http_idem_arena_free(&z->zone->arena, chunk);
    }
}


/* copies the next n bytes of the source */

static void
ngx_http_idem_copy_in(ngx_http_idem_copy_t *copy, u_char *p, size_t n)
{
    size_t  len;

    while (n) {

        while (copy->len == 0) {
            copy->pos = copy->in->buf->pos;
            copy->len = copy->in->buf->last - copy->in->buf->pos;
            copy->in = copy->in->next;
        }

        len = ngx_min(n, copy->len);

        p = ngx_cpymem(p, copy->pos, len);

        copy->pos += len;
        copy->len -= len;
        n -= len;
    }
}
