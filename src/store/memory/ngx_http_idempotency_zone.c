
/*
 * The records of a zone: by id, by the time of their expiry, and those that
 * may have to give way in order of age.
 *
 * When there is no room, expired records are purged.  Then it depends on what
 * the zone is for.  In the embedded store no unexpired record is ever
 * forgotten: the oldest completed ones lose their response, and what is left
 * of them still keeps a request from running twice.  A cache forgets the
 * oldest; what waits to be sent stays, and what is new is refused.
 *
 * Only shpool->mutex guards it: the one lock that nginx's master frees after
 * a worker was killed.
 *
 * Called by the embedded store, and by the cache and the outbox.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/memory/ngx_http_idempotency_zone.h"


#define NGX_HTTP_IDEMPOTENCY_CHUNK_HEAD                                       \
    offsetof(ngx_http_idempotency_chunk_t, data)

#define NGX_HTTP_IDEMPOTENCY_CHUNK_MIN     32

/* how much of the wheel of expiry times may turn in one step: half a minute
   that nobody came, or some hundred microseconds of looking for room */
#define NGX_HTTP_IDEMPOTENCY_PURGE_WORK    512
#define NGX_HTTP_IDEMPOTENCY_ROOM_WORK     2048


static void *ngx_http_idempotency_zone_alloc(
    ngx_http_idempotency_records_t *z, size_t size);
static void *ngx_http_idempotency_zone_make_room(
    ngx_http_idempotency_records_t *z, size_t size);
static ngx_uint_t ngx_http_idempotency_zone_purge_one(
    ngx_http_idempotency_records_t *z, ngx_uint_t work);
static ngx_uint_t ngx_http_idempotency_zone_purge_node(
    ngx_http_idempotency_records_t *z, ngx_http_idempotency_node_t *node);
static ngx_uint_t ngx_http_idempotency_zone_evict(
    ngx_http_idempotency_records_t *z);
static size_t ngx_http_idempotency_chunk_size(size_t size);


static ngx_http_idempotency_node_t **
ngx_http_idempotency_zone_bucket(ngx_http_idempotency_records_t *z, u_char *id)
{
    uint32_t  hash;

    /* an id is a SHA-256: any bits of it will do */

    ngx_memcpy(&hash, id, sizeof(uint32_t));

    return &z->zone->buckets[hash & z->zone->mask];
}


ngx_http_idempotency_node_t *
ngx_http_idempotency_zone_find(ngx_http_idempotency_records_t *z, u_char *id)
{
    ngx_http_idempotency_node_t  *node;

    for (node = *ngx_http_idempotency_zone_bucket(z, id);
         node;
         node = node->next)
    {
        if (ngx_memcmp(node->id, id, NGX_HTTP_IDEMPOTENCY_ID_LEN) != 0) {
            continue;
        }

        if ((ngx_msec_int_t) (node->expires - ngx_current_msec) > 0) {
            return node;
        }

        ngx_http_idempotency_zone_remove(z, node);
        z->zone->expired++;
        return NULL;
    }

    return NULL;
}


ngx_http_idempotency_node_t *
ngx_http_idempotency_zone_insert(ngx_http_idempotency_records_t *z, u_char *id,
    ngx_msec_t expires)
{
    ngx_http_idempotency_node_t  *node, **bucket;

    node = ngx_http_idempotency_zone_alloc(z, NGX_HTTP_IDEMPOTENCY_NODE_SIZE);
    if (node == NULL) {
        return NULL;
    }

    ngx_memzero(node, offsetof(ngx_http_idempotency_node_t, data));
    ngx_memcpy(node->id, id, NGX_HTTP_IDEMPOTENCY_ID_LEN);

    bucket = ngx_http_idempotency_zone_bucket(z, id);
    node->next = *bucket;
    *bucket = node;

    /* not while it is being made: looking for room would take it away */

    if ((ngx_msec_int_t) (expires - ngx_current_msec) <= 0) {
        expires = ngx_current_msec + 1;
    }

    node->expires = expires;
    ngx_http_idempotency_expiry_add(&z->zone->expiry, node);

    z->zone->records++;
    z->zone->states[node->state]++;

    return node;
}


