
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The memory of a zone: blocks of 4k, each cut into slots of one size.
 *
 * nginx's slab allocator is used once, for all of it: a worker that is killed
 * in the middle of an allocation would leave its lists half changed, and
 * nobody could tell what is free.  Here everything but the slots themselves
 * can be made anew from what the records refer to: ..._repair.c does so.
 */


#ifndef _NGX_HTTP_IDEM_ROOM_H_INCLUDED_
#define _NGX_HTTP_IDEM_ROOM_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_IDEM_BLOCK_SHIFT   12
#define NGX_HTTP_IDEM_BLOCK_SIZE                                              \
    ((size_t) 1 << NGX_HTTP_IDEM_BLOCK_SHIFT)

/* slots of 32 bytes up to a block, by powers of two; and those of records,
   which share no block with others */

#define NGX_HTTP_IDEM_SLOT_SHIFT    5
#define NGX_HTTP_IDEM_SLOT_MIN                                                \
    ((size_t) 1 << NGX_HTTP_IDEM_SLOT_SHIFT)

#define NGX_HTTP_IDEM_KIND_BLOCK                                              \
    (NGX_HTTP_IDEM_BLOCK_SHIFT - NGX_HTTP_IDEM_SLOT_SHIFT)
#define NGX_HTTP_IDEM_KIND_NODE                                               \
    (NGX_HTTP_IDEM_KIND_BLOCK + 1)
#define NGX_HTTP_IDEM_KINDS                                                   \
    (NGX_HTTP_IDEM_KIND_NODE + 1)

#define NGX_HTTP_IDEM_NODE_SHIFT    8


/* of a block; numbers of others count from 1, 0 is none */

typedef struct {
    uint64_t                        used[2];     /* slots: bits             */
    uint32_t                        next;
    uint32_t                        prev;
    uint32_t                        kind;
} ngx_http_idem_block_t;


typedef struct {
    u_char                  *base;
    ngx_http_idem_block_t   *blocks;
    ngx_uint_t               n;
    ngx_uint_t               fresh;              /* none was used from there
                                                    on                      */
    ngx_uint_t               nfree;              /* the fresh ones are, too */
    uint32_t                 vacant;             /* free ones that were used */
    uint32_t                 partial[NGX_HTTP_IDEM_KINDS];
} ngx_http_idem_room_t;


/* of "size" bytes from p on, as many blocks as there fit */
void ngx_http_idem_room_init(ngx_http_idem_room_t *room,
    u_char *p, size_t size);

void *ngx_http_idem_room_alloc(ngx_http_idem_room_t *room, ngx_uint_t kind);
void ngx_http_idem_room_free(ngx_http_idem_room_t *room, void *p);

/* the kind of slots of so many bytes, a power of two */
#define ngx_http_idem_room_kind(size)                                         \
    ((ngx_uint_t) __builtin_ctz((unsigned) (size))                            \
     - NGX_HTTP_IDEM_SLOT_SHIFT)

/* whether those bytes are in the blocks at all */
#define ngx_http_idem_room_within(room, p, len)                               \
    ((size_t) ((u_char *) (p) - (room)->base) <                               \
        ((room)->n << NGX_HTTP_IDEM_BLOCK_SHIFT) - (len) + 1)


/*
 * Making it anew: nothing is in use, then each slot that is is claimed, and
 * then the lists are made.  NGX_ERROR: that can't be such a slot, or it is
 * claimed already.
 */
void ngx_http_idem_room_reset(ngx_http_idem_room_t *room);
ngx_int_t ngx_http_idem_room_claim(ngx_http_idem_room_t *room,
    void *p, ngx_uint_t kind);
void ngx_http_idem_room_settle(ngx_http_idem_room_t *room);

/* the slots of a kind that are in use, as they lie; p is the one before */
void *ngx_http_idem_room_next(ngx_http_idem_room_t *room,
    void *p, ngx_uint_t kind);

/* whether it is a slot of that kind, and in use */
ngx_uint_t ngx_http_idem_room_used(ngx_http_idem_room_t *room,
    void *p, ngx_uint_t kind);


#endif /* _NGX_HTTP_IDEM_ROOM_H_INCLUDED_ */
