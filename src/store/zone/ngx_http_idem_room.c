
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The memory allocator of a zone: see the header.
 *
 * Each block has a bitmap of its slots.  The blocks of one kind that have a
 * free slot are in a list, and slots are allocated from its first block.
 * Blocks that are entirely free are in another list.  Blocks from "fresh" on
 * were never touched: a large zone takes no physical memory before it is
 * used.
 *
 * Called by the zone, with the zone locked.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_room.h"


static ngx_uint_t ngx_http_idem_room_block(
    ngx_http_idem_room_t *room, ngx_uint_t kind);
static void ngx_http_idem_room_link(ngx_http_idem_room_t *room, ngx_uint_t n);
static void ngx_http_idem_room_unlink(
    ngx_http_idem_room_t *room, ngx_uint_t n);
static ngx_int_t ngx_http_idem_room_slot(ngx_http_idem_room_t *room, void *p,
    ngx_uint_t kind, ngx_uint_t *n, ngx_uint_t *slot);


static const uint8_t  ngx_http_idem_room_shifts[] = {
    5, 6, 7, 8, 9, 10, 11, NGX_HTTP_IDEM_BLOCK_SHIFT,
    NGX_HTTP_IDEM_ITEM_SHIFT
};


/* bits without a slot are always set */

static const uint64_t  ngx_http_idem_room_empty[][2] = {
    { 0, 0 },
    { 0, ~(uint64_t) 0 },
    { ~(uint64_t) 0 << 32, ~(uint64_t) 0 },
    { ~(uint64_t) 0 << 16, ~(uint64_t) 0 },
    { ~(uint64_t) 0 << 8, ~(uint64_t) 0 },
    { ~(uint64_t) 0 << 4, ~(uint64_t) 0 },
    { ~(uint64_t) 0 << 2, ~(uint64_t) 0 },
    { ~(uint64_t) 0 << 1, ~(uint64_t) 0 },
    { ~(uint64_t) 0 << 16, ~(uint64_t) 0 }
};


/* a free block, or one with no claimed slot yet */
#define NGX_HTTP_IDEM_KIND_NONE  NGX_HTTP_IDEM_KINDS


#define ngx_http_idem_room_is_full(b)                                         \
    (((b)->used[0] & (b)->used[1]) == ~(uint64_t) 0)

#define ngx_http_idem_room_is_empty(b)                                        \
    ((b)->used[0] == ngx_http_idem_room_empty[(b)->kind][0]                   \
     && (b)->used[1] == ngx_http_idem_room_empty[(b)->kind][1])


void
ngx_http_idem_room_init(ngx_http_idem_room_t *room, u_char *p, size_t size)
{
    u_char  *end;

    end = p + size;

    p = ngx_align_ptr(p, NGX_HTTP_IDEM_BLOCK_SIZE);

    ngx_memzero(room, sizeof(ngx_http_idem_room_t));

    if (p >= end) {
        return;
    }

    room->n = (end - p) / (NGX_HTTP_IDEM_BLOCK_SIZE
                           + sizeof(ngx_http_idem_block_t));
    room->nfree = room->n;
    room->base = p;
    room->blocks = (ngx_http_idem_block_t *)
                       (p + (room->n << NGX_HTTP_IDEM_BLOCK_SHIFT));
}


void *
ngx_http_idem_room_alloc(ngx_http_idem_room_t *room, ngx_uint_t kind)
{
    ngx_uint_t              n, slot;
    ngx_http_idem_block_t  *b;

    n = room->partial[kind];

    if (n == 0) {
        n = ngx_http_idem_room_block(room, kind);

        if (n == 0) {
            return NULL;
        }
    }

    b = &room->blocks[n - 1];

    if (b->used[0] != ~(uint64_t) 0) {
        slot = __builtin_ctzll(~b->used[0]);
        b->used[0] |= (uint64_t) 1 << slot;

    } else {
        slot = __builtin_ctzll(~b->used[1]);
        b->used[1] |= (uint64_t) 1 << slot;
        slot += 64;
    }

    if (ngx_http_idem_room_is_full(b)) {
        ngx_http_idem_room_unlink(room, n);
    }

    return room->base + ((n - 1) << NGX_HTTP_IDEM_BLOCK_SHIFT)
           + (slot << ngx_http_idem_room_shifts[kind]);
}


