
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A shared memory zone of records.  The embedded store is one; the cache and
 * the outbox of a remote store are others.
 *
 *   ..._zone_conf.c  its name and size in the configuration, its creation
 *   ..._zone.c       the records, the lock, eviction
 *   ..._bytes.c      the responses and the details of records
 *   ..._walk.c       the records as administrators see them
 *   ..._expiry.c     the records by time of expiry
 *   ..._arena.c      the memory allocator
 *   ..._repair.c     rebuilds the above after a worker died with the lock
 *
 * A worker can be killed at any instruction, and the next worker that takes
 * the lock has to find every record consistent.  So:
 *
 *   - Exactly the records that are linked in the buckets exist.  A record is
 *     linked, unlinked or replaced by one memory write, after it is complete.
 *   - Several members of a linked record are changed between
 *     ..._zone_change() and ..._zone_changed(): a kill in between undoes the
 *     changes.
 *   - Bytes are written before, and freed after, the pointer to them changes
 *     by one memory write.  The bytes of a record in progress, whose response
 *     is being written, are ignored until the record is completed.
 *   - Everything else (the wheel, queues, counters, free lists) is rebuilt
 *     from the buckets, and may be written in any order.
 */


#ifndef _NGX_HTTP_IDEM_ZONE_H_INCLUDED_
#define _NGX_HTTP_IDEM_ZONE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/ngx_http_idem_store.h"
#include "store/zone/ngx_http_idem_arena.h"


/* workers that can be woken: one bit each in the mask of a record */
#define NGX_HTTP_IDEM_WORKERS  64

#define NGX_HTTP_IDEM_ZONE_MAGIC    0x49445a31        /* "IDZ1" */
#define NGX_HTTP_IDEM_ZONE_VERSION  8

/* minimum size of a zone */
#define NGX_HTTP_IDEM_MIN_PAGES     16


/* what is evicted when the zone is full, after expired records */

typedef enum {
    NGX_HTTP_IDEM_FULL_EVICT = 0,            /* responses, oldest first */
    NGX_HTTP_IDEM_FULL_FORGET,               /* whole records, oldest first */
    NGX_HTTP_IDEM_FULL_REFUSE                /* nothing: the zone refuses */
} ngx_http_idem_full_e;


typedef struct ngx_http_idem_chunk_s  ngx_http_idem_chunk_t;
typedef struct ngx_http_idem_item_s   ngx_http_idem_item_t;
typedef struct ngx_http_idem_details_s
    ngx_http_idem_details_t;


/*
 * A kill loses no memory writes that were executed, and their order is that of
 * the program.  Only the compiler has to be kept from reordering them.
 */
#define ngx_http_idem_zone_barrier()                                          \
    __asm__ volatile ("" ::: "memory")


/*
 * A response is stored in chunks of at most one block: a zone that has been
 * in use for days has free blocks, but seldom many adjacent ones.
 */

struct ngx_http_idem_chunk_s {
    ngx_http_idem_chunk_t   *next;
    u_char                   data[1];
};


/*
 * The details stored beside a claim: their first chunk.  Details are evicted
 * before any response is, oldest first.
 */

struct ngx_http_idem_details_s {
    ngx_http_idem_chunk_t   *next;               /* as in any chunk */
    ngx_queue_t              queue;
    ngx_http_idem_item_t    *item;               /* the record they belong
                                                    to */
    uint32_t                 len;
    u_char                   data[1];
};


/*
 * A record.  begin allocates all of it, so that a commit can always at least
 * store that the request was executed.  The rest of the slot holds the first
 * bytes of the response.
 */

struct ngx_http_idem_item_s {

    /*
     * The first 64 bytes, a cache line: a lookup reads nothing else of the
     * other records in the bucket.
     */

    ngx_http_idem_item_t    *next;               /* in its bucket */
    u_char                   id[NGX_HTTP_IDEM_ID_LEN];
    ngx_msec_t               expires;
    ngx_msec_t               until;              /* in progress: end of the
                                                    lease; otherwise: end of
                                                    the ttl, after which only
                                                    the grace is left */
    ngx_http_idem_chunk_t   *chunks;

    ngx_queue_t              expiry;             /* in the expiry wheel */
    ngx_queue_t              completed;          /* in the eviction queue;
                                                    in "writing" until all
                                                    chunks are written */
    u_char                   token[NGX_HTTP_IDEM_TOKEN_LEN];
    union {
        uint64_t                    waiting;     /* in progress: workers to
                                                    wake */
        ngx_msec_t                  locked_until; /* in an outbox: end of the
                                                     lock, by our own clock */
        ngx_msec_t                  ttl;         /* not in progress; 0:
                                                    unknown */
    } u;
    ngx_http_idem_details_t *details;            /* beside the claim */
    ngx_http_idem_claim_t    claim;
    uint32_t                 size;               /* of the response, in
                                                    bytes */
    uint8_t                  state;
    uint8_t                  reason;
    uint8_t                  hold;
    uint8_t                  again;              /* in progress, and an
                                                    earlier holder may have
                                                    run */
    u_char                   data[1];
};


