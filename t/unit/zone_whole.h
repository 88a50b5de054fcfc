
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Whether the zone is whole: each record, queue, counter and byte of room, by
 * code of its own, and what an operation may have made of the records.
 */


#ifndef _ZONE_WHOLE_H_INCLUDED_
#define _ZONE_WHOLE_H_INCLUDED_


#include "zone_world.h"


/* what is wrong, and 0 */

static ngx_uint_t
wrong(const char *fmt, ...)
{
    va_list  args;

    va_start(args, fmt);
    vsnprintf(why, sizeof(why), fmt, args);
    va_end(args);

    return 0;
}


/* the number of a record, KEYS if it has none */

static ngx_uint_t
key_of(ngx_http_idem_item_t *item)
{
    u_char  id[NGX_HTTP_IDEM_ID_LEN];

    make_id(id, item->id[2]);

    return ngx_memcmp(id, item->id, NGX_HTTP_IDEM_ID_LEN) == 0
           ? item->id[2] : KEYS;
}


static ngx_uint_t
same(const void *p, ngx_uint_t c, size_t len)
{
    size_t         i;
    const u_char  *b = p;

    for (i = 0; i < len; i++) {
        if (b[i] != (u_char) c) {
            return 0;
        }
    }

    return 1;
}


static ngx_uint_t in_queue(ngx_queue_t *head, ngx_queue_t *x);


/* a record as others see it; 0 if it is not whole */

static ngx_uint_t
look(ngx_http_idem_item_t *item, image_t *image)
{
    size_t        i;
    ngx_str_t     details;

    static u_char  response[SIZE];

    image->there = 1;
    image->state = item->state;
    image->reason = item->reason;
    image->hold = item->hold;
    image->again = item->again;
    image->token = item->token[0];
    image->claim = item->claim.fingerprint[0];
    image->until = item->until;
    image->expires = item->expires;
    image->u = item->u.waiting;
    image->size = item->size;
    image->details = 0;

    if (!same(item->token, image->token, NGX_HTTP_IDEM_TOKEN_LEN)
        || !same(item->claim.fingerprint, image->claim,
                 NGX_HTTP_IDEM_FINGERPRINT_LEN)
        || !same(item->claim.identity, image->claim,
                 NGX_HTTP_IDEM_IDENTITY_LEN)
        || !same(&item->claim.time, image->claim, sizeof(uint64_t)))
    {
        return wrong("a claim of two");
    }

    if (item->state == NGX_HTTP_IDEM_IN_PROGRESS && item->chunks) {

        /* pieces of a response: nobody sees them */

        if (in_queue(&m.z.zone->writing, &item->completed) != 1) {
            return wrong("pieces that are in no queue");
        }

        image->size = 0;

    } else if (item->state != NGX_HTTP_IDEM_COMPLETED && item->chunks) {
        return wrong("chunks of one that is not completed");
    }

    if (item->state == NGX_HTTP_IDEM_COMPLETED) {

        if (item->size > SIZE
            || ngx_http_idem_zone_read(&m.z, item, response) != NGX_OK)
        {
            return wrong("a response that can't be read");
        }

        for (i = 0; i < item->size; i++) {
            if (response[i] != pattern(image->token, i)) {
                return wrong("byte %zu of a response is not its own", i);
            }
        }
    }

    if (item->details) {
        ngx_http_idem_zone_copy_details(&m.z, item, NULL,
                                        NGX_MAX_SIZE_T_VALUE, &details);

        image->details = details.len;

        if (details.len == 0) {
            return wrong("details that can't be read");
        }

        for (i = 0; i < details.len; i++) {
            if (details.data[i] != pattern(image->claim + 1, i)) {
                return wrong("details are not those of the claim");
            }
        }
    }

    return 1;
}


/* each slot that a record refers to, and how large it is */

static uint16_t  slots[SIZE / 32];


static ngx_uint_t
take(void *p, size_t size, ngx_uint_t kind)
{
    size_t                  i, offset;
    ngx_http_idem_arena_t  *arena = &m.z.zone->arena;

    offset = (u_char *) p - arena->base;

    if (offset >= arena->fresh * 4096 || offset % size) {
        return wrong("a slot beyond, or beside, all slots");
    }

    if (arena->blocks[offset / 4096].kind != kind) {
        return wrong("a slot of %zu in a block of kind %u", size,
                     arena->blocks[offset / 4096].kind);
    }

    for (i = 0; i < size / 32; i++) {
        if (slots[offset / 32 + i]) {
            return wrong("a slot that two have");
        }

        slots[offset / 32 + i] = i ? 1 : 2;
    }

    return 1;
}


