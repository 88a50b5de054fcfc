
/*
 * The zone of the embedded store: records by id, in order of expiry, and
 * those with a response in order of age.
 *
 * No unexpired record is ever forgotten.  When there is no room, expired ones
 * are purged, then the oldest completed ones lose their response: what is
 * left of them still keeps a request from running twice.
 *
 * Only shpool->mutex guards it: the one lock that nginx's master frees after
 * a worker was killed.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <openssl/rand.h>

#include "store/memory/ngx_http_idempotency_memory.h"


#define NGX_HTTP_IDEMPOTENCY_ZONE_MAGIC    0x49445a31        /* "IDZ1" */
#define NGX_HTTP_IDEMPOTENCY_ZONE_VERSION  1

/* a bucket for so many bytes of the zone: less than a record takes */
#define NGX_HTTP_IDEMPOTENCY_BUCKET_BYTES  512

#define NGX_HTTP_IDEMPOTENCY_CHUNK_HEAD                                       \
    offsetof(ngx_http_idempotency_chunk_t, data)

#define NGX_HTTP_IDEMPOTENCY_CHUNK_MIN     64


static ngx_int_t ngx_http_idempotency_zone_init(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_int_t ngx_http_idempotency_zone_create(
    ngx_http_idempotency_memory_t *m);
static void *ngx_http_idempotency_zone_alloc(
    ngx_http_idempotency_memory_t *m, size_t size);
static ngx_uint_t ngx_http_idempotency_zone_purge_one(
    ngx_http_idempotency_memory_t *m);
static ngx_uint_t ngx_http_idempotency_zone_evict(
    ngx_http_idempotency_memory_t *m);
static size_t ngx_http_idempotency_chunk_size(size_t size);


/*
 * The tag by which nginx knows that a zone is ours.  Not an address in this
 * module, as usual: a .so that was replaced is loaded to another address, and
 * a reload would then make the zone anew and forget every record.
 */
#define ngx_http_idempotency_zone_tag  ((void *) &ngx_http_core_module)


char *
ngx_http_idempotency_zone_add(ngx_conf_t *cf, ngx_http_idempotency_memory_t *m)
{
    ngx_uint_t        i;
    ngx_shm_zone_t   *zone;
    ngx_list_part_t  *part;

    /* nginx itself would quietly make a zone of another size anew */

    part = &cf->cycle->old_cycle->shared_memory.part;
    zone = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                break;
            }

            part = part->next;
            zone = part->elts;
            i = 0;
        }

        if (zone[i].tag == ngx_http_idempotency_zone_tag
            && zone[i].shm.name.len == m->name.len
            && ngx_strncmp(zone[i].shm.name.data, m->name.data, m->name.len)
               == 0
            && zone[i].shm.size != (size_t) m->size)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "the size of zone \"%V\" was changed from %uz "
                               "to %z bytes; a reload would forget every "
                               "record in it: keep the size, give the zone "
                               "a new name, or restart nginx",
                               &m->name, zone[i].shm.size, m->size);
            return NGX_CONF_ERROR;
        }
    }

    m->shm_zone = ngx_shared_memory_add(cf, &m->name, m->size,
                                        ngx_http_idempotency_zone_tag);
    if (m->shm_zone == NULL) {
        return NGX_CONF_ERROR;
    }

    if (m->shm_zone->init) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is already used by another store",
                           &m->name);
        return NGX_CONF_ERROR;
    }

    m->shm_zone->init = ngx_http_idempotency_zone_init;
    m->shm_zone->data = m;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_idempotency_zone_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_idempotency_memory_t  *m;

    m = shm_zone->data;
    m->shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (data == NULL && !shm_zone->shm.exists) {
        return ngx_http_idempotency_zone_create(m);
    }

    /*
     * "data" belongs to the cycle before, and perhaps to another build of
     * this module: only what is in the zone itself is looked at
     */

    m->zone = m->shpool->data;

    if (m->zone == NULL
        || m->zone->magic != NGX_HTTP_IDEMPOTENCY_ZONE_MAGIC
        || m->zone->version != NGX_HTTP_IDEMPOTENCY_ZONE_VERSION)
    {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "zone \"%V\" was laid out by another version of "
                      "ngx_http_idempotency_module: give the zone a new "
                      "name, or restart nginx", &shm_zone->shm.name);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idempotency_zone_create(ngx_http_idempotency_memory_t *m)
{
    size_t                        len;
    ngx_uint_t                    n;
    ngx_http_idempotency_zone_t  *zone;

    zone = ngx_slab_calloc(m->shpool, sizeof(ngx_http_idempotency_zone_t));
    if (zone == NULL) {
        return NGX_ERROR;
    }

    for (n = 64; n * NGX_HTTP_IDEMPOTENCY_BUCKET_BYTES < (size_t) m->size; ) {
        n *= 2;
    }

    zone->buckets = ngx_slab_calloc(m->shpool,
                                 n * sizeof(ngx_http_idempotency_node_t *));
    if (zone->buckets == NULL) {
        return NGX_ERROR;
    }

    zone->mask = n - 1;

    if (RAND_bytes(zone->nonce, sizeof(zone->nonce)) != 1) {
        return NGX_ERROR;
    }

    ngx_rbtree_init(&zone->expiry, &zone->sentinel,
                    ngx_rbtree_insert_timer_value);
    ngx_queue_init(&zone->completed);

    len = sizeof(" in idempotency zone \"\"") + m->shm_zone->shm.name.len;

    m->shpool->log_ctx = ngx_slab_alloc(m->shpool, len);
    if (m->shpool->log_ctx == NULL) {
        return NGX_ERROR;
    }

    ngx_sprintf(m->shpool->log_ctx, " in idempotency zone \"%V\"%Z",
                &m->shm_zone->shm.name);

    /* that there is no room is an outcome here, with a message of its own */
    m->shpool->log_nomem = 0;

    zone->magic = NGX_HTTP_IDEMPOTENCY_ZONE_MAGIC;
    zone->version = NGX_HTTP_IDEMPOTENCY_ZONE_VERSION;

    m->shpool->data = zone;
    m->zone = zone;

    return NGX_OK;
}


