
/*
 * A shared memory zone of records: the embedded store is one, and what is
 * kept in this nginx of a store that is elsewhere.  Three files:
 *
 *   ..._zone_conf.c  its name and size in the configuration, and its making
 *   ..._zone.c       the records: their bytes, and what gives way
 *   ..._expiry.c     the records by the time of their expiry
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_ZONE_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_ZONE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/ngx_http_idempotency_store.h"


/* workers that can be woken: bits of a record's mask */
#define NGX_HTTP_IDEMPOTENCY_WORKERS  64

#define NGX_HTTP_IDEMPOTENCY_ZONE_MAGIC    0x49445a31        /* "IDZ1" */
#define NGX_HTTP_IDEMPOTENCY_ZONE_VERSION  5

/* a zone has at least so many */
#define NGX_HTTP_IDEMPOTENCY_MIN_PAGES     16


/* what gives way when there is no room; expired records always do */

typedef enum {
    NGX_HTTP_IDEMPOTENCY_FULL_EVICT = 0,     /* responses, the oldest first */
    NGX_HTTP_IDEMPOTENCY_FULL_FORGET,        /* whole records               */
    NGX_HTTP_IDEMPOTENCY_FULL_REFUSE         /* nothing                     */
} ngx_http_idempotency_full_e;


typedef struct ngx_http_idempotency_chunk_s  ngx_http_idempotency_chunk_t;
typedef struct ngx_http_idempotency_node_s   ngx_http_idempotency_node_t;


/*
 * A response is kept in chunks of at most a page: a zone in use for days has
 * free pages, but seldom many in a row.
 */

struct ngx_http_idempotency_chunk_s {
    ngx_http_idempotency_chunk_t   *next;
    u_char                          data[1];
};


/* what stands beside a claim */

typedef struct {
    uint32_t                        len;
    u_char                          data[1];
} ngx_http_idempotency_details_t;


/*
 * A record.  Allocated whole by begin, so that a commit can always at least
 * say that it ran.  What is left of its slab slot holds the first bytes of
 * the response.
 */

struct ngx_http_idempotency_node_s {

    /* the first 64 bytes, a cache line: all that looking for a record reads
       of those that it is not */

    ngx_http_idempotency_node_t    *next;        /* in its bucket           */
    u_char                          id[NGX_HTTP_IDEMPOTENCY_ID_LEN];
    ngx_msec_t                      expires;
    ngx_msec_t                      until;       /* of the lease if it is in
                                                    progress; otherwise then
                                                    only its expiry is
                                                    remembered              */
    ngx_http_idempotency_chunk_t   *chunks;

    ngx_queue_t                     expiry;      /* in the wheel            */
    ngx_queue_t                     completed;   /* if it has chunks        */
    u_char                          token[NGX_HTTP_IDEMPOTENCY_TOKEN_LEN];
    union {
        uint64_t                    waiting;     /* workers to be woken     */
        ngx_msec_t                  locked_until; /* in an outbox: its lock,
                                                    by our own clock        */
    } u;
    ngx_http_idempotency_details_t *details;     /* beside the claim        */
    ngx_http_idempotency_claim_t    claim;
    uint32_t                        size;        /* of the response         */
    uint8_t                         state;
    uint8_t                         reason;
    uint8_t                         hold;
    uint8_t                         again;       /* in progress, and may have
                                                    run before              */
    u_char                          data[1];
};


/* the slab slot that a node fills */
#define NGX_HTTP_IDEMPOTENCY_NODE_SIZE  256

#define NGX_HTTP_IDEMPOTENCY_NODE_ROOM                                        \
    (NGX_HTTP_IDEMPOTENCY_NODE_SIZE                                           \
     - offsetof(ngx_http_idempotency_node_t, data))


/* the last level is of two years: what lives longer goes round again */
#define NGX_HTTP_IDEMPOTENCY_EXPIRY_LEVELS  5
#define NGX_HTTP_IDEMPOTENCY_EXPIRY_SLOTS   64


typedef struct {
    ngx_uint_t                      tick;        /* the one that runs       */
    ngx_msec_t                      time;        /* when it began           */
    ngx_queue_t                     due;
    ngx_queue_t                     slots[NGX_HTTP_IDEMPOTENCY_EXPIRY_LEVELS]
                                         [NGX_HTTP_IDEMPOTENCY_EXPIRY_SLOTS];
} ngx_http_idempotency_expiry_t;