static ngx_uint_t
take_chunks(ngx_http_idem_chunk_t *chunk, size_t left, size_t *bytes)
{
    size_t  n;

    for ( /* void */ ; left; chunk = chunk->next) {
        n = ngx_http_idem_chunk_size(left);

        if (chunk == NULL) {
            return wrong("a chunk is missing");
        }

        if (!take(chunk, n, __builtin_ctz((unsigned) n) - 5)) {
            return 0;
        }

        *bytes += n;
        n -= offsetof(ngx_http_idem_chunk_t, data);
        left -= ngx_min(n, left);
    }

    return chunk ? wrong("a chunk too many") : 1;
}


/* the first of them; 0: they can't be */

static size_t
take_some(ngx_http_idem_chunk_t *chunk, size_t left)
{
    size_t  n, bytes;

    bytes = 0;

    for ( /* void */ ; chunk; chunk = chunk->next) {
        n = ngx_http_idem_chunk_size(left);

        if (left == 0 || !take(chunk, n, __builtin_ctz((unsigned) n) - 5)) {
            return wrong("pieces of a response that are none");
        }

        bytes += n;
        n -= offsetof(ngx_http_idem_chunk_t, data);
        left -= ngx_min(n, left);
    }

    return bytes;
}


/* the allocator knows of those slots, and of no others */

static ngx_uint_t
whole_arena(void)
{
    ngx_uint_t              i, k, n, size, used, free_slots, listed,
                                   vacant;
    ngx_http_idem_arena_t   *arena = &m.z.zone->arena;
    ngx_http_idem_block_t  *b;
    static u_char           list[SIZE / 4096];

    static const ngx_uint_t  sizes[] = {
        32, 64, 128, 256, 512, 1024, 2048, 4096, 256
    };

    ngx_memzero(list, sizeof(list));

    for (k = 0; k < NGX_HTTP_IDEM_KINDS; k++) {
        n = 0;

        for (i = arena->partial[k]; i; i = arena->blocks[i - 1].next) {
            if (i > arena->fresh || list[i - 1]
                || arena->blocks[i - 1].kind != k
                || arena->blocks[i - 1].prev != n)
            {
                return wrong("the list of kind %lu is not whole", k);
            }

            list[i - 1] = 1;
            n = i;
        }
    }

    vacant = 0;

    for (i = arena->vacant; i; i = arena->blocks[i - 1].next) {
        if (i > arena->fresh || list[i - 1]) {
            return wrong("the list of free blocks is not whole");
        }

        list[i - 1] = 2;
        vacant++;
    }

    if (arena->nfree != vacant + arena->n - arena->fresh) {
        return wrong("free blocks: %lu, counted %lu", arena->nfree,
                     vacant + arena->n - arena->fresh);
    }

    for (n = 0; n < arena->fresh; n++) {
        b = &arena->blocks[n];
        used = 0;
        free_slots = 0;

        for (i = 0; i < 128; i++) {
            used += slots[n * 128 + i] != 0;
        }

        if (list[n] == 2) {
            if (used) {
                return wrong("a free block is in use");
            }

            continue;
        }

        if (used == 0) {
            return wrong("a block that nobody uses is not free");
        }

        size = sizes[b->kind];

        for (i = 0; i < 4096 / size; i++) {
            k = (b->used[i / 64] >> (i % 64)) & 1;

            if (k != (slots[(n * 4096 + i * size) / 32] == 2)) {
                return wrong(k ? "a slot has leaked" : "a slot in use is free");
            }

            free_slots += !k;
        }

        listed = list[n];

        if (listed != (free_slots != 0)) {
            return wrong("a block is %sin a list of those with free slots",
                         listed ? "" : "not ");
        }
    }

    return 1;
}


/* links in both directions; how many there are, or -1 */

static ngx_int_t
whole_queue(ngx_queue_t *head)
{
    ngx_int_t     n;
    ngx_queue_t  *q;

    n = 0;

    for (q = head->next; q != head; q = q->next) {

        if (q == NULL || (u_char *) q < mem || (u_char *) q >= mem + SIZE
            || q->next == NULL || q->next->prev != q || n++ > SLOTS)
        {
            return -1;
        }
    }

    return (head->next->prev == head) ? n : -1;
}


