
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Repairs a zone whose lock was held by a worker that was killed.  The next
 * worker that takes the lock rebuilds everything from the buckets, whose
 * records are consistent at any instruction (see the header).
 *
 * A record that was being changed gets its former members back.  Bytes that
 * no record refers to are free.  A record that is not completed has no
 * response; a worker that was writing one starts again.  Impossible links,
 * which should never occur, are dropped: those that point outside the zone,
 * or to memory of another record.
 *
 * A repair can be killed, too, at any instruction: the next one starts again.
 *
 * Called when the zone is locked.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_zone.h"


/* counters of the repaired zone */

typedef struct {
    ngx_uint_t                      records;
    ngx_uint_t                      states[NGX_HTTP_IDEM_UNUSABLE + 1];
    size_t                          bytes;
    size_t                          details_bytes;
    ngx_uint_t                      wrong;       /* impossible links or
                                                    states */
} ngx_http_idem_census_t;


/* whether q belongs to a record or details that should be in the queue */

typedef ngx_uint_t (*ngx_http_idem_links_pt)(
    ngx_http_idem_records_t *z, ngx_queue_t *q);


/* iterates in memory order, much faster than from bucket to bucket */
#define ngx_http_idem_repair_next(z, item)                                    \
    ngx_http_idem_arena_next(&(z)->zone->arena, item,                         \
                             NGX_HTTP_IDEM_KIND_ITEM)


static void ngx_http_idem_repair_items(
    ngx_http_idem_records_t *z, ngx_http_idem_census_t *census);
static ngx_uint_t ngx_http_idem_repair_is_duplicate(
    ngx_http_idem_item_t *first, ngx_http_idem_item_t *item);
static void ngx_http_idem_repair_bytes(
    ngx_http_idem_records_t *z, ngx_http_idem_census_t *census);
static void ngx_http_idem_repair_response(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_census_t *census);
static void ngx_http_idem_repair_details(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_census_t *census);
static ngx_int_t ngx_http_idem_repair_chunks(ngx_http_idem_records_t *z,
    ngx_http_idem_chunk_t *chunk, size_t size, size_t *bytes);
static void ngx_http_idem_repair_order(ngx_http_idem_records_t *z,
    ngx_queue_t *head, ngx_http_idem_links_pt links);
static ngx_uint_t ngx_http_idem_repair_is_completed(
    ngx_http_idem_records_t *z, ngx_queue_t *q);
static ngx_uint_t ngx_http_idem_repair_is_details(
    ngx_http_idem_records_t *z, ngx_queue_t *q);
static void ngx_http_idem_repair_queues(ngx_http_idem_records_t *z);


void
ngx_http_idem_zone_repair(ngx_http_idem_records_t *z)
{
    ngx_uint_t               level;
    ngx_http_idem_zone_t    *zone;
    ngx_http_idem_item_t    *item;
    ngx_http_idem_census_t   census;

    zone = z->zone;

    ngx_memzero(&census, sizeof(ngx_http_idem_census_t));

    item = zone->undo.item;

    if (item) {

        /* the record is linked, or was when the change began */

        ngx_memcpy(&item->expires, zone->undo.head, NGX_HTTP_IDEM_UNDO_HEAD);
        ngx_memcpy(item->token, zone->undo.tail, NGX_HTTP_IDEM_UNDO_TAIL);

        ngx_http_idem_zone_changed(z);
    }

    ngx_http_idem_arena_reset(&zone->arena);

    /* records first, so that no chunk is mistaken for one */

    ngx_http_idem_repair_items(z, &census);
    ngx_http_idem_repair_bytes(z, &census);

    ngx_http_idem_repair_order(z, &zone->completed,
                               ngx_http_idem_repair_is_completed);
    ngx_http_idem_repair_order(z, &zone->details,
                               ngx_http_idem_repair_is_details);
    ngx_http_idem_repair_queues(z);

    ngx_queue_init(&zone->writing);

    ngx_http_idem_arena_settle(&zone->arena);

    /* assigned at the end: other code reads the counters without the lock */

    zone->records = census.records;

    ngx_memcpy(zone->states, census.states, sizeof(zone->states));

    zone->bytes = census.bytes;
    zone->writing_bytes = 0;
    zone->details_bytes = census.details_bytes;
    zone->repaired++;

    level = census.wrong ? NGX_LOG_ALERT : NGX_LOG_WARN;

    ngx_log_error(level, ngx_cycle->log, 0,
                  "idempotency: a worker died while it changed zone \"%V\", "
                  "the zone has been repaired: %ui records, %ui of them in "
                  "progress, %ui could not be read",
                  &z->name, zone->records,
                  zone->states[NGX_HTTP_IDEM_IN_PROGRESS],
                  census.wrong);
}


