
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A shared memory zone of records: the embedded store is one, and what is
 * kept in this nginx of a store that is elsewhere:
 *
 *   ..._zone_conf.c  its name and size in the configuration, and its making
 *   ..._zone.c       the records, the lock, and what gives way
 *   ..._bytes.c      the bytes of a record: its response, and its details
 *   ..._walk.c       the records as people see them
 *   ..._expiry.c     the records by the time of their expiry
 *   ..._room.c       the memory of all this
 *   ..._repair.c     all this again, after a worker was killed with the lock
 *
 * A worker can be killed at any instruction, and the next one that takes the
 * lock has to find every record whole.  So:
 *
 *   - what is linked in the buckets is there, and nothing else: a record is
 *     linked, taken out or replaced by one store, when it is complete;
 *   - several members of a record that is linked are changed between
 *     ..._zone_change() and ..._zone_changed(): a kill in between undoes it;
 *   - bytes are written before, and freed after, what refers to them is
 *     changed, by one store; those of a record in progress, which is being
 *     filled, count for nothing before it is completed;
 *   - everything else (the wheel, queues, counters, what is free) is made anew
 *     from the buckets.  It may be in any order.
 */


#ifndef _NGX_HTTP_IDEM_ZONE_H_INCLUDED_
#define _NGX_HTTP_IDEM_ZONE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/ngx_http_idem_store.h"
#include "store/zone/ngx_http_idem_room.h"


/* workers that can be woken: bits of a record's mask */
#define NGX_HTTP_IDEM_WORKERS  64

#define NGX_HTTP_IDEM_ZONE_MAGIC    0x49445a31        /* "IDZ1" */
#define NGX_HTTP_IDEM_ZONE_VERSION  7

/* a zone has at least so many */
#define NGX_HTTP_IDEM_MIN_PAGES     16


/* what gives way when there is no room; expired records always do */

typedef enum {
    NGX_HTTP_IDEM_FULL_EVICT = 0,            /* responses, the oldest first */
    NGX_HTTP_IDEM_FULL_FORGET,               /* whole records               */
    NGX_HTTP_IDEM_FULL_REFUSE                /* nothing                     */
} ngx_http_idem_full_e;


typedef struct ngx_http_idem_chunk_s  ngx_http_idem_chunk_t;
typedef struct ngx_http_idem_node_s   ngx_http_idem_node_t;
typedef struct ngx_http_idem_details_s
    ngx_http_idem_details_t;


/*
 * Stores of a killed worker are all there, in the order of the program: only
 * the compiler must not change it.
 */
#define ngx_http_idem_zone_barrier()                                          \
    __asm__ volatile ("" ::: "memory")


/*
 * A response is kept in chunks of at most a block: a zone in use for days has
 * free blocks, but seldom many in a row.
 */

struct ngx_http_idem_chunk_s {
    ngx_http_idem_chunk_t   *next;
    u_char                   data[1];
};


/*
 * What stands beside a claim: the first of its chunks.  It gives way before
 * any response does, the oldest first.
 */

struct ngx_http_idem_details_s {
    ngx_http_idem_chunk_t   *next;               /* as of any chunk         */
    ngx_queue_t              queue;
    ngx_http_idem_node_t    *node;               /* whose they are          */
    uint32_t                 len;
    u_char                   data[1];
};


/*
 * A record.  Allocated whole by begin, so that a commit can always at least
 * say that it ran.  What is left of its slot holds the first bytes of the
 * response.
 */

struct ngx_http_idem_node_s {

    /* the first 64 bytes, a cache line: all that looking for a record reads
       of those that it is not */

    ngx_http_idem_node_t    *next;               /* in its bucket           */
    u_char                   id[NGX_HTTP_IDEM_ID_LEN];
    ngx_msec_t               expires;
    ngx_msec_t               until;              /* of the lease if it is in
                                                    progress; otherwise then
                                                    only its expiry is
                                                    remembered              */
    ngx_http_idem_chunk_t   *chunks;

