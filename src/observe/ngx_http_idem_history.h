
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The recent history of a store, in shared memory: the current and the last
 * outage, the last conflicts, the locks that have been held longest, and a
 * row of figures for every ten seconds of the last hour.
 *
 * Written by the store, by requests and by the status endpoint, which reads
 * all of it.  No mutex is used: if two workers write at the same time, one
 * line on a page may be inconsistent until the next update.
 */


#ifndef _NGX_HTTP_IDEM_HISTORY_H_INCLUDED_
#define _NGX_HTTP_IDEM_HISTORY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_IDEM_HISTORY_ROWS      360
#define NGX_HTTP_IDEM_HISTORY_STEP      10000           /* ms */
#define NGX_HTTP_IDEM_HISTORY_COLUMNS   32
#define NGX_HTTP_IDEM_HISTORY_CONFLICTS 8
#define NGX_HTTP_IDEM_HISTORY_LONGEST   5
#define NGX_HTTP_IDEM_HISTORY_AGES      3
#define NGX_HTTP_IDEM_HISTORY_ID        32
#define NGX_HTTP_IDEM_HISTORY_TEXT      80
#define NGX_HTTP_IDEM_HISTORY_WORKERS   64


/* times are in milliseconds since 1970; 0: never */

typedef struct {
    ngx_atomic_t               since;           /* 0: the store answers     */
    ngx_atomic_t               last_from;
    ngx_atomic_t               last_to;
    u_char                     error[NGX_HTTP_IDEM_HISTORY_TEXT];
} ngx_http_idem_outage_t;


typedef struct {
    u_char                     id[NGX_HTTP_IDEM_HISTORY_ID];
    ngx_atomic_t               time;
    ngx_uint_t                 group;
    ngx_uint_t                 kind;            /* ..._conflict_e           */
} ngx_http_idem_recent_t;


typedef struct {
    u_char                     id[NGX_HTTP_IDEM_HISTORY_ID];
    uint64_t                   since;
    u_char                     group[NGX_HTTP_IDEM_HISTORY_TEXT];
    u_char                     host[NGX_HTTP_IDEM_HISTORY_TEXT];
} ngx_http_idem_longest_t;


/* the result of the last scan over the records of a store */

typedef struct {
    ngx_uint_t                 records[4];      /* by state                 */
    ngx_uint_t                 locks[NGX_HTTP_IDEM_HISTORY_AGES];
    ngx_uint_t                 bytes;           /* of responses             */
    ngx_uint_t                 used;            /* memory of its servers    */
    ngx_uint_t                 size;            /* limit of that memory; 0:
                                                   unknown                  */
    ngx_uint_t                 nlongest;
    ngx_http_idem_longest_t    longest[NGX_HTTP_IDEM_HISTORY_LONGEST];
} ngx_http_idem_tally_t;


typedef struct {
    ngx_atomic_t               next;            /* time of the next scan    */
    ngx_atomic_t               ended;           /* last scan; 0: none       */
    ngx_http_idem_tally_t     tally;
} ngx_http_idem_scanned_t;


typedef struct {
    ngx_http_idem_outage_t     outage;
    ngx_http_idem_scanned_t    scanned;

    ngx_atomic_t               queued[NGX_HTTP_IDEM_HISTORY_WORKERS];

    ngx_atomic_t               nconflicts;
    ngx_http_idem_recent_t     conflicts[NGX_HTTP_IDEM_HISTORY_CONFLICTS];

    ngx_atomic_t               row;             /* number of the next row   */
    ngx_atomic_t               due;
    ngx_atomic_t               before[2][32];   /* buckets at the last row  */
    ngx_atomic_uint_t          rows[NGX_HTTP_IDEM_HISTORY_ROWS]
                                   [NGX_HTTP_IDEM_HISTORY_COLUMNS];
} ngx_http_idem_history_t;


/* an operation has succeeded, or has failed with "error" */
void ngx_http_idem_outage(ngx_http_idem_outage_t *o, const char *error);

void ngx_http_idem_history_conflict(ngx_http_idem_history_t *h, u_char *id,
    ngx_uint_t group, ngx_uint_t kind);

/* whether it is this worker's turn: "due" has passed, and no other worker has
   set it to "until" first */
ngx_uint_t ngx_http_idem_history_turn(ngx_atomic_t *due, uint64_t now,
    uint64_t until);

uint64_t ngx_http_idem_history_now(void);

/* ms since the epoch in ISO 8601: writes 1970-01-01T00:00:00Z */
u_char *ngx_http_idem_iso_time(u_char *p, uint64_t msec);

#define NGX_HTTP_IDEM_ISO_TIME_LEN                                            \
    (sizeof("1970-01-01T00:00:00Z") - 1)


#endif /* _NGX_HTTP_IDEM_HISTORY_H_INCLUDED_ */