static void
ngx_http_idem_repair_items(ngx_http_idem_records_t *z,
    ngx_http_idem_census_t *census)
{
    ngx_uint_t             i;
    ngx_http_idem_item_t  *item, **p;

    for (i = 0; i <= z->zone->mask; i++) {

        p = &z->zone->buckets[i];

        while (*p) {
            item = *p;

            if (ngx_http_idem_arena_within(&z->zone->arena, item,
                                           NGX_HTTP_IDEM_ITEM_SIZE)
                && ngx_http_idem_repair_is_duplicate(z->zone->buckets[i],
                                                     item))
            {
                /* a newer record with this id was about to replace it */
                *p = item->next;
                continue;
            }

            /* a pointer to the outside of the zone can't be claimed */

            if (ngx_http_idem_arena_claim(&z->zone->arena, item,
                                          NGX_HTTP_IDEM_KIND_ITEM)
                != NGX_OK)
            {
                *p = NULL;
                census->wrong++;
                break;
            }

            p = &item->next;
        }
    }
}


/* whether a record before it in the bucket has the same id */

static ngx_uint_t
ngx_http_idem_repair_is_duplicate(ngx_http_idem_item_t *first,
    ngx_http_idem_item_t *item)
{
    for ( /* void */ ; first != item; first = first->next) {

        if (ngx_memcmp(first->id, item->id, NGX_HTTP_IDEM_ID_LEN) == 0) {
            return 1;
        }
    }

    return 0;
}


/*
 * claims the bytes of all records, and marks queue links as not visited (prev
 * is NULL) for ..._repair_order()
 */

static void
ngx_http_idem_repair_bytes(ngx_http_idem_records_t *z,
    ngx_http_idem_census_t *census)
{
    ngx_http_idem_item_t  *item;

    for (item = ngx_http_idem_repair_next(z, NULL);
         item;
         item = ngx_http_idem_repair_next(z, item))
    {
        ngx_http_idem_repair_response(z, item, census);
        ngx_http_idem_repair_details(z, item, census);

        item->completed.prev = NULL;

        if (item->details) {
            item->details->queue.prev = NULL;
        }

        census->records++;
        census->states[item->state]++;
    }
}


static void
ngx_http_idem_repair_response(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_census_t *census)
{
    size_t  left;

    left = item->size;
    left -= ngx_min(left, NGX_HTTP_IDEM_ITEM_ROOM);

    /* the record was about to become unusable */

    if (item->state != NGX_HTTP_IDEM_UNUSABLE) {
        item->reason = NGX_HTTP_IDEM_REASON_NONE;
    }

    switch (item->state) {

    case NGX_HTTP_IDEM_COMPLETED:

        if (ngx_http_idem_repair_chunks(z, item->chunks, left,
                                        &census->bytes)
            == NGX_OK)
        {
            return;
        }

        census->wrong++;

        item->reason = NGX_HTTP_IDEM_REASON_EVICTED;
        break;

    case NGX_HTTP_IDEM_IN_PROGRESS:
    case NGX_HTTP_IDEM_UNUSABLE:
        item->chunks = NULL;
        item->size = 0;
        return;

    default:
        census->wrong++;

        item->reason = NGX_HTTP_IDEM_REASON_UNKNOWN;
        break;
    }

    ngx_http_idem_zone_barrier();

    item->state = NGX_HTTP_IDEM_UNUSABLE;

    ngx_http_idem_zone_barrier();

    item->chunks = NULL;
    item->size = 0;
}