    ngx_queue_t              expiry;             /* in the wheel            */
    ngx_queue_t              completed;          /* if it has chunks; in
                                                    "fills" as long as they
                                                    are not all there       */
    u_char                   token[NGX_HTTP_IDEM_TOKEN_LEN];
    union {
        uint64_t                    waiting;     /* workers to be woken     */
        ngx_msec_t                  locked_until; /* in an outbox: its lock,
                                                    by our own clock        */
        ngx_msec_t                  ttl;         /* ... not in progress any
                                                    more; 0: not known      */
    } u;
    ngx_http_idem_details_t *details;            /* beside the claim        */
    ngx_http_idem_claim_t    claim;
    uint32_t                 size;               /* of the response         */
    uint8_t                  state;
    uint8_t                  reason;
    uint8_t                  hold;
    uint8_t                  again;              /* in progress, and may have
                                                    run before              */
    u_char                   data[1];
};


/* the slot that a node fills */
#define NGX_HTTP_IDEM_NODE_SIZE                                               \
    ((size_t) 1 << NGX_HTTP_IDEM_NODE_SHIFT)

#define NGX_HTTP_IDEM_NODE_ROOM                                               \
    (NGX_HTTP_IDEM_NODE_SIZE                                                  \
     - offsetof(ngx_http_idem_node_t, data))


/* what ..._zone_change() lets be changed: all but its links and its id */

#define NGX_HTTP_IDEM_UNDO_HEAD                                               \
    (offsetof(ngx_http_idem_node_t, expiry)                                   \
     - offsetof(ngx_http_idem_node_t, expires))

#define NGX_HTTP_IDEM_UNDO_TAIL                                               \
    (offsetof(ngx_http_idem_node_t, data)                                     \
     - offsetof(ngx_http_idem_node_t, token))


/* a record as it was before it was changed */

typedef struct {
    ngx_http_idem_node_t    *node;               /* NULL: none is changed   */
    u_char                   head[NGX_HTTP_IDEM_UNDO_HEAD];
    u_char                   tail[NGX_HTTP_IDEM_UNDO_TAIL];
} ngx_http_idem_undo_t;


/* the last level is of two years: what lives longer goes round again */
#define NGX_HTTP_IDEM_EXPIRY_LEVELS  5
#define NGX_HTTP_IDEM_EXPIRY_SLOTS   64


typedef struct {
    ngx_uint_t                      tick;        /* the one that runs       */
    ngx_msec_t                      time;        /* when it began           */
    ngx_queue_t                     due;
    ngx_queue_t                     slots[NGX_HTTP_IDEM_EXPIRY_LEVELS]
                                         [NGX_HTTP_IDEM_EXPIRY_SLOTS];
} ngx_http_idem_expiry_t;


/*
 * Lives in the zone; its form is as durable as the zone itself.  It begins
 * with what each operation has to do with, on two cache lines: the worker that
 * had the lock before has written to them.
 */

typedef struct {
    uint32_t                 magic;
    uint32_t                 version;
    ngx_uint_t               busy;               /* somebody has the lock, or
                                                    had it when he died     */
    ngx_uint_t               mask;               /* buckets - 1             */
    ngx_http_idem_node_t   **buckets;
    ngx_queue_t              completed;          /* oldest first            */
    ngx_uint_t               records;            /* all, and by their state */
    size_t                   bytes;              /* of responses, in chunks */
    ngx_uint_t               evicted;

    ngx_uint_t               states[NGX_HTTP_IDEM_UNUSABLE + 1];
    ngx_http_idem_room_t     room;
    ngx_http_idem_undo_t     undo;

    ngx_queue_t              fills;              /* in progress, and some of
                                                    their chunks are there  */
    size_t                   filling;            /* of "bytes": can't give way
                                                    as long as they do      */

    ngx_queue_t              details;            /* oldest first            */
    size_t                   details_bytes;
    ngx_uint_t               details_dropped;

    ngx_http_idem_expiry_t   expiry;

    ngx_uint_t               expired;
    ngx_uint_t               repaired;           /* so often                */
    u_char                   nonce[8];           /* in the address of the
                                                    workers' sockets        */
    ngx_pid_t                workers[NGX_HTTP_IDEM_WORKERS];
} ngx_http_idem_zone_t;


/*
 * Records that expired while the lock was held, noted for who tells of them
 * when it was given back; of a process.
 */

#define NGX_HTTP_IDEM_GONE_MAX  128

typedef struct {
    u_char                   id[NGX_HTTP_IDEM_ID_LEN];
    uint64_t                 time;               /* its request came        */
    ngx_msec_t               ttl;                /* 0: not known            */
    ngx_msec_t               ago;                /* since it was over       */
    size_t                   len;
    u_char                   labels[NGX_HTTP_IDEM_LABELS_MAX];
} ngx_http_idem_noted_t;