static ngx_http_idempotency_node_t **
ngx_http_idempotency_zone_bucket(ngx_http_idempotency_memory_t *m, u_char *id)
{
    uint32_t  hash;

    /* an id is a SHA-256: any bits of it will do */

    ngx_memcpy(&hash, id, sizeof(uint32_t));

    return &m->zone->buckets[hash & m->zone->mask];
}


ngx_http_idempotency_node_t *
ngx_http_idempotency_zone_find(ngx_http_idempotency_memory_t *m, u_char *id)
{
    ngx_http_idempotency_node_t  *node;

    for (node = *ngx_http_idempotency_zone_bucket(m, id);
         node;
         node = node->next)
    {
        if (ngx_memcmp(node->id, id, NGX_HTTP_IDEMPOTENCY_ID_LEN) != 0) {
            continue;
        }

        if ((ngx_msec_int_t) (node->expires - ngx_current_msec) > 0) {
            return node;
        }

        ngx_http_idempotency_zone_remove(m, node);
        return NULL;
    }

    return NULL;
}


ngx_http_idempotency_node_t *
ngx_http_idempotency_zone_insert(ngx_http_idempotency_memory_t *m, u_char *id,
    ngx_msec_t expires)
{
    ngx_http_idempotency_node_t  *node, **bucket;

    node = ngx_http_idempotency_zone_alloc(m, NGX_HTTP_IDEMPOTENCY_NODE_SIZE);
    if (node == NULL) {
        return NULL;
    }

    ngx_memzero(node, offsetof(ngx_http_idempotency_node_t, data));
    ngx_memcpy(node->id, id, NGX_HTTP_IDEMPOTENCY_ID_LEN);

    bucket = ngx_http_idempotency_zone_bucket(m, id);
    node->next = *bucket;
    *bucket = node;

    node->expires = expires;
    node->expiry.key = expires;
    ngx_rbtree_insert(&m->zone->expiry, &node->expiry);

    m->zone->records++;

    return node;
}


void
ngx_http_idempotency_zone_expire(ngx_http_idempotency_memory_t *m,
    ngx_http_idempotency_node_t *node, ngx_msec_t expires)
{
    node->expires = expires;

    ngx_rbtree_delete(&m->zone->expiry, &node->expiry);
    node->expiry.key = expires;
    ngx_rbtree_insert(&m->zone->expiry, &node->expiry);
}


void
ngx_http_idempotency_zone_remove(ngx_http_idempotency_memory_t *m,
    ngx_http_idempotency_node_t *node)
{
    ngx_http_idempotency_node_t  **p;

    for (p = ngx_http_idempotency_zone_bucket(m, node->id);
         *p != node;
         p = &(*p)->next)
    {
        /* void */
    }

    *p = node->next;

    ngx_http_idempotency_zone_drop(m, node);
    ngx_http_idempotency_zone_details(m, node, NULL);
    ngx_rbtree_delete(&m->zone->expiry, &node->expiry);
    ngx_slab_free_locked(m->shpool, node);

    m->zone->records--;
}