static void
ngx_http_idem_repair_details(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_census_t *census)
{
    ngx_http_idem_details_t  *d;

    d = item->details;

    if (d == NULL) {
        return;
    }

    if (ngx_http_idem_arena_within(&z->zone->arena, d,
                                       sizeof(ngx_http_idem_details_t))
        && d->item == item
        && ngx_http_idem_repair_chunks(z, (ngx_http_idem_chunk_t *) d,
                                   ngx_http_idem_details_size(d->len),
                                   &census->details_bytes)
           == NGX_OK)
    {
        return;
    }

    census->wrong++;
    item->details = NULL;
}


static ngx_int_t
ngx_http_idem_repair_chunks(ngx_http_idem_records_t *z,
    ngx_http_idem_chunk_t *chunk, size_t size, size_t *bytes)
{
    size_t  n, sum;

    sum = 0;

    for ( /* void */ ; size; chunk = chunk->next) {
        n = ngx_http_idem_chunk_size(size);

        if (ngx_http_idem_arena_claim(&z->zone->arena, chunk,
                                      ngx_http_idem_arena_kind(n))
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        sum += n;

        n -= NGX_HTTP_IDEM_CHUNK_HEAD;
        size -= ngx_min(n, size);
    }

    if (chunk) {
        return NGX_ERROR;
    }

    *bytes += sum;

    return NGX_OK;
}


/*
 * Keeps the order of a queue.  From the head on, the queue is consistent, but
 * it may lead through removed elements whose memory is still intact.
 */

static void
ngx_http_idem_repair_order(ngx_http_idem_records_t *z,
    ngx_queue_t *head, ngx_http_idem_links_pt links)
{
    size_t        most;
    ngx_queue_t  *q, *last, *next;

    last = head;
    most = (z->zone->arena.n << NGX_HTTP_IDEM_BLOCK_SHIFT)
           / sizeof(ngx_queue_t);

    for (q = head->next; q != head && most--; q = next) {

        if (!ngx_http_idem_arena_within(&z->zone->arena, q,
                                        sizeof(ngx_queue_t)))
        {
            break;
        }

        next = q->next;

        if (links(z, q) && q->prev == NULL) {
            last->next = q;
            q->prev = last;
            last = q;
        }
    }

    last->next = head;
    head->prev = last;
}


static ngx_uint_t
ngx_http_idem_repair_is_completed(ngx_http_idem_records_t *z, ngx_queue_t *q)
{
    ngx_http_idem_item_t  *item;

    item = ngx_queue_data(q, ngx_http_idem_item_t, completed);

    return ngx_http_idem_arena_used(&z->zone->arena, item,
                                    NGX_HTTP_IDEM_KIND_ITEM)
           && ngx_http_idem_zone_queued(z, item);
}


static ngx_uint_t
ngx_http_idem_repair_is_details(ngx_http_idem_records_t *z, ngx_queue_t *q)
{
    ngx_http_idem_details_t  *d;

    d = ngx_queue_data(q, ngx_http_idem_details_t, queue);

    return ngx_http_idem_arena_within(&z->zone->arena, d,
                                        sizeof(ngx_http_idem_details_t))
           && ngx_http_idem_arena_used(&z->zone->arena, d->item,
                                       NGX_HTTP_IDEM_KIND_ITEM)
           && d->item->details == d;
}


/* rebuilds the wheel, and queues elements that were missing in their queue */

static void
ngx_http_idem_repair_queues(ngx_http_idem_records_t *z)
{
    ngx_http_idem_item_t  *item;

    ngx_http_idem_expiry_init(&z->zone->expiry);

    for (item = ngx_http_idem_repair_next(z, NULL);
         item;
         item = ngx_http_idem_repair_next(z, item))
    {
        ngx_http_idem_expiry_add(&z->zone->expiry, item);

        if (!ngx_http_idem_zone_queued(z, item)) {
            item->completed.next = NULL;

        } else if (item->completed.prev == NULL) {
            ngx_http_idem_zone_append(&z->zone->completed, &item->completed);
        }

        if (item->details && item->details->queue.prev == NULL) {
            ngx_http_idem_zone_append(&z->zone->details,
                                      &item->details->queue);
        }
    }
}
