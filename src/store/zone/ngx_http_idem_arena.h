
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The memory allocator of a zone: blocks of 4k, each divided into slots of
 * one size.
 *
 * nginx's slab allocator is used once, for all of this memory: a worker that
 * is killed in the middle of a slab allocation would leave the slab lists
 * inconsistent, and nothing could tell which memory is free.  Here everything
 * but the contents of the slots can be rebuilt from the references in the
 * records; ..._repair.c does so.
 */


#ifndef _NGX_HTTP_IDEM_ARENA_H_INCLUDED_
#define _NGX_HTTP_IDEM_ARENA_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_IDEM_BLOCK_SHIFT   12
#define NGX_HTTP_IDEM_BLOCK_SIZE                                              \
    ((size_t) 1 << NGX_HTTP_IDEM_BLOCK_SHIFT)

/*
 * The kinds of slots: powers of two, from 32 bytes to a whole block; and one
 * for records, so that records share no block with other data.
 */

#define NGX_HTTP_IDEM_SLOT_SHIFT    5
#define NGX_HTTP_IDEM_SLOT_MIN                                                \
    ((size_t) 1 << NGX_HTTP_IDEM_SLOT_SHIFT)

#define NGX_HTTP_IDEM_KIND_BLOCK                                              \
    (NGX_HTTP_IDEM_BLOCK_SHIFT - NGX_HTTP_IDEM_SLOT_SHIFT)
#define NGX_HTTP_IDEM_KIND_ITEM                                               \
    (NGX_HTTP_IDEM_KIND_BLOCK + 1)
#define NGX_HTTP_IDEM_KINDS                                                   \
    (NGX_HTTP_IDEM_KIND_ITEM + 1)

#define NGX_HTTP_IDEM_ITEM_SHIFT    8


/* a block; blocks are numbered from 1, 0 means none */

typedef struct {
    uint64_t                        used[2];     /* bitmap of slots */
    uint32_t                        next;
    uint32_t                        prev;
    uint32_t                        kind;
} ngx_http_idem_block_t;


typedef struct {
    u_char                  *base;
    ngx_http_idem_block_t   *blocks;
    ngx_uint_t               n;
    ngx_uint_t               fresh;              /* blocks from here on were
                                                    never used */
    ngx_uint_t               nfree;              /* free blocks, including
                                                    fresh ones */
    uint32_t                 vacant;             /* list of free blocks that
                                                    were used */
    uint32_t                 partial[NGX_HTTP_IDEM_KINDS];
} ngx_http_idem_arena_t;


/* divides "size" bytes at p into blocks */
void ngx_http_idem_arena_init(ngx_http_idem_arena_t *arena,
    u_char *p, size_t size);

void *ngx_http_idem_arena_alloc(ngx_http_idem_arena_t *arena, ngx_uint_t kind);
void ngx_http_idem_arena_free(ngx_http_idem_arena_t *arena, void *p);

/* the kind of slots of this size, a power of two */
#define ngx_http_idem_arena_kind(size)                                        \
    ((ngx_uint_t) __builtin_ctz((unsigned) (size))                            \
     - NGX_HTTP_IDEM_SLOT_SHIFT)

/* whether p[0 .. len-1] is inside the blocks */
#define ngx_http_idem_arena_within(arena, p, len)                             \
    ((size_t) ((u_char *) (p) - (arena)->base) <                              \
        ((arena)->n << NGX_HTTP_IDEM_BLOCK_SHIFT) - (len) + 1)


/*
 * Rebuilds the allocator: reset() marks all blocks as free, claim() marks a
 * slot as used, settle() rebuilds the lists.  NGX_ERROR: p is not a slot of
 * that kind, or it was claimed before.
 */
void ngx_http_idem_arena_reset(ngx_http_idem_arena_t *arena);
ngx_int_t ngx_http_idem_arena_claim(ngx_http_idem_arena_t *arena,
    void *p, ngx_uint_t kind);
void ngx_http_idem_arena_settle(ngx_http_idem_arena_t *arena);

/* iterates over used slots of a kind in memory order; p is the previous */
void *ngx_http_idem_arena_next(ngx_http_idem_arena_t *arena,
    void *p, ngx_uint_t kind);

/* whether p is a used slot of that kind */
ngx_uint_t ngx_http_idem_arena_used(ngx_http_idem_arena_t *arena,
    void *p, ngx_uint_t kind);


#endif /* _NGX_HTTP_IDEM_ARENA_H_INCLUDED_ */