typedef struct {
    ngx_uint_t               n;
    ngx_uint_t               missed;             /* there was no room for   */
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
                            *gone;               /* NULL: nobody tells      */
} ngx_http_idem_records_t;


/* ..._zone_conf.c */

/* "<name>:<size>" */
char *ngx_http_idem_zone_parse(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_idem_records_t *z);
char *ngx_http_idem_zone_size(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_idem_records_t *z);
char *ngx_http_idem_zone_add(ngx_conf_t *cf, ngx_http_idem_records_t *z);

/* with those of the configuration before */
ngx_int_t ngx_http_idem_zones_left(ngx_conf_t *cf);
ngx_uint_t ngx_http_idem_zone_declared(ngx_conf_t *cf, ngx_str_t *name);

/* one after the other, of a cycle's shared_memory.part; "i" is 0 at first */
ngx_shm_zone_t *ngx_http_idem_zone_next(ngx_list_part_t **part,
    ngx_uint_t *i);

/* of an outbox: "<prefix>_<store>" */
#define NGX_HTTP_IDEM_OUTBOX_PREFIX  "idempotency_outbox"

/* ..._zone.c */

/* whoever locks it finds it whole: it is repaired first, if need be */
void ngx_http_idem_zone_lock(ngx_http_idem_records_t *z);
void ngx_http_idem_zone_unlock(ngx_http_idem_records_t *z);

/* called with the zone locked */

ngx_http_idem_node_t *ngx_http_idem_zone_find(
    ngx_http_idem_records_t *z, u_char *id);

/* a record that nobody finds before it is linked, when it is complete */
ngx_http_idem_node_t *ngx_http_idem_zone_insert(
    ngx_http_idem_records_t *z, u_char *id, ngx_msec_t expires);
void ngx_http_idem_zone_link(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node);

/*
 * Members of a record that is linked are changed in between; one at a time.
 * Nothing is allocated or freed meanwhile.
 */
void ngx_http_idem_zone_change(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node);
void ngx_http_idem_zone_changed(ngx_http_idem_records_t *z);

void ngx_http_idem_zone_state(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, ngx_http_idem_state_e state,
    ngx_http_idem_reason_e reason);
void ngx_http_idem_zone_expire(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, ngx_msec_t expires);
void ngx_http_idem_zone_remove(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node);

/* the record stays and says that it ran, without its response */
void ngx_http_idem_zone_evict(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node);

/* the record goes behind the others that may have to give way */
void ngx_http_idem_zone_requeue(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node);

/* memory; others give way for it */
void *ngx_http_idem_zone_alloc(ngx_http_idem_records_t *z, ngx_uint_t kind);

/* one record that has expired is taken out, after that much work at most */
ngx_uint_t ngx_http_idem_zone_purge_one(
    ngx_http_idem_records_t *z, ngx_uint_t work);

/* looks at so many whose time may have come */
void ngx_http_idem_zone_purge(ngx_http_idem_records_t *z, ngx_uint_t n);

/*
 * A record as a commit has it, in place of what is there; NULL if there is
 * no room.  It stands behind those that were kept before.
 */
ngx_http_idem_node_t *ngx_http_idem_zone_keep(ngx_http_idem_records_t *z,
    ngx_http_idem_op_t *op, ngx_msec_t until, ngx_msec_t expires);

/* what begin tells of a record that is completed or unusable */
void ngx_http_idem_zone_found(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, ngx_http_idem_op_t *op);

/* ... but for its response */
void ngx_http_idem_zone_found_record(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, ngx_http_idem_op_t *op);


/* ..._bytes.c: called with the zone locked */

/*
 * A response that goes into a record, or out of one, in pieces.  The zone is
 * not locked between two of them: whatever becomes of the record meanwhile is
 * noticed, and it begins again.  Zeroed at first.
 */

typedef struct {
    ngx_chain_t             *in;                 /* where the next bytes come
                                                    from                    */
    u_char                  *pos;
    size_t                   len;
    u_char                  *out;                /* ... or go to            */

    ngx_http_idem_chunk_t   *first;              /* of the record           */
    ngx_http_idem_chunk_t   *chunk;              /* the last one that is
                                                    filled, or the next that
                                                    is read                 */
    size_t                   bytes;              /* of the chunks so far    */
    size_t                   size;
    size_t                   left;
    ngx_msec_t               time;               /* the caller's            */
    ngx_msec_t               expires;
    u_char                   token[NGX_HTTP_IDEM_TOKEN_LEN];
} ngx_http_idem_copy_t;

