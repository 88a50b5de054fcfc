
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The records of a zone: by id, by time of expiry, and in order of eviction.
 *
 * When there is no room, expired records are purged, then details are
 * evicted.  The next step depends on the use of the zone.  In the embedded
 * store no unexpired record is ever forgotten: the oldest completed records
 * lose their response, and the rest of the record still prevents a second
 * execution.  A cache evicts whole records, oldest first.  An outbox evicts
 * nothing and refuses new records.
 *
 * The zone is protected by shpool->mutex, the one lock that nginx's master
 * releases after a worker was killed.  The next worker that takes the lock
 * repairs the zone; the rules in the header make that possible.
 *
 * Called by the embedded store, the cache and the outbox.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_mutex.h"
#include "store/zone/ngx_http_idem_zone.h"


/*
 * Limits of work in the expiry wheel, in ticks and records: 512 ticks are
 * half a minute without a request, 2048 steps take some hundred microseconds.
 */
#define NGX_HTTP_IDEM_PURGE_WORK    512
#define NGX_HTTP_IDEM_ROOM_WORK     2048


static ngx_uint_t ngx_http_idem_zone_purge_item(
    ngx_http_idem_records_t *z, ngx_http_idem_item_t *item);
static void ngx_http_idem_zone_remove_expired(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item);
static void ngx_http_idem_zone_note(ngx_http_idem_zone_gone_t *gone,
    ngx_http_idem_item_t *item);
static ngx_uint_t ngx_http_idem_zone_evict_one(ngx_http_idem_records_t *z);


void
ngx_http_idem_zone_lock(ngx_http_idem_records_t *z)
{
    ngx_http_idem_mutex_lock(z->shpool);

    if (z->zone->busy) {
        ngx_http_idem_zone_repair(z);
    }

    z->zone->busy = 1;

    ngx_http_idem_zone_barrier();
}


void
ngx_http_idem_zone_unlock(ngx_http_idem_records_t *z)
{
    ngx_http_idem_zone_barrier();

    z->zone->busy = 0;

    ngx_http_idem_zone_barrier();

    ngx_http_idem_mutex_unlock(z->shpool);
}


static ngx_http_idem_item_t **
ngx_http_idem_zone_bucket(ngx_http_idem_records_t *z, u_char *id)
{
    uint32_t  hash;

    /* an id is a SHA-256: any of its bits will do */

    ngx_memcpy(&hash, id, sizeof(uint32_t));

    return &z->zone->buckets[hash & z->zone->mask];
}


ngx_http_idem_item_t *
ngx_http_idem_zone_find(ngx_http_idem_records_t *z, u_char *id)
{
    ngx_http_idem_item_t  *item;

    for (item = *ngx_http_idem_zone_bucket(z, id); item; item = item->next) {
        if (ngx_memcmp(item->id, id, NGX_HTTP_IDEM_ID_LEN) != 0) {
            continue;
        }

        if ((ngx_msec_int_t) (item->expires - ngx_current_msec) > 0) {
            return item;
        }

        ngx_http_idem_zone_remove_expired(z, item);
        return NULL;
    }

    return NULL;
}


ngx_http_idem_item_t *
ngx_http_idem_zone_insert(ngx_http_idem_records_t *z, u_char *id,
    ngx_msec_t expires)
{
    ngx_http_idem_item_t  *item;

    item = ngx_http_idem_zone_alloc(z, NGX_HTTP_IDEM_KIND_ITEM);
    if (item == NULL) {
        return NULL;
    }

    ngx_memzero(item, offsetof(ngx_http_idem_item_t, data));
    ngx_memcpy(item->id, id, NGX_HTTP_IDEM_ID_LEN);

    /* must not expire while it is written: an allocation would purge it */

    if ((ngx_msec_int_t) (expires - ngx_current_msec) <= 0) {
        expires = ngx_current_msec + 1;
    }

    item->expires = expires;
    ngx_http_idem_expiry_add(&z->zone->expiry, item);

    /* "records" is also read without the lock, to see if there are any */

    z->zone->records++;
    z->zone->states[item->state]++;

    return item;
}


void
ngx_http_idem_zone_link(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item)
{
    ngx_http_idem_item_t  **bucket;

    bucket = ngx_http_idem_zone_bucket(z, item->id);
    item->next = *bucket;

    ngx_http_idem_zone_barrier();

    *bucket = item;
}


void
ngx_http_idem_zone_change(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item)
{
    ngx_http_idem_undo_t  *undo;

    undo = &z->zone->undo;

    ngx_memcpy(undo->head, &item->expires, NGX_HTTP_IDEM_UNDO_HEAD);
    ngx_memcpy(undo->tail, item->token, NGX_HTTP_IDEM_UNDO_TAIL);

    ngx_http_idem_zone_barrier();

    undo->item = item;

    ngx_http_idem_zone_barrier();
}