static ngx_uint_t
in_queue(ngx_queue_t *head, ngx_queue_t *x)
{
    ngx_uint_t    n;
    ngx_queue_t  *q;

    n = 0;

    for (q = head->next; q != head; q = q->next) {
        n += (q == x);
    }

    return n;
}


/*
 * Whether the zone is whole, and what is in it.  The lock is free: whoever
 * has taken it last has repaired what there was to repair.
 */

static ngx_uint_t
whole(world_t *world)
{
    size_t                    bytes, details_bytes, left, filling, partly;
    uint32_t                  hash;
    ngx_int_t                 n, wheel, queued, detailed, in_wheel, fills;
    ngx_uint_t                i, k, key, level, records, in_completed;
    ngx_uint_t                states[4];
    ngx_queue_t              *q;
    ngx_http_idem_item_t     *item;
    ngx_http_idem_zone_t     *zone = m.z.zone;
    ngx_http_idem_details_t  *d;

    ngx_memzero(world, sizeof(world_t));
    ngx_memzero(slots, sizeof(slots));
    ngx_memzero(states, sizeof(states));

    bytes = 0;
    filling = 0;
    fills = 0;
    details_bytes = 0;
    records = 0;
    in_completed = 0;
    detailed = 0;

    if (zone->busy || zone->undo.item) {
        return wrong("somebody is still at work");
    }

    /* the wheel and the queues */

    wheel = whole_queue(&zone->expiry.due);
    in_wheel = wheel;

    for (level = 0; level < 5; level++) {
        for (i = 0; i < 64; i++) {
            n = whole_queue(&zone->expiry.slots[level][i]);
            in_wheel = (n < 0 || in_wheel < 0) ? -1 : in_wheel + n;
        }
    }

    queued = whole_queue(&zone->completed);
    n = whole_queue(&zone->details);

    if (in_wheel < 0 || queued < 0 || n < 0) {
        return wrong("the links of %s are not whole",
                     (in_wheel < 0) ? "the wheel"
                     : (queued < 0) ? "the queue of completed ones"
                     : "the queue of details");
    }

    for (i = 0; i <= zone->mask; i++) {
        for (item = zone->buckets[i]; item; item = item->next) {

            if (!take(item, 256, NGX_HTTP_IDEM_KIND_ITEM)) {
                return 0;
            }

            ngx_memcpy(&hash, item->id, sizeof(uint32_t));
            key = key_of(item);

            if (key == KEYS || (hash & zone->mask) != i) {
                return wrong("a record with the id of none");
            }

            if (world->records[key].there) {
                return wrong("record %lu is there twice", key);
            }

            if (item->state < 1 || item->state > 3) {
                return wrong("record %lu has state %u", key, item->state);
            }

            if (!look(item, &world->records[key])) {
                return 0;
            }

            records++;
            states[item->state]++;

            left = item->size;
            left -= ngx_min(left, NGX_HTTP_IDEM_ITEM_ROOM);

            k = (item->state == NGX_HTTP_IDEM_IN_PROGRESS && item->chunks);

            if (k) {
                fills++;
                partly = take_some(item->chunks, left);

                if (partly == 0) {
                    return 0;
                }

                bytes += partly;
                filling += partly;

            } else if (!take_chunks(item->chunks, left, &bytes)) {
                return 0;
            }

            d = item->details;

            if (d) {
                detailed++;

                if (d->item != item
                    || in_queue(&zone->details, &d->queue) != 1
                    || !take_chunks((ngx_http_idem_chunk_t *) d,
                                    ngx_max((size_t) d->len + 28, 56),
                                    &details_bytes))
                {
                    return wrong("details of record %lu are not in their "
                                 "queue once", key);
                }
            }

            k = (m.z.full != NGX_HTTP_IDEM_FULL_EVICT
                 || (item->state == NGX_HTTP_IDEM_COMPLETED
                     && item->chunks));

            in_completed += k;

            if (in_queue(&zone->completed, &item->completed) != k
                || (!k && item->completed.next
                    && in_queue(&zone->writing, &item->completed) != 1))
            {
                return wrong("record %lu in the queue of completed ones", key);
            }

            /* in the wheel once: as many as there are, and each is in one */

            for (q = item->expiry.next, n = 0; q != &item->expiry;
                 q = q->next)
            {
                n += ((u_char *) q >= (u_char *) &zone->expiry
                      && (u_char *) q < (u_char *) (&zone->expiry + 1));
            }

            if (n != 1) {
                return wrong("record %lu is not in the wheel", key);
            }
        }
    }

    if (in_wheel != (ngx_int_t) records || queued != (ngx_int_t) in_completed
        || whole_queue(&zone->details) != detailed)
    {
        return wrong("%ld in the wheel, %ld in the queue, of %lu",
                     in_wheel, queued, records);
    }

    if (whole_queue(&zone->writing) != fills
        || zone->writing_bytes != filling)
    {
        return wrong("%ld in the queue of those that are filled with %zu "
                     "bytes, counted %ld and %zu", whole_queue(&zone->writing),
                     zone->writing_bytes, fills, filling);
    }

    if (zone->records != records || zone->bytes != bytes
        || zone->details_bytes != details_bytes)
    {
        return wrong("%lu records and %zu, %zu bytes, counted %lu and "
                     "%zu, %zu", zone->records, zone->bytes,
                     zone->details_bytes, records, bytes, details_bytes);
    }

    for (i = 1; i < 4; i++) {
        if (zone->states[i] != states[i]) {
            return wrong("%lu of state %lu, counted %lu", zone->states[i], i,
                         states[i]);
        }
    }

    for (q = zone->completed.next; q != &zone->completed; q = q->next) {
        item = ngx_queue_data(q, ngx_http_idem_item_t, completed);
        world->order[world->n++] = key_of(item);
    }

    return whole_arena();
}