/*
 * Stores a response; NGX_DECLINED if there is no room.  The node is not in
 * the queue of completed ones yet, so making room can't take it away.
 */

ngx_int_t
ngx_http_idempotency_zone_put(ngx_http_idempotency_memory_t *m,
    ngx_http_idempotency_node_t *node, ngx_chain_t *in, size_t size)
{
    u_char                         *p, *src;
    size_t                          left, room, n, len;
    ngx_http_idempotency_chunk_t   *chunk, **last;

    /* nothing is evicted for what would not fit anyway */

    if (size > m->shpool->pfree * ngx_pagesize + m->zone->bytes) {
        return NGX_DECLINED;
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

            chunk = ngx_http_idempotency_zone_alloc(m, n);
            if (chunk == NULL) {
                ngx_http_idempotency_zone_drop(m, node);
                return NGX_DECLINED;
            }

            chunk->next = NULL;
            *last = chunk;
            last = &chunk->next;

            m->zone->bytes += n;

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

    /* what fits into the node itself leaves no room by going */

    if (node->chunks) {
        ngx_queue_insert_tail(&m->zone->completed, &node->completed);
    }

    return NGX_OK;
}


/*
 * Sets or takes away what stands beside the claim.  Nothing gives way for it,
 * and without room there is none.
 */

void
ngx_http_idempotency_zone_details(ngx_http_idempotency_memory_t *m,
    ngx_http_idempotency_node_t *node, ngx_str_t *details)
{
    if (node->details) {
        ngx_slab_free_locked(m->shpool, node->details);
        node->details = NULL;
        node->details_len = 0;
    }

    if (details == NULL || details->len == 0) {
        return;
    }

    node->details = ngx_slab_alloc_locked(m->shpool, details->len);

    if (node->details) {
        node->details_len = (uint32_t) details->len;
        ngx_memcpy(node->details, details->data, details->len);
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


void
ngx_http_idempotency_zone_purge(ngx_http_idempotency_memory_t *m,
    ngx_uint_t n)
{
    while (n-- && ngx_http_idempotency_zone_purge_one(m)) { /* void */ }
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
ngx_http_idempotency_zone_alloc(ngx_http_idempotency_memory_t *m, size_t size)
{
    void  *p;

    for ( ;; ) {
        p = ngx_slab_alloc_locked(m->shpool, size);

        if (p) {
            return p;
        }

        if (!ngx_http_idempotency_zone_purge_one(m)
            && !ngx_http_idempotency_zone_evict(m))
        {
            return NULL;
        }
    }
}


static ngx_uint_t
ngx_http_idempotency_zone_purge_one(ngx_http_idempotency_memory_t *m)
{
    ngx_rbtree_node_t            *first;
    ngx_http_idempotency_node_t  *node;

    for ( ;; ) {

        if (m->zone->expiry.root == m->zone->expiry.sentinel) {
            return 0;
        }

        first = ngx_rbtree_min(m->zone->expiry.root,
                               m->zone->expiry.sentinel);

        if ((ngx_msec_int_t) ((ngx_msec_t) first->key - ngx_current_msec)
            > 0)
        {
            return 0;
        }

        node = ngx_rbtree_data(first, ngx_http_idempotency_node_t, expiry);

        if ((ngx_msec_int_t) (node->expires - ngx_current_msec) <= 0) {
            ngx_http_idempotency_zone_remove(m, node);
            return 1;
        }

        /* its lease was renewed, which leaves the tree as it is */

        ngx_rbtree_delete(&m->zone->expiry, &node->expiry);
        node->expiry.key = node->expires;
        ngx_rbtree_insert(&m->zone->expiry, &node->expiry);
    }
}


static ngx_uint_t
ngx_http_idempotency_zone_evict(ngx_http_idempotency_memory_t *m)
{
    ngx_queue_t                  *q;
    ngx_http_idempotency_node_t  *node;

    if (ngx_queue_empty(&m->zone->completed)) {
        return 0;
    }

    q = ngx_queue_head(&m->zone->completed);
    node = ngx_queue_data(q, ngx_http_idempotency_node_t, completed);

    ngx_http_idempotency_zone_drop(m, node);

    node->state = NGX_HTTP_IDEMPOTENCY_UNUSABLE;
    node->reason = NGX_HTTP_IDEMPOTENCY_REASON_EVICTED;

    m->zone->evicted++;

    return 1;
}


/* takes the response, or a part of it, from a record */

void
ngx_http_idempotency_zone_drop(ngx_http_idempotency_memory_t *m,
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
        m->zone->bytes -= n;

        ngx_slab_free_locked(m->shpool, chunk);
    }

    node->chunks = NULL;
    node->size = 0;
}