void
ngx_http_idem_zone_changed(ngx_http_idem_records_t *z)
{
    ngx_http_idem_zone_barrier();

    z->zone->undo.item = NULL;

    ngx_http_idem_zone_barrier();
}


void
ngx_http_idem_zone_state(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_state_e state,
    ngx_http_idem_reason_e reason)
{
    z->zone->states[item->state]--;
    z->zone->states[state]++;

    item->reason = (uint8_t) reason;

    ngx_http_idem_zone_barrier();

    item->state = (uint8_t) state;
}


void
ngx_http_idem_zone_expire(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_msec_t expires)
{
    item->expires = expires;

    ngx_queue_remove(&item->expiry);
    ngx_http_idem_expiry_add(&z->zone->expiry, item);
}


void
ngx_http_idem_zone_remove(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item)
{
    ngx_http_idem_item_t  **p;

    /* a record that is being created is in no bucket yet */

    for (p = ngx_http_idem_zone_bucket(z, item->id); *p; p = &(*p)->next) {
        if (*p == item) {
            *p = item->next;
            break;
        }
    }

    ngx_http_idem_zone_barrier();

    z->zone->records--;
    z->zone->states[item->state]--;

    ngx_queue_remove(&item->expiry);

    ngx_http_idem_zone_details(z, item, NULL);
    ngx_http_idem_zone_free_response(z, item);

    ngx_http_idem_arena_free(&z->zone->arena, item);
}


void
ngx_http_idem_zone_requeue(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item)
{
    if (item->completed.next) {
        ngx_queue_remove(&item->completed);
    }

    ngx_http_idem_zone_append(&z->zone->completed, &item->completed);
}


void
ngx_http_idem_zone_append(ngx_queue_t *head, ngx_queue_t *q)
{
    q->prev = head->prev;
    q->next = head;

    ngx_http_idem_zone_barrier();

    head->prev->next = q;
    head->prev = q;
}


/*
 * The new record is complete before it replaces the old one.  It enters the
 * eviction queue only after all its memory is allocated, so that it is not
 * evicted to make room for itself.
 */

ngx_http_idem_item_t *
ngx_http_idem_zone_store(ngx_http_idem_records_t *z,
    ngx_http_idem_op_t *op, ngx_msec_t until, ngx_msec_t expires)
{
    ngx_http_idem_item_t  *item, *old;

    item = ngx_http_idem_zone_insert(z, op->id, expires);
    if (item == NULL) {
        return NULL;
    }

    item->claim = *op->claim;
    item->hold = op->hold;
    item->until = until;
    item->u.locked_until = op->locked_until;

    ngx_memcpy(item->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN);

    if (op->state == NGX_HTTP_IDEM_COMPLETED) {

        if (ngx_http_idem_zone_write(z, item, NULL, op->response, op->size, 0)
            != NGX_OK)
        {
            ngx_http_idem_zone_remove(z, item);
            return NULL;
        }
    }

    ngx_http_idem_zone_state(z, item, op->state, op->reason);
    ngx_http_idem_zone_details(z, item, &op->details);

    old = ngx_http_idem_zone_find(z, op->id);

    /* the new record comes first in its bucket and hides the old one */

    ngx_http_idem_zone_link(z, item);

    if (old) {
        ngx_http_idem_zone_remove(z, old);
    }

    if (item->completed.next == NULL) {
        ngx_http_idem_zone_requeue(z, item);
    }

    return item;
}


void
ngx_http_idem_zone_found_record(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op)
{
    ngx_http_idem_found_t  *found;

    found = &op->found;

    op->result = NGX_HTTP_IDEM_FOUND;

    found->state = item->state;
    found->reason = item->reason;
    found->claim = item->claim;
    found->left = item->until - ngx_current_msec;
    found->verify = 0;
    found->response.len = 0;

    ngx_http_idem_zone_copy_details(z, item, op->pool, NGX_MAX_SIZE_T_VALUE,
                                    &found->details);
}


void
ngx_http_idem_zone_found(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op)
{
    ngx_http_idem_found_t  *found;

    ngx_http_idem_zone_found_record(z, item, op);

    found = &op->found;

    if (item->state != NGX_HTTP_IDEM_COMPLETED) {
        return;
    }

    found->response.data = ngx_pnalloc(op->pool, item->size);

    if (found->response.data == NULL) {
        ngx_http_idem_op_bad_record(op, "no memory for the response");
        return;
    }

    if (ngx_http_idem_zone_read(z, item, found->response.data) != NGX_OK) {
        ngx_http_idem_op_bad_record(op, "the response is not whole");
        return;
    }

    found->response.len = item->size;
}


void
ngx_http_idem_zone_purge(ngx_http_idem_records_t *z, ngx_uint_t n)
{
    ngx_uint_t             work;
    ngx_http_idem_item_t  *item;

    work = NGX_HTTP_IDEM_PURGE_WORK;

    while (n--) {
        item = ngx_http_idem_expiry_next(&z->zone->expiry, &work);

        if (item == NULL) {
            return;
        }

        (void) ngx_http_idem_zone_purge_item(z, item);
    }
}