/* the size of the slot of a record */
#define NGX_HTTP_IDEM_ITEM_SIZE                                               \
    ((size_t) 1 << NGX_HTTP_IDEM_ITEM_SHIFT)

#define NGX_HTTP_IDEM_ITEM_ROOM                                               \
    (NGX_HTTP_IDEM_ITEM_SIZE                                                  \
     - offsetof(ngx_http_idem_item_t, data))


/* whether "until" is the end of a lease, and not of the record */
#define ngx_http_idem_zone_leased(item)                                       \
    ((item)->state == NGX_HTTP_IDEM_IN_PROGRESS                               \
     || ((item)->reason == NGX_HTTP_IDEM_REASON_UNKNOWN                       \
         && !(item)->hold))


/* the members that ..._zone_change() saves: all but the links and the id */

#define NGX_HTTP_IDEM_UNDO_HEAD                                               \
    (offsetof(ngx_http_idem_item_t, expiry)                                   \
     - offsetof(ngx_http_idem_item_t, expires))

#define NGX_HTTP_IDEM_UNDO_TAIL                                               \
    (offsetof(ngx_http_idem_item_t, data)                                     \
     - offsetof(ngx_http_idem_item_t, token))


/* the saved members of the record that is being changed */

typedef struct {
    ngx_http_idem_item_t    *item;               /* NULL: no change is under
                                                    way */
    u_char                   head[NGX_HTTP_IDEM_UNDO_HEAD];
    u_char                   tail[NGX_HTTP_IDEM_UNDO_TAIL];
} ngx_http_idem_undo_t;


/*
 * the last level covers two years; records that live longer pass it
 * repeatedly
 */
#define NGX_HTTP_IDEM_EXPIRY_LEVELS  5
#define NGX_HTTP_IDEM_EXPIRY_SLOTS   64


typedef struct {
    ngx_uint_t                      tick;        /* current tick */
    ngx_msec_t                      time;        /* start of the current
                                                    tick */
    ngx_queue_t                     due;
    ngx_queue_t                     slots[NGX_HTTP_IDEM_EXPIRY_LEVELS]
                                         [NGX_HTTP_IDEM_EXPIRY_SLOTS];
} ngx_http_idem_expiry_t;


/*
 * Resides in the zone, so its layout must not change while the zone exists.
 * The members that every operation uses come first, in two cache lines: the
 * worker that held the lock before has just written to them.
 */

typedef struct {
    uint32_t                 magic;
    uint32_t                 version;
    ngx_uint_t               busy;               /* a worker holds the lock,
                                                    or died with it */
    ngx_uint_t               mask;               /* buckets - 1 */
    ngx_http_idem_item_t   **buckets;
    ngx_queue_t              completed;          /* oldest first */
    ngx_uint_t               records;            /* in total; see also
                                                    "states" */
    size_t                   bytes;              /* of all chunks of
                                                    responses */
    ngx_uint_t               evicted;

    ngx_uint_t               states[NGX_HTTP_IDEM_UNUSABLE + 1];
    ngx_http_idem_arena_t    arena;
    ngx_http_idem_undo_t     undo;

    ngx_queue_t              writing;            /* records in progress with
                                                    some chunks */
    size_t                   writing_bytes;      /* part of "bytes" that can't
                                                    be evicted yet */

    ngx_queue_t              details;            /* oldest first */
    size_t                   details_bytes;
    ngx_uint_t               details_evicted;

    ngx_http_idem_expiry_t   expiry;

    ngx_uint_t               expired;
    ngx_msec_t               removed;            /* of a cache: time of the
                                                    last removal */
    ngx_uint_t               repaired;           /* number of repairs */
    u_char                   nonce[8];           /* part of the addresses of
                                                    the workers' sockets */
    ngx_pid_t                workers[NGX_HTTP_IDEM_WORKERS];
} ngx_http_idem_zone_t;


/*
 * Records that expired while the lock was held, collected in the memory of
 * the process.  Their events are logged after the lock is released.
 */

#define NGX_HTTP_IDEM_GONE_MAX  128

typedef struct {
    ngx_http_idem_expired_t  expired;            /* points to these: */
    u_char                   id[NGX_HTTP_IDEM_ID_LEN];
    u_char                   labels[NGX_HTTP_IDEM_LABELS_MAX];
} ngx_http_idem_noted_t;