/* details may be gone; nothing else may differ */

static ngx_uint_t
is_image(image_t *a, image_t *b)
{
    image_t  x;

    x = *a;

    if (x.details == 0) {
        x.details = b->details;
    }

    return ngx_memcmp(&x, b, sizeof(image_t)) == 0;
}


/* what was promised of each record */

static ngx_uint_t
kept_promises(void)
{
    image_t     *x, *was, *is;
    ngx_uint_t   i, j, key;

    for (key = 0; key < KEYS; key++) {
        x = &at.records[key];
        was = &before.records[key];
        is = &after.records[key];

        if (is_image(x, was) || is_image(x, is)) {
            continue;
        }

        /* what is taken over when it has expired loses its response first */

        if (was->there && is->there && x->there
            && was->state == NGX_HTTP_IDEM_COMPLETED
            && is->state == NGX_HTTP_IDEM_IN_PROGRESS
            && (ngx_msec_int_t) (was->until - ngx_current_msec) <= 0
            && x->state == NGX_HTTP_IDEM_UNUSABLE
            && x->until == was->until && x->token == was->token)
        {
            continue;
        }

        /* a commit of a record that is gone lays the lock first */

        if (!was->there && x->there && is->there
            && x->state == NGX_HTTP_IDEM_IN_PROGRESS
            && x->token == is->token && x->claim == is->claim)
        {
            continue;
        }

        return wrong("record %lu is neither as before nor as after: state "
                     "%lu, reason %lu, of %lu, until %ld", key, x->state,
                     x->reason, x->token, x->until - ngx_current_msec);
    }

    /* the oldest are still those that were the oldest */

    for (i = 0, j = 0; i < at.n; i++) {

        if (at.order[i] == subject) {
            continue;
        }

        while (j < before.n && before.order[j] != at.order[i]) {
            j++;
        }

        if (j++ >= before.n) {
            return wrong("the order of the queue has changed at record %lu",
                         at.order[i]);
        }
    }

    return 1;
}


/* the zone goes on: new records until there is no room, then time goes by */

static ngx_uint_t
goes_on(void)
{
    ngx_uint_t  i;
    ngx_msec_t  saved;
    world_t     world;

    saved = ngx_current_msec;

    for (i = 100; i < 140; i++) {
        if (m.z.full == NGX_HTTP_IDEM_FULL_EVICT) {
            completed(i, i & 127, 40 * i, (i & 1) * DETAIL);

        } else {
            (void) keep(i, i & 127, 40 * i, (i & 1) * DETAIL);
        }
    }

    if (!whole(&world)) {
        return 0;
    }

    ngx_current_msec += 3 * TTL;

    ngx_http_idem_zone_lock(&m.z);
    while (ngx_http_idem_zone_purge_one(&m.z, (ngx_uint_t) -1)) {
        /* void */
    }
    ngx_http_idem_zone_unlock(&m.z);

    ngx_current_msec = saved;

    if (m.z.zone->records || m.z.zone->arena.nfree != m.z.zone->arena.n) {
        return wrong("%lu records are left when all have expired",
                     m.z.zone->records);
    }

    return 1;
}


#endif /* _ZONE_WHOLE_H_INCLUDED_ */