/* returns 0 if the record has not expired, and moves it to its queue */

static ngx_uint_t
ngx_http_idem_zone_purge_item(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item)
{
    if ((ngx_msec_int_t) (item->expires - ngx_current_msec) > 0) {
        ngx_http_idem_zone_expire(z, item, item->expires);
        return 0;
    }

    ngx_http_idem_zone_remove_expired(z, item);

    return 1;
}


/* a tombstone, left by a manual delete, does not count as a record */

static void
ngx_http_idem_zone_remove_expired(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item)
{
    ngx_uint_t  record;

    record = (item->reason != NGX_HTTP_IDEM_REASON_DELETED);

    if (record && z->gone) {
        ngx_http_idem_zone_note(z->gone, item);
    }

    ngx_http_idem_zone_remove(z, item);

    z->zone->expired += record;
}


/* the labels come first in the details, in their first chunk */

static void
ngx_http_idem_zone_note(ngx_http_idem_zone_gone_t *gone,
    ngx_http_idem_item_t *item)
{
    size_t                    len;
    ngx_http_idem_noted_t    *noted;
    ngx_http_idem_details_t  *d;
    ngx_http_idem_expired_t  *expired;

    if (gone->n == NGX_HTTP_IDEM_GONE_MAX) {
        gone->missed++;
        return;
    }

    noted = &gone->records[gone->n++];

    expired = &noted->expired;

    ngx_memcpy(noted->id, item->id, NGX_HTTP_IDEM_ID_LEN);

    expired->id = noted->id;
    expired->time = item->claim.time;
    expired->ttl = (item->state == NGX_HTTP_IDEM_IN_PROGRESS) ? 0
                                                              : item->u.ttl;
    expired->ago = ngx_current_msec
                   - (ngx_http_idem_zone_leased(item) ? item->expires
                                                      : item->until);
    expired->details.data = noted->labels;
    expired->details.len = 0;

    d = item->details;

    if (d) {
        len = ngx_http_idem_chunk_size(ngx_http_idem_details_size(d->len))
              - offsetof(ngx_http_idem_details_t, data);
        len = ngx_min(len, d->len);

        expired->details.len = ngx_min(len, NGX_HTTP_IDEM_LABELS_MAX);
        ngx_memcpy(noted->labels, d->data, expired->details.len);
    }
}


/*
 * Before a request is refused, the whole wheel is searched for expired
 * records, however long that takes.
 */

void *
ngx_http_idem_zone_alloc(ngx_http_idem_records_t *z, ngx_uint_t kind)
{
    void  *p;

    for ( ;; ) {
        p = ngx_http_idem_arena_alloc(&z->zone->arena, kind);

        if (p) {
            return p;
        }

        if (!ngx_http_idem_zone_purge_one(z, NGX_HTTP_IDEM_ROOM_WORK)
            && !ngx_http_idem_zone_evict_pieces(z)
            && !ngx_http_idem_zone_evict_details(z)
            && !ngx_http_idem_zone_evict_one(z)
            && !ngx_http_idem_zone_purge_one(z, (ngx_uint_t) -1))
        {
            return NULL;
        }
    }
}


ngx_uint_t
ngx_http_idem_zone_purge_one(ngx_http_idem_records_t *z, ngx_uint_t work)
{
    ngx_http_idem_item_t  *item;

    for ( ;; ) {
        item = ngx_http_idem_expiry_next(&z->zone->expiry, &work);

        if (item == NULL) {
            return 0;
        }

        if (ngx_http_idem_zone_purge_item(z, item)) {
            return 1;
        }
    }
}


static ngx_uint_t
ngx_http_idem_zone_evict_one(ngx_http_idem_records_t *z)
{
    ngx_queue_t           *q;
    ngx_http_idem_item_t  *item;

    if (z->full == NGX_HTTP_IDEM_FULL_REFUSE
        || ngx_queue_empty(&z->zone->completed))
    {
        return 0;
    }

    q = ngx_queue_head(&z->zone->completed);
    item = ngx_queue_data(q, ngx_http_idem_item_t, completed);

    if ((ngx_msec_int_t) (item->expires - ngx_current_msec) <= 0) {
        return ngx_http_idem_zone_purge_item(z, item);
    }

    z->zone->evicted++;

    if (z->full == NGX_HTTP_IDEM_FULL_FORGET) {
        ngx_http_idem_zone_remove(z, item);

    } else {
        ngx_http_idem_zone_evict(z, item);
    }

    return 1;
}


void
ngx_http_idem_zone_evict(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item)
{
    ngx_http_idem_zone_state(z, item, NGX_HTTP_IDEM_UNUSABLE,
                             NGX_HTTP_IDEM_REASON_EVICTED);

    ngx_http_idem_zone_barrier();

    ngx_http_idem_zone_free_response(z, item);
}