void
ngx_http_idem_room_free(ngx_http_idem_room_t *room, void *p)
{
    size_t                  offset;
    ngx_uint_t              n, slot, full;
    ngx_http_idem_block_t  *b;

    offset = (u_char *) p - room->base;

    n = (offset >> NGX_HTTP_IDEM_BLOCK_SHIFT) + 1;
    b = &room->blocks[n - 1];

    slot = (offset & (NGX_HTTP_IDEM_BLOCK_SIZE - 1))
           >> ngx_http_idem_room_shifts[b->kind];

    full = ngx_http_idem_room_is_full(b);

    b->used[slot >> 6] &= ~((uint64_t) 1 << (slot & 63));

    if (!ngx_http_idem_room_is_empty(b)) {

        if (full) {
            ngx_http_idem_room_link(room, n);
        }

        return;
    }

    if (!full) {
        ngx_http_idem_room_unlink(room, n);
    }

    b->kind = NGX_HTTP_IDEM_KIND_NONE;
    b->next = room->vacant;
    room->vacant = (uint32_t) n;
    room->nfree++;
}


/* assigns a free block to a kind; 0: there is none */

static ngx_uint_t
ngx_http_idem_room_block(ngx_http_idem_room_t *room, ngx_uint_t kind)
{
    ngx_uint_t              n;
    ngx_http_idem_block_t  *b;

    n = room->vacant;

    if (n) {
        b = &room->blocks[n - 1];
        room->vacant = b->next;

    } else {

        if (room->fresh == room->n) {
            return 0;
        }

        n = ++room->fresh;
        b = &room->blocks[n - 1];
    }

    room->nfree--;

    b->kind = (uint32_t) kind;
    b->used[0] = ngx_http_idem_room_empty[kind][0];
    b->used[1] = ngx_http_idem_room_empty[kind][1];

    ngx_http_idem_room_link(room, n);

    return n;
}


static void
ngx_http_idem_room_link(ngx_http_idem_room_t *room, ngx_uint_t n)
{
    ngx_http_idem_block_t  *b;

    b = &room->blocks[n - 1];

    b->prev = 0;
    b->next = room->partial[b->kind];

    if (b->next) {
        room->blocks[b->next - 1].prev = (uint32_t) n;
    }

    room->partial[b->kind] = (uint32_t) n;
}


static void
ngx_http_idem_room_unlink(ngx_http_idem_room_t *room, ngx_uint_t n)
{
    ngx_http_idem_block_t  *b;

    b = &room->blocks[n - 1];

    if (b->prev) {
        room->blocks[b->prev - 1].next = b->next;

    } else {
        room->partial[b->kind] = b->next;
    }

    if (b->next) {
        room->blocks[b->next - 1].prev = b->prev;
    }
}


void
ngx_http_idem_room_reset(ngx_http_idem_room_t *room)
{
    ngx_uint_t  i;

    room->fresh = ngx_min(room->fresh, room->n);

    for (i = 0; i < room->fresh; i++) {
        room->blocks[i].kind = NGX_HTTP_IDEM_KIND_NONE;
    }
}


