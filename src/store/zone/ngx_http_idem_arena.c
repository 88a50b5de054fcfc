
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

#include "store/zone/ngx_http_idem_arena.h"


static void ngx_http_idem_arena_link(ngx_http_idem_arena_t *arena,
    ngx_uint_t n);
static void ngx_http_idem_arena_unlink(
    ngx_http_idem_arena_t *arena, ngx_uint_t n);
static ngx_int_t ngx_http_idem_arena_slot(ngx_http_idem_arena_t *arena,
    void *p, ngx_uint_t kind, ngx_uint_t *n, ngx_uint_t *slot);


static const uint8_t  ngx_http_idem_arena_shifts[] = {
    5, 6, 7, 8, 9, 10, 11, NGX_HTTP_IDEM_BLOCK_SHIFT,
    NGX_HTTP_IDEM_ITEM_SHIFT
};


/* bits without a slot are always set */

static const uint64_t  ngx_http_idem_arena_empty[][2] = {
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


#define ngx_http_idem_arena_is_full(b)                                        \
    (((b)->used[0] & (b)->used[1]) == ~(uint64_t) 0)

#define ngx_http_idem_arena_is_empty(b)                                       \
    ((b)->used[0] == ngx_http_idem_arena_empty[(b)->kind][0]                  \
     && (b)->used[1] == ngx_http_idem_arena_empty[(b)->kind][1])


void
ngx_http_idem_arena_init(ngx_http_idem_arena_t *arena, u_char *p, size_t size)
{
    u_char  *end;

    end = p + size;

    p = ngx_align_ptr(p, NGX_HTTP_IDEM_BLOCK_SIZE);

    ngx_memzero(arena, sizeof(ngx_http_idem_arena_t));

    if (p >= end) {
        return;
    }

    arena->n = (end - p) / (NGX_HTTP_IDEM_BLOCK_SIZE
                            + sizeof(ngx_http_idem_block_t));
    arena->nfree = arena->n;
    arena->base = p;
    arena->blocks = (ngx_http_idem_block_t *)
                        (p + (arena->n << NGX_HTTP_IDEM_BLOCK_SHIFT));
}


void *
ngx_http_idem_arena_alloc(ngx_http_idem_arena_t *arena, ngx_uint_t kind)
{
    ngx_uint_t              n, slot;
    ngx_http_idem_block_t  *b;

    n = arena->partial[kind];

    if (n == 0) {

        /* assign a free block to this kind */

        n = arena->vacant;

        if (n) {
            arena->vacant = arena->blocks[n - 1].next;

        } else if (arena->fresh < arena->n) {
            n = ++arena->fresh;

        } else {
            return NULL;
        }

        arena->nfree--;

        b = &arena->blocks[n - 1];

        b->kind = (uint32_t) kind;
        b->used[0] = ngx_http_idem_arena_empty[kind][0];
        b->used[1] = ngx_http_idem_arena_empty[kind][1];

        ngx_http_idem_arena_link(arena, n);
    }

    b = &arena->blocks[n - 1];

    if (b->used[0] != ~(uint64_t) 0) {
        slot = __builtin_ctzll(~b->used[0]);
        b->used[0] |= (uint64_t) 1 << slot;

    } else {
        slot = __builtin_ctzll(~b->used[1]);
        b->used[1] |= (uint64_t) 1 << slot;
        slot += 64;
    }

    if (ngx_http_idem_arena_is_full(b)) {
        ngx_http_idem_arena_unlink(arena, n);
    }

    return arena->base + ((n - 1) << NGX_HTTP_IDEM_BLOCK_SHIFT)
           + (slot << ngx_http_idem_arena_shifts[kind]);
}


void
ngx_http_idem_arena_free(ngx_http_idem_arena_t *arena, void *p)
{
    size_t                  offset;
    ngx_uint_t              n, slot, full;
    ngx_http_idem_block_t  *b;

    offset = (u_char *) p - arena->base;

    n = (offset >> NGX_HTTP_IDEM_BLOCK_SHIFT) + 1;
    b = &arena->blocks[n - 1];

    slot = (offset & (NGX_HTTP_IDEM_BLOCK_SIZE - 1))
           >> ngx_http_idem_arena_shifts[b->kind];

    full = ngx_http_idem_arena_is_full(b);

    b->used[slot >> 6] &= ~((uint64_t) 1 << (slot & 63));

    if (!ngx_http_idem_arena_is_empty(b)) {

        if (full) {
            ngx_http_idem_arena_link(arena, n);
        }

        return;
    }

    if (!full) {
        ngx_http_idem_arena_unlink(arena, n);
    }

    b->kind = NGX_HTTP_IDEM_KIND_NONE;
    b->next = arena->vacant;
    arena->vacant = (uint32_t) n;
    arena->nfree++;
}


static void
ngx_http_idem_arena_link(ngx_http_idem_arena_t *arena, ngx_uint_t n)
{
    ngx_http_idem_block_t  *b;

    b = &arena->blocks[n - 1];

    b->prev = 0;
    b->next = arena->partial[b->kind];

    if (b->next) {
        arena->blocks[b->next - 1].prev = (uint32_t) n;
    }

    arena->partial[b->kind] = (uint32_t) n;
}


static void
ngx_http_idem_arena_unlink(ngx_http_idem_arena_t *arena, ngx_uint_t n)
{
    ngx_http_idem_block_t  *b;

    b = &arena->blocks[n - 1];

    if (b->prev) {
        arena->blocks[b->prev - 1].next = b->next;

    } else {
        arena->partial[b->kind] = b->next;
    }

    if (b->next) {
        arena->blocks[b->next - 1].prev = b->prev;
    }
}


void
ngx_http_idem_arena_reset(ngx_http_idem_arena_t *arena)
{
    ngx_uint_t  i;

    arena->fresh = ngx_min(arena->fresh, arena->n);

    for (i = 0; i < arena->fresh; i++) {
        arena->blocks[i].kind = NGX_HTTP_IDEM_KIND_NONE;
    }
}


ngx_int_t
ngx_http_idem_arena_claim(ngx_http_idem_arena_t *arena,
    void *p, ngx_uint_t kind)
{
    uint64_t                bit;
    ngx_uint_t              n, slot;
    ngx_http_idem_block_t  *b;

    if (ngx_http_idem_arena_slot(arena, p, kind, &n, &slot) != NGX_OK) {
        return NGX_ERROR;
    }

    b = &arena->blocks[n - 1];

    if (b->kind == NGX_HTTP_IDEM_KIND_NONE) {
        b->kind = (uint32_t) kind;
        b->used[0] = ngx_http_idem_arena_empty[kind][0];
        b->used[1] = ngx_http_idem_arena_empty[kind][1];
    }

    bit = (uint64_t) 1 << (slot & 63);

    if (b->kind != kind || (b->used[slot >> 6] & bit)) {
        return NGX_ERROR;
    }

    b->used[slot >> 6] |= bit;

    return NGX_OK;
}


ngx_uint_t
ngx_http_idem_arena_used(ngx_http_idem_arena_t *arena,
    void *p, ngx_uint_t kind)
{
    ngx_uint_t              n, slot;
    ngx_http_idem_block_t  *b;

    if (ngx_http_idem_arena_slot(arena, p, kind, &n, &slot) != NGX_OK) {
        return 0;
    }

    b = &arena->blocks[n - 1];

    return b->kind == kind
           && (b->used[slot >> 6] & ((uint64_t) 1 << (slot & 63)));
}


void *
ngx_http_idem_arena_next(ngx_http_idem_arena_t *arena,
    void *p, ngx_uint_t kind)
{
    size_t                  offset;
    ngx_uint_t              n, slot, slots, shift;
    ngx_http_idem_block_t  *b;

    shift = ngx_http_idem_arena_shifts[kind];
    slots = NGX_HTTP_IDEM_BLOCK_SIZE >> shift;

    offset = p ? (size_t) ((u_char *) p - arena->base) + ((size_t) 1 << shift)
               : 0;

    n = offset >> NGX_HTTP_IDEM_BLOCK_SHIFT;
    slot = (offset & (NGX_HTTP_IDEM_BLOCK_SIZE - 1)) >> shift;

    for ( /* void */ ; n < arena->fresh; n++, slot = 0) {
        b = &arena->blocks[n];

        if (b->kind != kind) {
            continue;
        }

        for ( /* void */ ; slot < slots; slot++) {
            if (b->used[slot >> 6] & ((uint64_t) 1 << (slot & 63))) {
                return arena->base + (n << NGX_HTTP_IDEM_BLOCK_SHIFT)
                       + (slot << shift);
            }
        }
    }

    return NULL;
}


/* finds block and slot of a pointer, as if it were of that kind */

static ngx_int_t
ngx_http_idem_arena_slot(ngx_http_idem_arena_t *arena, void *p,
    ngx_uint_t kind, ngx_uint_t *n, ngx_uint_t *slot)
{
    size_t  offset, mask;

    mask = ((size_t) 1 << ngx_http_idem_arena_shifts[kind]) - 1;
    offset = (u_char *) p - arena->base;

    if (offset >= arena->fresh << NGX_HTTP_IDEM_BLOCK_SHIFT
        || (offset & mask))
    {
        return NGX_ERROR;
    }

    *n = (offset >> NGX_HTTP_IDEM_BLOCK_SHIFT) + 1;
    *slot = (offset & (NGX_HTTP_IDEM_BLOCK_SIZE - 1))
            >> ngx_http_idem_arena_shifts[kind];

    return NGX_OK;
}


void
ngx_http_idem_arena_settle(ngx_http_idem_arena_t *arena)
{
    ngx_uint_t              n;
    ngx_http_idem_block_t  *b;

    arena->vacant = 0;
    arena->nfree = arena->n - arena->fresh;

    ngx_memzero(arena->partial, sizeof(arena->partial));

    for (n = arena->fresh; n; n--) {
        b = &arena->blocks[n - 1];

        if (b->kind == NGX_HTTP_IDEM_KIND_NONE) {
            b->next = arena->vacant;
            arena->vacant = (uint32_t) n;
            arena->nfree++;

        } else if (!ngx_http_idem_arena_is_full(b)) {
            ngx_http_idem_arena_link(arena, n);
        }
    }
}
