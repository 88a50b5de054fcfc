
/*
 * A zone of records in the configuration: its name and size, and its making
 * when nginx starts.  A reload finds it again, as long as its size is the
 * same; another size is refused, since it would forget every record.
 *
 * Called by the embedded store, and by the layers around the others, while
 * nginx reads the configuration.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <openssl/rand.h>

#include "store/memory/ngx_http_idempotency_zone.h"


/* a bucket for so many bytes of the zone: less than a record takes */
#define NGX_HTTP_IDEMPOTENCY_BUCKET_BYTES  512


static ngx_int_t ngx_http_idempotency_zone_init(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_int_t ngx_http_idempotency_zone_create(
    ngx_http_idempotency_records_t *z);


/*
 * The tag by which nginx knows that a zone is ours.  Not an address in this
 * module, as usual: a .so that was replaced is loaded to another address, and
 * a reload would then make the zone anew and forget every record.
 */
#define ngx_http_idempotency_zone_tag  ((void *) &ngx_http_core_module)


/* a zone of one kind is not taken for another after a reload, either */
#define ngx_http_idempotency_zone_magic(z)                                    \
    (NGX_HTTP_IDEMPOTENCY_ZONE_MAGIC + (uint32_t) (z)->full)


char *
ngx_http_idempotency_zone_parse(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_idempotency_records_t *z)
{
    u_char     *p;
    ngx_str_t   s;

    p = (u_char *) ngx_strchr(value->data, ':');

    if (p == NULL || p == value->data) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone \"%V\": it is <name>:<size>, "
                           "for example ledger:32m", value);
        return NGX_CONF_ERROR;
    }

    z->name.data = value->data;
    z->name.len = p - value->data;

    s.data = p + 1;
    s.len = value->data + value->len - s.data;

    return ngx_http_idempotency_zone_size(cf, &s, z);
}


char *
ngx_http_idempotency_zone_size(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_idempotency_records_t *z)
{
    z->size = ngx_parse_size(value);

    if (z->size == NGX_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid size \"%V\" of zone \"%V\": it is a "
                           "number with an optional k or m, "
                           "for example 32m", value, &z->name);
        return NGX_CONF_ERROR;
    }

    if (z->size < (ssize_t) (NGX_HTTP_IDEMPOTENCY_MIN_PAGES * ngx_pagesize)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is too small: %z bytes, it takes "
                           "at least %uz", &z->name, z->size,
                           (size_t) (NGX_HTTP_IDEMPOTENCY_MIN_PAGES
                                     * ngx_pagesize));
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_idempotency_zone_add(ngx_conf_t *cf,
    ngx_http_idempotency_records_t *z)
{
    ngx_uint_t        i;
    ngx_shm_zone_t   *zone;
    ngx_list_part_t  *part;

    /*
     * nginx itself would quietly make a zone of another size anew: nothing is
     * lost by that in one that may forget
     */

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

        if (z->full != NGX_HTTP_IDEMPOTENCY_FULL_FORGET
            && zone[i].tag == ngx_http_idempotency_zone_tag
            && zone[i].shm.name.len == z->name.len
            && ngx_strncmp(zone[i].shm.name.data, z->name.data, z->name.len)
               == 0
            && zone[i].shm.size != (size_t) z->size)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "the size of zone \"%V\" was changed from %uz "
                               "to %z bytes; a reload would forget every "
                               "record in it: keep the size, give the zone "
                               "a new name, or restart nginx",
                               &z->name, zone[i].shm.size, z->size);
            return NGX_CONF_ERROR;
        }
    }

    z->shm_zone = ngx_shared_memory_add(cf, &z->name, z->size,
                                        ngx_http_idempotency_zone_tag);
    if (z->shm_zone == NULL) {
        return NGX_CONF_ERROR;
    }

    if (z->shm_zone->init) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is already used by another store",
                           &z->name);
        return NGX_CONF_ERROR;
    }

    z->shm_zone->init = ngx_http_idempotency_zone_init;
    z->shm_zone->data = z;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_idempotency_zone_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_idempotency_records_t  *z;

    z = shm_zone->data;
    z->shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (data == NULL && !shm_zone->shm.exists) {
        return ngx_http_idempotency_zone_create(z);
    }

    /*
     * "data" belongs to the cycle before, and perhaps to another build of
     * this module: only what is in the zone itself is looked at
     */

    z->zone = z->shpool->data;

    if (z->zone == NULL
        || z->zone->magic != ngx_http_idempotency_zone_magic(z)
        || z->zone->version != NGX_HTTP_IDEMPOTENCY_ZONE_VERSION)
    {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "zone \"%V\" was laid out by another version of "
                      "ngx_http_idempotency_module, or for another use: "
                      "give the zone a new name, or restart nginx",
                      &shm_zone->shm.name);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/*
 * All of the zone is one allocation of its slab pool, which is not used again:
 * ..._room.c tells why.  In it stand the zone, the name for nginx's log, the
 * buckets, and then the memory of the records.
 */

static ngx_int_t
ngx_http_idempotency_zone_create(ngx_http_idempotency_records_t *z)
{
    size_t                        size;
    u_char                       *p, *end;
    ngx_str_t                    *name;
    ngx_uint_t                    n;
    ngx_http_idempotency_zone_t  *zone;

    /* that there is no room is an outcome here, with a message of its own */
    z->shpool->log_nomem = 0;

    /* pages in a row, as they are in a new pool */

    size = z->shpool->pfree * ngx_pagesize;

    p = ngx_slab_alloc(z->shpool, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    end = p + size;

    zone = (ngx_http_idempotency_zone_t *) p;
    ngx_memzero(zone, sizeof(ngx_http_idempotency_zone_t));
    p += sizeof(ngx_http_idempotency_zone_t);

    for (n = 64; n * NGX_HTTP_IDEMPOTENCY_BUCKET_BYTES < (size_t) z->size; ) {
        n *= 2;
    }

    p = ngx_align_ptr(p, NGX_ALIGNMENT);

    zone->buckets = (ngx_http_idempotency_node_t **) p;
    zone->mask = n - 1;
    p += n * sizeof(ngx_http_idempotency_node_t *);

    name = &z->shm_zone->shm.name;

    if ((size_t) (end - p) < sizeof(" in idempotency zone \"\"") + name->len) {
        return NGX_ERROR;
    }

    ngx_memzero(zone->buckets, n * sizeof(ngx_http_idempotency_node_t *));

    z->shpool->log_ctx = p;
    p = ngx_sprintf(p, " in idempotency zone \"%V\"%Z", name);

    ngx_http_idempotency_room_init(&zone->room, p, end - p);

    if (RAND_bytes(zone->nonce, sizeof(zone->nonce)) != 1) {
        return NGX_ERROR;
    }

    ngx_http_idempotency_expiry_init(&zone->expiry);
    ngx_queue_init(&zone->completed);
    ngx_queue_init(&zone->details);

    zone->magic = ngx_http_idempotency_zone_magic(z);
    zone->version = NGX_HTTP_IDEMPOTENCY_ZONE_VERSION;

    z->shpool->data = zone;
    z->zone = zone;

    return NGX_OK;
}