/*
 * About so many bytes more into a record that is in progress, and completed
 * by the caller when all are there.  NGX_AGAIN: there are more; NGX_DECLINED:
 * there is no room, and the record has none of them.
 */
ngx_int_t ngx_http_idem_zone_fill(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, ngx_http_idem_copy_t *copy, ngx_chain_t *in,
    size_t size, size_t piece);

/* ... and out of one that is completed, to copy->out.  NGX_ERROR: see below */
ngx_int_t ngx_http_idem_zone_read(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, ngx_http_idem_copy_t *copy, size_t piece);

/* whether that is the response of which pieces were read before */
ngx_uint_t ngx_http_idem_zone_reads(ngx_http_idem_node_t *node,
    ngx_http_idem_copy_t *copy);

/* the pieces of one whose holder is gone make room; 0: there are none */
ngx_uint_t ngx_http_idem_zone_drop_fill(ngx_http_idem_records_t *z);

/* a record in progress is to become something else: its pieces go first */
#define ngx_http_idem_zone_unfill(z, node)                                    \
    if ((node)->size) {                                                       \
        ngx_http_idem_zone_drop(z, node);                                     \
    }

/*
 * Stores a response in a record that has none and is not completed yet;
 * NGX_DECLINED if there is no room.
 */
ngx_int_t ngx_http_idem_zone_put(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, ngx_chain_t *in, size_t size);

/* takes the response from a record that is not completed any more */
void ngx_http_idem_zone_drop(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node);

/* NGX_ERROR: it is not whole */
ngx_int_t ngx_http_idem_zone_copy(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, u_char *p);

void ngx_http_idem_zone_details(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, ngx_str_t *details);
void ngx_http_idem_zone_copy_details(ngx_http_idem_records_t *z,
    ngx_http_idem_node_t *node, ngx_pool_t *pool, size_t max,
    ngx_str_t *details);

/* the oldest details give way; 0: there are none */
ngx_uint_t ngx_http_idem_zone_drop_details(ngx_http_idem_records_t *z);

/* how large the next chunk is for so many bytes: a block, or a slot */
size_t ngx_http_idem_chunk_size(size_t size);

#define NGX_HTTP_IDEM_CHUNK_HEAD                                              \
    offsetof(ngx_http_idem_chunk_t, data)

/* the bytes of the chunks of details, the head included */
#define ngx_http_idem_details_size(len)                                       \
    ngx_max(offsetof(ngx_http_idem_details_t, data) + (len)                   \
            - NGX_HTTP_IDEM_CHUNK_HEAD,                                       \
            64 - NGX_HTTP_IDEM_CHUNK_HEAD)


/* ..._walk.c */

/* called with the zone locked; NULL: no memory, op->result says so */
ngx_uint_t ngx_http_idem_zone_visible(ngx_http_idem_node_t *node);
ngx_http_idem_entry_t *ngx_http_idem_zone_entry(
    ngx_http_idem_records_t *z, ngx_http_idem_node_t *node,
    ngx_http_idem_op_t *op);

/* a slice into op->list, under the lock for as long as that takes */
ngx_uint_t ngx_http_idem_zone_walk(ngx_http_idem_records_t *z,
    ngx_http_idem_op_t *op, ngx_uint_t bucket);


/* ..._repair.c: called with the zone locked */

void ngx_http_idem_zone_repair(ngx_http_idem_records_t *z);

/* whether it stands in the queue of those that may have to give way */
#define ngx_http_idem_zone_queued(z, node)                                    \
    ((z)->full != NGX_HTTP_IDEM_FULL_EVICT                                    \
     || ((node)->state == NGX_HTTP_IDEM_COMPLETED && (node)->chunks))


/* ..._expiry.c: called with the zone locked */

void ngx_http_idem_expiry_init(ngx_http_idem_expiry_t *expiry);
void ngx_http_idem_expiry_add(ngx_http_idem_expiry_t *expiry,
    ngx_http_idem_node_t *node);

/*
 * The next whose time may have come; it is left where it is.  NULL: there is
 * none, or that was all the "work" there may be.  A record that comes up and a
 * tick that is over are one each.
 */
ngx_http_idem_node_t *ngx_http_idem_expiry_next(
    ngx_http_idem_expiry_t *expiry, ngx_uint_t *work);


#endif /* _NGX_HTTP_IDEM_ZONE_H_INCLUDED_ */