void
ngx_http_idempotency_zone_state(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node, ngx_http_idempotency_state_e state,
    ngx_http_idempotency_reason_e reason)
{
    z->zone->states[node->state]--;
    z->zone->states[state]++;

    node->state = (uint8_t) state;
    node->reason = (uint8_t) reason;
}


void
ngx_http_idempotency_zone_expire(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node, ngx_msec_t expires)
{
    node->expires = expires;

    ngx_queue_remove(&node->expiry);
    ngx_http_idempotency_expiry_add(&z->zone->expiry, node);
}


void
ngx_http_idempotency_zone_remove(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node)
{
    ngx_http_idempotency_node_t  **p;

    for (p = ngx_http_idempotency_zone_bucket(z, node->id);
         *p != node;
         p = &(*p)->next)
    {
        /* void */
    }

    *p = node->next;

    z->zone->records--;
    z->zone->states[node->state]--;

    ngx_http_idempotency_zone_drop(z, node);
    ngx_http_idempotency_zone_details(z, node, NULL);
    ngx_queue_remove(&node->expiry);
    ngx_slab_free_locked(z->shpool, node);
}


/*
 * Stores a response; NGX_DECLINED if there is no room.  The node is not in
 * the queue of completed ones yet, so making room can't take it away.
 */

ngx_int_t
ngx_http_idempotency_zone_put(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node, ngx_chain_t *in, size_t size)
{
    u_char                         *p, *src;
    size_t                          left, room, n, len;
    ngx_http_idempotency_chunk_t   *chunk, **last;

    /*
     * Nothing is evicted for what would not fit anyway.  What has expired
     * makes room first; free slots in pages that are in use count as a page.
     */

    while (size > (z->shpool->pfree + 1) * ngx_pagesize + z->zone->bytes) {

        if (!ngx_http_idempotency_zone_purge_one(z, (ngx_uint_t) -1)) {
            return NGX_DECLINED;
        }
    }

    p = node->data;
    room = NGX_HTTP_IDEMPOTENCY_NODE_ROOM;
    last = &node->chunks;
    left = size;

    node->size = (uint32_t) size;
    src = NULL;
    len = 0;

    while (left) {

        if (room == 0) {
            n = ngx_http_idempotency_chunk_size(left);

            chunk = ngx_http_idempotency_zone_alloc(z, n);
            if (chunk == NULL) {
                ngx_http_idempotency_zone_drop(z, node);
                return NGX_DECLINED;
            }

            chunk->next = NULL;
            *last = chunk;
            last = &chunk->next;

            z->zone->bytes += n;

            p = chunk->data;
            room = n - NGX_HTTP_IDEMPOTENCY_CHUNK_HEAD;
        }

        while (len == 0) {
            src = in->buf->pos;
            len = in->buf->last - in->buf->pos;
            in = in->next;
        }

        n = ngx_min(ngx_min(room, len), left);

        p = ngx_cpymem(p, src, n);
        src += n;
        len -= n;
        room -= n;
        left -= n;
    }

    /* what fits into the node itself leaves no room by going without it */

    if (node->chunks || z->full != NGX_HTTP_IDEMPOTENCY_FULL_EVICT) {
        ngx_queue_insert_tail(&z->zone->completed, &node->completed);
    }

    return NGX_OK;
}


/*
 * Sets or takes away what stands beside the claim.  Nothing gives way for it,
 * and without room there is none.
 */

void
ngx_http_idempotency_zone_details(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node, ngx_str_t *details)
{
    if (node->details) {
        ngx_slab_free_locked(z->shpool, node->details);
        node->details = NULL;
    }

    if (details == NULL || details->len == 0) {
        return;
    }

    node->details = ngx_slab_alloc_locked(z->shpool,
                            offsetof(ngx_http_idempotency_details_t, data)
                            + details->len);

    if (node->details) {
        node->details->len = (uint32_t) details->len;
        ngx_memcpy(node->details->data, details->data, details->len);
    }
}


/* empty if there are none, or no memory */

void
ngx_http_idempotency_zone_copy_details(ngx_http_idempotency_node_t *node,
    ngx_pool_t *pool, ngx_str_t *details)
{
    details->len = 0;

    if (node->details == NULL) {
        return;
    }

    details->data = ngx_pnalloc(pool, node->details->len);

    if (details->data) {
        details->len = node->details->len;
        ngx_memcpy(details->data, node->details->data, details->len);
    }
}


