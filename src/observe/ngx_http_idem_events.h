
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Events: one JSON object for each line (idempotency_log).
 *
 * An event never contains a key, a body or a credential, only hashes and
 * words of the configuration.  Its line is built here, member by member:
 * request/..._request_events.c does so for requests, the stores for
 * themselves.  ..._log.c writes it to a file, to syslog or to a store.
 */


#ifndef _NGX_HTTP_IDEM_EVENTS_H_INCLUDED_
#define _NGX_HTTP_IDEM_EVENTS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "observe/ngx_http_idem_log.h"
#include "observe/ngx_http_idem_tap.h"


typedef enum {
    NGX_HTTP_IDEM_EVENT_PROCESSED = 0,
    NGX_HTTP_IDEM_EVENT_REPLAY,
    NGX_HTTP_IDEM_EVENT_CONFLICT,
    NGX_HTTP_IDEM_EVENT_KEY_CREATED,
    NGX_HTTP_IDEM_EVENT_KEY_EXPIRED,
    NGX_HTTP_IDEM_EVENT_LOCK_CONTENTION,
    NGX_HTTP_IDEM_EVENT_LOCK_TIMEOUT,
    NGX_HTTP_IDEM_EVENT_LOCK_ABANDONED,
    NGX_HTTP_IDEM_EVENT_LOCK_LOST,
    NGX_HTTP_IDEM_EVENT_STORAGE_ERROR,
    NGX_HTTP_IDEM_EVENT_STORAGE_SLOW,
    NGX_HTTP_IDEM_EVENT_BREAKER_OPENED,
    NGX_HTTP_IDEM_EVENT_BREAKER_CLOSED,
    NGX_HTTP_IDEM_EVENT_TOO_LARGE,
    NGX_HTTP_IDEM_EVENT_RECORD_DELETED,
    NGX_HTTP_IDEM_EVENT_LOCK_ATTEMPT,
    NGX_HTTP_IDEM_EVENT_CACHE_LOOKUP
} ngx_http_idem_event_e;


/* all members have a limited length, including the operator's own, of which
   there are 16 at most */
#define NGX_HTTP_IDEM_LINE_LEN     6144

/* limit of a string in it */
#define NGX_HTTP_IDEM_LINE_STRING  128


/* a line that is being built; members that do not fit are truncated */

typedef struct {
    ngx_http_idem_log_t    *log;                /* NULL: for the tap only   */
    ngx_http_idem_level_e   level;
    u_char                 *p;
    u_char                 *last;
    u_char                  buf[NGX_HTTP_IDEM_LINE_LEN];
} ngx_http_idem_line_t;


/* whether events for this log, which may be NULL, are used at all */
#define ngx_http_idem_events_wanted(log)                                      \
    ((log) || ngx_http_idem_tap_followed())

/*
 * NGX_DECLINED: neither the log, which may be NULL, nor the tap uses this
 * event.  The tap does not use events of level debug.
 */
ngx_int_t ngx_http_idem_line_start(ngx_http_idem_line_t *line,
    ngx_http_idem_log_t *log, ngx_http_idem_event_e event, ngx_str_t *store);

/* adds a member, as ..._text() leaves it */
void ngx_http_idem_line_string(ngx_http_idem_line_t *line, const char *name,
    ngx_str_t *s);
void ngx_http_idem_line_word(ngx_http_idem_line_t *line, const char *name,
    const char *word);
void ngx_http_idem_line_hex(ngx_http_idem_line_t *line, const char *name,
    u_char *p, size_t len);
void ngx_http_idem_line_number(ngx_http_idem_line_t *line, const char *name,
    uint64_t n);
/* ms since the epoch, written as ISO 8601 */
void ngx_http_idem_line_time(ngx_http_idem_line_t *line, const char *name,
    uint64_t msec);

void ngx_http_idem_line_write(ngx_http_idem_line_t *line);

/* a string as events have it: truncated, with '_' for control characters and
   bytes that are not UTF-8; "dst" has room for NGX_HTTP_IDEM_LINE_STRING */
u_char *ngx_http_idem_line_text(u_char *dst, ngx_str_t *s);

/* and as it stands in a line; at most twice as long */
u_char *ngx_http_idem_line_escape(u_char *dst, ngx_str_t *s);


#endif /* _NGX_HTTP_IDEM_EVENTS_H_INCLUDED_ */