typedef struct {
    ngx_uint_t               n;
    ngx_uint_t               missed;             /* records that did not fit */
    ngx_http_idem_noted_t    records[NGX_HTTP_IDEM_GONE_MAX];
} ngx_http_idem_zone_gone_t;


typedef struct {
    ngx_str_t                name;
    ssize_t                  size;
    ngx_http_idem_full_e     full;
    ngx_shm_zone_t          *shm_zone;
    ngx_http_idem_zone_t    *zone;
    ngx_slab_pool_t         *shpool;
    ngx_http_idem_zone_gone_t
                            *gone;               /* NULL: no events */
} ngx_http_idem_records_t;


/* ..._zone_conf.c */

/* parses "<name>:<size>" */
char *ngx_http_idem_zone_parse(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_idem_records_t *z);
char *ngx_http_idem_zone_size(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_idem_records_t *z);
char *ngx_http_idem_zone_add(ngx_conf_t *cf, ngx_http_idem_records_t *z);

/*
 * Calls "handler" for each zone of the previous configuration that this one
 * has dropped; dropped() is the handler for zones of records.
 */
typedef ngx_int_t (*ngx_http_idem_zone_left_pt)(ngx_conf_t *cf,
    ngx_shm_zone_t *old);

ngx_int_t ngx_http_idem_zones_left(ngx_conf_t *cf,
    ngx_http_idem_zone_left_pt handler);
ngx_int_t ngx_http_idem_zone_dropped(ngx_conf_t *cf, ngx_shm_zone_t *old);

/* name of an outbox zone: "<prefix>_<store>" */
#define NGX_HTTP_IDEM_OUTBOX_PREFIX  "idempotency_outbox"

/* ..._zone.c */

/* repairs the zone first if a worker died with the lock */
void ngx_http_idem_zone_lock(ngx_http_idem_records_t *z);
void ngx_http_idem_zone_unlock(ngx_http_idem_records_t *z);

/* called with the zone locked */

ngx_http_idem_item_t *ngx_http_idem_zone_find(
    ngx_http_idem_records_t *z, u_char *id);

/*
 * insert() creates a record that lookups can't find yet; link() makes a
 * complete record visible
 */
ngx_http_idem_item_t *ngx_http_idem_zone_insert(
    ngx_http_idem_records_t *z, u_char *id, ngx_msec_t expires);
void ngx_http_idem_zone_link(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item);

/*
 * Members of a linked record are changed between these calls, of one record
 * at a time.  Nothing may be allocated or freed in between.
 */
void ngx_http_idem_zone_change(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item);
void ngx_http_idem_zone_changed(ngx_http_idem_records_t *z);

void ngx_http_idem_zone_state(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_state_e state,
    ngx_http_idem_reason_e reason);
void ngx_http_idem_zone_expire(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_msec_t expires);
void ngx_http_idem_zone_remove(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item);

/* drops the response; the record still says that the request was executed */
void ngx_http_idem_zone_evict(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item);

/* the queue is consistent from head to tail at any time, so a repair can keep
   its order */
void ngx_http_idem_zone_append(ngx_queue_t *head, ngx_queue_t *q);

/* moves the record to the end of the eviction queue */
void ngx_http_idem_zone_requeue(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item);

/* allocates a slot, evicting if necessary */
void *ngx_http_idem_zone_alloc(ngx_http_idem_records_t *z, ngx_uint_t kind);

/* removes one expired record; 0: none was found within "work" steps */
ngx_uint_t ngx_http_idem_zone_purge_one(
    ngx_http_idem_records_t *z, ngx_uint_t work);

/* checks up to n records that may have expired */
void ngx_http_idem_zone_purge(ngx_http_idem_records_t *z, ngx_uint_t n);

/*
 * Stores a record as a commit has it, replacing any record with the same id,
 * at the end of the eviction queue.  NULL: there is no room.
 */
ngx_http_idem_item_t *ngx_http_idem_zone_store(ngx_http_idem_records_t *z,
    ngx_http_idem_op_t *op, ngx_msec_t until, ngx_msec_t expires);

/* fills the result of a begin that found a completed or unusable record */
void ngx_http_idem_zone_found(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op);

/* ... without the response */
void ngx_http_idem_zone_found_record(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op);


/* ..._bytes.c: called with the zone locked */

/*
 * A response that is copied into a record, or out of one, in pieces.  The
 * zone is unlocked between two pieces.  If the record has changed meanwhile,
 * the copy starts again.  Zeroed at first.
 */