void
ngx_http_idempotency_zone_copy(ngx_http_idempotency_node_t *node, u_char *p)
{
    size_t                         left, n;
    ngx_http_idempotency_chunk_t  *chunk;

    left = node->size;

    n = ngx_min(left, NGX_HTTP_IDEMPOTENCY_NODE_ROOM);
    p = ngx_cpymem(p, node->data, n);
    left -= n;

    for (chunk = node->chunks; left; chunk = chunk->next) {
        n = ngx_http_idempotency_chunk_size(left)
            - NGX_HTTP_IDEMPOTENCY_CHUNK_HEAD;
        n = ngx_min(n, left);

        p = ngx_cpymem(p, chunk->data, n);
        left -= n;
    }
}


/*
 * It has all the room it needs before it is in the queue of those that give
 * way, so that it does not give way to itself.
 */

ngx_http_idempotency_node_t *
ngx_http_idempotency_zone_keep(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_op_t *op, ngx_msec_t until, ngx_msec_t expires)
{
    ngx_http_idempotency_node_t  *node;

    node = ngx_http_idempotency_zone_find(z, op->id);

    if (node) {
        ngx_http_idempotency_zone_remove(z, node);
    }

    node = ngx_http_idempotency_zone_insert(z, op->id, expires);
    if (node == NULL) {
        return NULL;
    }

    ngx_http_idempotency_zone_state(z, node, op->state, op->reason);
    node->claim = *op->claim;
    node->hold = op->hold;
    node->until = until;

    ngx_memcpy(node->token, op->token, NGX_HTTP_IDEMPOTENCY_TOKEN_LEN);

    if (op->state == NGX_HTTP_IDEMPOTENCY_COMPLETED) {

        if (ngx_http_idempotency_zone_put(z, node, op->response, op->size)
            != NGX_OK)
        {
            ngx_http_idempotency_zone_remove(z, node);
            return NULL;
        }

    } else {
        ngx_queue_insert_tail(&z->zone->completed, &node->completed);
    }

    ngx_http_idempotency_zone_details(z, node, &op->details);

    return node;
}


void
ngx_http_idempotency_zone_found(ngx_http_idempotency_node_t *node,
    ngx_http_idempotency_op_t *op)
{
    ngx_http_idempotency_found_t  *found;

    found = &op->found;

    op->result = NGX_HTTP_IDEMPOTENCY_FOUND;

    found->state = node->state;
    found->reason = node->reason;
    found->claim = node->claim;
    found->left = node->until - ngx_current_msec;
    found->verify = 0;
    found->response.len = 0;

    ngx_http_idempotency_zone_copy_details(node, op->pool, &found->details);

    if (node->state != NGX_HTTP_IDEMPOTENCY_COMPLETED) {
        return;
    }

    found->response.data = ngx_pnalloc(op->pool, node->size);

    if (found->response.data == NULL) {
        op->result = NGX_HTTP_IDEMPOTENCY_ERROR;
        op->error = "no memory for the response";
        op->bad_record = 1;
        return;
    }

    found->response.len = node->size;
    ngx_http_idempotency_zone_copy(node, found->response.data);
}


void
ngx_http_idempotency_zone_purge(ngx_http_idempotency_records_t *z,
    ngx_uint_t n)
{
    ngx_uint_t                    work;
    ngx_http_idempotency_node_t  *node;

    work = NGX_HTTP_IDEMPOTENCY_PURGE_WORK;

    while (n--) {
        node = ngx_http_idempotency_expiry_next(&z->zone->expiry, &work);

        if (node == NULL) {
            return;
        }

        (void) ngx_http_idempotency_zone_purge_node(z, node);
    }
}


/* 0 if it lives: then it is put where it belongs */

static ngx_uint_t
ngx_http_idempotency_zone_purge_node(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node)
{
    if ((ngx_msec_int_t) (node->expires - ngx_current_msec) > 0) {
        ngx_http_idempotency_zone_expire(z, node, node->expires);
        return 0;
    }

    ngx_http_idempotency_zone_remove(z, node);
    z->zone->expired++;

    return 1;
}