/*
 * Lives in the zone; its form is as durable as the zone itself.  It begins
 * with what each operation has to do with, on two cache lines: the worker that
 * had the lock before has written to them.
 */

typedef struct {
    uint32_t                        magic;
    uint32_t                        version;
    ngx_uint_t                      mask;        /* buckets - 1             */
    ngx_http_idempotency_node_t   **buckets;
    ngx_queue_t                     completed;   /* oldest first            */
    ngx_uint_t                      records;     /* all, and by their state */
    size_t                          bytes;       /* of responses, in chunks */
    ngx_uint_t                      evicted;

    ngx_uint_t                      states[NGX_HTTP_IDEMPOTENCY_UNUSABLE + 1];
    ngx_http_idempotency_expiry_t   expiry;

    ngx_uint_t                      expired;
    u_char                          nonce[8];    /* in the address of the
                                                    workers' sockets        */
    ngx_pid_t                       workers[NGX_HTTP_IDEMPOTENCY_WORKERS];
} ngx_http_idempotency_zone_t;


typedef struct {
    ngx_str_t                       name;
    ssize_t                         size;
    ngx_http_idempotency_full_e     full;
    ngx_shm_zone_t                 *shm_zone;
    ngx_http_idempotency_zone_t    *zone;
    ngx_slab_pool_t                *shpool;
} ngx_http_idempotency_records_t;


/* ..._zone_conf.c */

/* "<name>:<size>" */
char *ngx_http_idempotency_zone_parse(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_idempotency_records_t *z);
char *ngx_http_idempotency_zone_size(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_idempotency_records_t *z);
char *ngx_http_idempotency_zone_add(ngx_conf_t *cf,
    ngx_http_idempotency_records_t *z);

/* ..._zone.c: called with the zone locked */

ngx_http_idempotency_node_t *ngx_http_idempotency_zone_find(
    ngx_http_idempotency_records_t *z, u_char *id);
ngx_http_idempotency_node_t *ngx_http_idempotency_zone_insert(
    ngx_http_idempotency_records_t *z, u_char *id, ngx_msec_t expires);
void ngx_http_idempotency_zone_state(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node, ngx_http_idempotency_state_e state,
    ngx_http_idempotency_reason_e reason);
void ngx_http_idempotency_zone_expire(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node, ngx_msec_t expires);
void ngx_http_idempotency_zone_remove(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node);
ngx_int_t ngx_http_idempotency_zone_put(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node, ngx_chain_t *in, size_t size);
void ngx_http_idempotency_zone_drop(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node);
void ngx_http_idempotency_zone_details(ngx_http_idempotency_records_t *z,
    ngx_http_idempotency_node_t *node, ngx_str_t *details);
void ngx_http_idempotency_zone_copy_details(
    ngx_http_idempotency_node_t *node, ngx_pool_t *pool, ngx_str_t *details);
void ngx_http_idempotency_zone_copy(ngx_http_idempotency_node_t *node,
    u_char *p);

/* looks at so many whose time may have come */
void ngx_http_idempotency_zone_purge(ngx_http_idempotency_records_t *z,
    ngx_uint_t n);

/*
 * A record as a commit has it, in place of what is there; NULL if there is
 * no room.  It stands behind those that were kept before.
 */
ngx_http_idempotency_node_t *ngx_http_idempotency_zone_keep(
    ngx_http_idempotency_records_t *z, ngx_http_idempotency_op_t *op,
    ngx_msec_t until, ngx_msec_t expires);

/* what begin tells of a record that is completed or unusable */
void ngx_http_idempotency_zone_found(ngx_http_idempotency_node_t *node,
    ngx_http_idempotency_op_t *op);


/* ..._expiry.c: called with the zone locked */

void ngx_http_idempotency_expiry_init(ngx_http_idempotency_expiry_t *expiry);
void ngx_http_idempotency_expiry_add(ngx_http_idempotency_expiry_t *expiry,
    ngx_http_idempotency_node_t *node);

/*
 * The next whose time may have come; it is left where it is.  NULL: there is
 * none, or that was all the "work" there may be.  A record that comes up and a
 * tick that is over are one each.
 */
ngx_http_idempotency_node_t *ngx_http_idempotency_expiry_next(
    ngx_http_idempotency_expiry_t *expiry, ngx_uint_t *work);


#endif /* _NGX_HTTP_IDEMPOTENCY_ZONE_H_INCLUDED_ */
