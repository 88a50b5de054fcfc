
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Events: what happened, one JSON object a line (idempotency_log).
 *
 * A line never has a key, a body or a credential in it: hashes and words of
 * the configuration only.  Whoever has something to tell builds its line here
 * member by member: request/..._request_events.c for requests, the stores for
 * themselves; ..._log.c takes it to a file or to syslog.
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


/* every member is bounded, and so are the operator's own: 16 at most */
#define NGX_HTTP_IDEM_LINE_LEN  6144


/* one that is being built; what finds no room in it is cut off */

typedef struct {
    ngx_http_idem_log_t    *log;                /* NULL: only the tap wants
                                                   it                       */
    ngx_http_idem_level_e   level;
    u_char                 *p;
    u_char                 *last;
    u_char                  buf[NGX_HTTP_IDEM_LINE_LEN];
} ngx_http_idem_line_t;


/* whether anybody may want events that go to this log, which may be NULL */
#define ngx_http_idem_events_wanted(log)                                      \
    ((log) || ngx_http_idem_tap_followed())

/*
 * NGX_DECLINED: neither the log (it may be NULL) nor the tap wants this one.
 * The tap has none of level debug.
 */
ngx_int_t ngx_http_idem_line_start(ngx_http_idem_line_t *line,
    ngx_http_idem_log_t *log, ngx_http_idem_event_e event, ngx_str_t *store);

/* members: a string is bounded, and what JSON would escape is '_' in it */
void ngx_http_idem_line_string(ngx_http_idem_line_t *line, const char *name,
    ngx_str_t *s);
void ngx_http_idem_line_word(ngx_http_idem_line_t *line, const char *name,
    const char *word);
void ngx_http_idem_line_hex(ngx_http_idem_line_t *line, const char *name,
    u_char *p, size_t len);
void ngx_http_idem_line_number(ngx_http_idem_line_t *line, const char *name,
    uint64_t n);
/* ms since the epoch, told as ISO 8601 */
void ngx_http_idem_line_time(ngx_http_idem_line_t *line, const char *name,
    uint64_t msec);

void ngx_http_idem_line_write(ngx_http_idem_line_t *line);


#endif /* _NGX_HTTP_IDEM_EVENTS_H_INCLUDED_ */