/* how large the next chunk is for so many bytes: a page, or a slab slot */

static size_t
ngx_http_idempotency_chunk_size(size_t size)
{
    size_t  slot;

    size += NGX_HTTP_IDEMPOTENCY_CHUNK_HEAD;

    if (size >= ngx_pagesize) {
        return ngx_pagesize;
    }

    for (slot = NGX_HTTP_IDEMPOTENCY_CHUNK_MIN; slot < size; slot *= 2) {
        /* void */
    }

    /* rather two chunks than a slot with more than an eighth of it empty */

    if (slot > NGX_HTTP_IDEMPOTENCY_CHUNK_MIN && slot - size > slot / 8) {
        slot /= 2;
    }

    return slot;
}


static void *
ngx_http_idempotency_zone_alloc(ngx_http_idempotency_records_t *z, size_t size)
{
    void  *p;

    p = ngx_slab_alloc_locked(z->shpool, size);

    return p ? p : ngx_http_idempotency_zone_make_room(z, size);
}


/*
 * Before a request is refused, what has expired is looked for to the end,
 * however long that takes
 */

static void *
ngx_http_idempotency_zone_make_room(ngx_http_idempotency_records_t *z,
    size_t size)
{
    void  *p;

    do {
        if (!ngx_http_idempotency_zone_purge_one(z,
                                              NGX_HTTP_IDEMPOTENCY_ROOM_WORK)
            && !ngx_http_idempotency_zone_evict(z)
            && !ngx_http_idempotency_zone_purge_one(z, (ngx_uint_t) -1))
        {
            return NULL;
        }

        p = ngx_slab_alloc_locked(z->shpool, size);

    } while (p == NULL);

    return p;
}


static ngx_uint_t
ngx_http_idempotency_zone_purge_one(ngx_http_idempotency_records_t *z,
    ngx_uint_t work)
{
    ngx_http_idempotency_node_t  *node;

    for ( ;; ) {
        node = ngx_http_idempotency_expiry_next(&z->zone->expiry, &work);

        if (node == NULL) {
            return 0;
        }

        if (ngx_http_idempotency_zone_purge_node(z, node)) {
            return 1;
        }
    }
}


static ngx_uint_t
ngx_http_idempotency_zone_evict(ngx_http_idempotency_records_t *z)
{
    ngx_queue_t                  *q;
    ngx_http_idempotency_node_t  *node;

    if (z->full == NGX_HTTP_IDEMPOTENCY_FULL_REFUSE
        || ngx_queue_empty(&z->zone->completed))
    {
        return 0;
    }

    q = ngx_queue_head(&z->zone->completed);
    node = ngx_queue_data(q, ngx_http_idempotency_node_t, completed);

    if ((ngx_msec_int_t) (node->expires - ngx_current_msec) <= 0) {
        return ngx_http_idempotency_zone_purge_node(z, node);
    }

    if (z->full == NGX_HTTP_IDEMPOTENCY_FULL_FORGET) {
        ngx_http_idempotency_zone_remove(z, node);
        z->zone->evicted++;
        return 1;
    }

    ngx_http_idempotency_zone_drop(z, node);

    ngx_http_idempotency_zone_state(z, node, NGX_HTTP_IDEMPOTENCY_UNUSABLE,
                                    NGX_HTTP_IDEMPOTENCY_REASON_EVICTED);

    z->zone->evicted++;

    return 1;
}


/* takes the response, or a part of it, from a record */

void
ngx_http_idempotency_zone_drop(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node)
{
    size_t                         left, n;
    ngx_http_idempotency_chunk_t  *chunk, *next;

    if (node->completed.next) {
        ngx_queue_remove(&node->completed);
        node->completed.next = NULL;
    }

    left = node->size;
    left -= ngx_min(left, NGX_HTTP_IDEMPOTENCY_NODE_ROOM);

    for (chunk = node->chunks; chunk; chunk = next) {
        next = chunk->next;

        n = ngx_http_idempotency_chunk_size(left);
        left -= ngx_min(left, n - NGX_HTTP_IDEMPOTENCY_CHUNK_HEAD);
        z->zone->bytes -= n;

        ngx_slab_free_locked(z->shpool, chunk);
    }

    node->chunks = NULL;
    node->size = 0;
}
