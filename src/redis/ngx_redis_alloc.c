
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The memory of calls.
 *
 * Each operation takes a call, and malloc() has few free blocks of this size at
 * hand when many are in flight.  So freed calls are kept for the next ones.
 *
 * Called by the user and by the calls.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_redis.h"


/* how many are kept; none where a use after free is looked for */
#if (defined __SANITIZE_ADDRESS__)
#define NGX_REDIS_SPARE_CALLS  0
#else
#define NGX_REDIS_SPARE_CALLS  64
#endif

/* the size that each call has at least */
#define NGX_REDIS_CALL_SIZE    384


/* a stack, by "next" */
static ngx_queue_t  ngx_redis_spare;
static ngx_uint_t   ngx_redis_nspare;


void *
ngx_redis_call_alloc(size_t size)
{
    ngx_queue_t  *spare;

    spare = ngx_redis_spare.next;

    if (spare && size <= NGX_REDIS_CALL_SIZE) {
        ngx_redis_spare.next = spare->next;
        ngx_redis_nspare--;

        ngx_memzero(spare, size);
        return spare;
    }

    return ngx_calloc(ngx_max(size, NGX_REDIS_CALL_SIZE), ngx_cycle->log);
}


void
ngx_redis_call_discard(ngx_redis_call_t *call)
{
    if (ngx_redis_nspare == NGX_REDIS_SPARE_CALLS) {
        ngx_free(call);
        return;
    }

    call->queue.next = ngx_redis_spare.next;
    ngx_redis_spare.next = &call->queue;
    ngx_redis_nspare++;
}