ngx_int_t
ngx_http_idem_room_claim(ngx_http_idem_room_t *room, void *p, ngx_uint_t kind)
{
    uint64_t                bit;
    ngx_uint_t              n, slot;
    ngx_http_idem_block_t  *b;

    if (ngx_http_idem_room_slot(room, p, kind, &n, &slot) != NGX_OK) {
        return NGX_ERROR;
    }

    b = &room->blocks[n - 1];

    if (b->kind == NGX_HTTP_IDEM_KIND_NONE) {
        b->kind = (uint32_t) kind;
        b->used[0] = ngx_http_idem_room_empty[kind][0];
        b->used[1] = ngx_http_idem_room_empty[kind][1];
    }

    bit = (uint64_t) 1 << (slot & 63);

    if (b->kind != kind || (b->used[slot >> 6] & bit)) {
        return NGX_ERROR;
    }

    b->used[slot >> 6] |= bit;

    return NGX_OK;
}


ngx_uint_t
ngx_http_idem_room_used(ngx_http_idem_room_t *room, void *p, ngx_uint_t kind)
{
    ngx_uint_t              n, slot;
    ngx_http_idem_block_t  *b;

    if (ngx_http_idem_room_slot(room, p, kind, &n, &slot) != NGX_OK) {
        return 0;
    }

    b = &room->blocks[n - 1];

    return b->kind == kind
           && (b->used[slot >> 6] & ((uint64_t) 1 << (slot & 63)));
}


void *
ngx_http_idem_room_next(ngx_http_idem_room_t *room, void *p, ngx_uint_t kind)
{
    size_t                  offset;
    ngx_uint_t              n, slot, slots, shift;
    ngx_http_idem_block_t  *b;

    shift = ngx_http_idem_room_shifts[kind];
    slots = NGX_HTTP_IDEM_BLOCK_SIZE >> shift;

    offset = p ? (size_t) ((u_char *) p - room->base) + ((size_t) 1 << shift)
               : 0;

    n = offset >> NGX_HTTP_IDEM_BLOCK_SHIFT;
    slot = (offset & (NGX_HTTP_IDEM_BLOCK_SIZE - 1)) >> shift;

    for ( /* void */ ; n < room->fresh; n++, slot = 0) {
        b = &room->blocks[n];

        if (b->kind != kind) {
            continue;
        }

        for ( /* void */ ; slot < slots; slot++) {
            if (b->used[slot >> 6] & ((uint64_t) 1 << (slot & 63))) {
                return room->base + (n << NGX_HTTP_IDEM_BLOCK_SHIFT)
                       + (slot << shift);
            }
        }
    }

    return NULL;
}


/* finds block and slot of a pointer, as if it were of that kind */

static ngx_int_t
ngx_http_idem_room_slot(ngx_http_idem_room_t *room, void *p,
    ngx_uint_t kind, ngx_uint_t *n, ngx_uint_t *slot)
{
    size_t  offset, mask;

    mask = ((size_t) 1 << ngx_http_idem_room_shifts[kind]) - 1;
    offset = (u_char *) p - room->base;

    if (offset >= room->fresh << NGX_HTTP_IDEM_BLOCK_SHIFT
        || (offset & mask))
    {
        return NGX_ERROR;
    }

    *n = (offset >> NGX_HTTP_IDEM_BLOCK_SHIFT) + 1;
    *slot = (offset & (NGX_HTTP_IDEM_BLOCK_SIZE - 1))
            >> ngx_http_idem_room_shifts[kind];

    return NGX_OK;
}


void
ngx_http_idem_room_settle(ngx_http_idem_room_t *room)
{
    ngx_uint_t              n;
    ngx_http_idem_block_t  *b;

    room->vacant = 0;
    room->nfree = room->n - room->fresh;

    ngx_memzero(room->partial, sizeof(room->partial));

    for (n = room->fresh; n; n--) {
        b = &room->blocks[n - 1];

        if (b->kind == NGX_HTTP_IDEM_KIND_NONE) {
            b->next = room->vacant;
            room->vacant = (uint32_t) n;
            room->nfree++;

        } else if (!ngx_http_idem_room_is_full(b)) {
            ngx_http_idem_room_link(room, n);
        }
    }
}
