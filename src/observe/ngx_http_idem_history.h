
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What happened to a store lately, in shared memory: since when it does not
 * answer, the last conflicts, the locks that are held longest, and a row of
 * figures every ten seconds, for an hour.
 *
 * Written by the store, by requests and by the status endpoint, which reads
 * all of it.  No lock is taken: what is torn by two writers is a line on a
 * page, and gone with the next.
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


/* what was found when the records of a store were counted last */

typedef struct {
    ngx_uint_t                 records[4];      /* by state                 */
    ngx_uint_t                 bytes;           /* of responses             */
    ngx_uint_t                 used;            /* memory of its servers    */
    ngx_uint_t                 size;            /* ... and what they may use;
                                                   0: not known             */
    ngx_uint_t                 nlongest;
    ngx_http_idem_longest_t    longest[NGX_HTTP_IDEM_HISTORY_LONGEST];
} ngx_http_idem_tally_t;


typedef struct {
    ngx_atomic_t               next;            /* nobody scans before      */
    ngx_atomic_t               ended;           /* 0: none has              */
    ngx_http_idem_tally_t     tally;
} ngx_http_idem_scanned_t;


typedef struct {
    ngx_http_idem_outage_t     outage;
    ngx_http_idem_scanned_t    scanned;

    ngx_atomic_t               queued[NGX_HTTP_IDEM_HISTORY_WORKERS];

    ngx_atomic_t               nconflicts;
    ngx_http_idem_recent_t     conflicts[NGX_HTTP_IDEM_HISTORY_CONFLICTS];

    ngx_atomic_t               row;             /* number of the next one   */
    ngx_atomic_t               due;
    ngx_atomic_t               before[2][32];   /* buckets at the last row  */
    ngx_atomic_uint_t          rows[NGX_HTTP_IDEM_HISTORY_ROWS]
                                   [NGX_HTTP_IDEM_HISTORY_COLUMNS];
} ngx_http_idem_history_t;


/* an operation was answered, or failed with "error" */
void ngx_http_idem_outage(ngx_http_idem_outage_t *o, const char *error);

void ngx_http_idem_history_conflict(ngx_http_idem_history_t *h, u_char *id,
    ngx_uint_t group, ngx_uint_t kind);

/* at most one worker may go on, until "until"; the time is over already */
ngx_uint_t ngx_http_idem_history_turn(ngx_atomic_t *due, uint64_t now,
    uint64_t until);

uint64_t ngx_http_idem_history_now(void);


#endif /* _NGX_HTTP_IDEM_HISTORY_H_INCLUDED_ */