typedef struct {
    ngx_chain_t             *in;                 /* source of the next bytes */
    u_char                  *pos;
    size_t                   len;
    u_char                  *out;                /* or their destination */

    ngx_http_idem_chunk_t   *first;              /* first chunk of the
                                                    record */
    ngx_http_idem_chunk_t   *chunk;              /* last chunk that was
                                                    written, or next chunk to
                                                    read */
    size_t                   bytes;              /* in chunks so far */
    size_t                   size;
    size_t                   left;
    ngx_msec_t               time;               /* for the caller */
    ngx_msec_t               expires;
    u_char                   token[NGX_HTTP_IDEM_TOKEN_LEN];
} ngx_http_idem_copy_t;

/*
 * Writes about "piece" more bytes into a record in progress, which the caller
 * completes after the last; without a copy, all bytes.  NGX_AGAIN: there is
 * more to write; NGX_DECLINED: there is no room, and all pieces were freed.
 */
ngx_int_t ngx_http_idem_zone_write(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_copy_t *copy, ngx_chain_t *in,
    size_t size, size_t piece);

/* reads about "piece" more bytes of a completed record; NGX_ERROR: corrupt */
ngx_int_t ngx_http_idem_zone_read_piece(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_copy_t *copy, size_t piece);

/* whether "copy" has read pieces of this very response */
ngx_uint_t ngx_http_idem_zone_copy_valid(ngx_http_idem_item_t *item,
    ngx_http_idem_copy_t *copy);

/* frees the pieces of a record whose lease expired; 0: there are none */
ngx_uint_t ngx_http_idem_zone_evict_pieces(ngx_http_idem_records_t *z);

/* frees the pieces of a record in progress before its state changes */
#define ngx_http_idem_zone_free_pieces(z, item)                               \
    if ((item)->size) {                                                       \
        ngx_http_idem_zone_free_response(z, item);                            \
    }

/* frees the response of a record that is not completed (any more) */
void ngx_http_idem_zone_free_response(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item);

/* NGX_ERROR: the response is corrupt */
ngx_int_t ngx_http_idem_zone_read(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, u_char *p);

void ngx_http_idem_zone_details(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_str_t *details);
void ngx_http_idem_zone_copy_details(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_pool_t *pool, size_t max,
    ngx_str_t *details);

/* evicts the oldest details; 0: there are none */
ngx_uint_t ngx_http_idem_zone_evict_details(ngx_http_idem_records_t *z);

/* the size of the next chunk if this many bytes are left */
size_t ngx_http_idem_chunk_size(size_t size);

#define NGX_HTTP_IDEM_CHUNK_HEAD                                              \
    offsetof(ngx_http_idem_chunk_t, data)

/* bytes in the chunks of details, with their header */
#define ngx_http_idem_details_size(len)                                       \
    ngx_max(offsetof(ngx_http_idem_details_t, data) + (len)                   \
            - NGX_HTTP_IDEM_CHUNK_HEAD,                                       \
            64 - NGX_HTTP_IDEM_CHUNK_HEAD)


/* ..._walk.c */

/*
 * called with the zone locked; entry() returns NULL: no memory, op->result
 * set
 */
ngx_uint_t ngx_http_idem_zone_visible(ngx_http_idem_item_t *item);
ngx_http_idem_entry_t *ngx_http_idem_zone_entry(
    ngx_http_idem_records_t *z, ngx_http_idem_item_t *item,
    ngx_http_idem_op_t *op);

/* adds a slice to op->list; takes the lock itself */
ngx_uint_t ngx_http_idem_zone_walk(ngx_http_idem_records_t *z,
    ngx_http_idem_op_t *op, ngx_uint_t bucket);


/* ..._repair.c: called with the zone locked */

void ngx_http_idem_zone_repair(ngx_http_idem_records_t *z);

/* whether the record belongs in the eviction queue */
#define ngx_http_idem_zone_queued(z, item)                                    \
    ((z)->full != NGX_HTTP_IDEM_FULL_EVICT                                    \
     || ((item)->state == NGX_HTTP_IDEM_COMPLETED && (item)->chunks))


/* ..._expiry.c: called with the zone locked */

void ngx_http_idem_expiry_init(ngx_http_idem_expiry_t *expiry);
void ngx_http_idem_expiry_add(ngx_http_idem_expiry_t *expiry,
    ngx_http_idem_item_t *item);

/*
 * Returns the next record that may have expired, and leaves it in the wheel.
 * NULL: there is none, or "work" is used up.  Each returned record and each
 * tick count as one unit of work.
 */
ngx_http_idem_item_t *ngx_http_idem_expiry_next(
    ngx_http_idem_expiry_t *expiry, ngx_uint_t *work);


#endif /* _NGX_HTTP_IDEM_ZONE_H_INCLUDED_ */
