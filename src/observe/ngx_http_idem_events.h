
/*
 * Events: what happened, one JSON object a line (idempotency_log).
 *
 * A line never has a key, a body or a credential in it: hashes and words of
 * the configuration only.  Two files:
 *
 *   ..._events.c  which event is told when, and the line it makes
 *   ..._log.c     where lines go: a file or syslog, off the request's path
 */


#ifndef _NGX_HTTP_IDEM_EVENTS_H_INCLUDED_
#define _NGX_HTTP_IDEM_EVENTS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


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
    NGX_HTTP_IDEM_EVENT_TOO_LARGE
} ngx_http_idem_event_e;


typedef enum {
    NGX_HTTP_IDEM_LEVEL_ERROR = 0,
    NGX_HTTP_IDEM_LEVEL_WARN,
    NGX_HTTP_IDEM_LEVEL_INFO,
    NGX_HTTP_IDEM_LEVEL_N
} ngx_http_idem_level_e;


/* of a whole sample: parts in a million */
#define NGX_HTTP_IDEM_SAMPLE_ALL  1000000


/*
 * Something happened to a request.  "word" says more, if it is not NULL: a
 * word of ours, never what a client or an application sent.
 */
void ngx_http_idem_event(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_event_e event, const char *word);

/* ... to a store, whichever request it was that noticed */
void ngx_http_idem_store_event(ngx_http_idem_store_t *store,
    ngx_http_idem_event_e event, const char *word);

/* ... to one record of it, when the request is gone, or was another's */
void ngx_http_idem_record_event(ngx_http_idem_store_t *store,
    ngx_http_idem_event_e event, u_char *id, const char *word);

/* the request ended: the event of its outcome */
void ngx_http_idem_outcome_event(ngx_http_idem_ctx_t *ctx);


/* ..._log.c */

char *ngx_http_idem_conf_log(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
ngx_uint_t ngx_http_idem_log_wants(ngx_http_idem_log_t *log,
    ngx_http_idem_level_e level);
void ngx_http_idem_log_write(ngx_http_idem_log_t *log,
    ngx_http_idem_level_e level, u_char *p, size_t len);
ngx_int_t ngx_http_idem_log_init_process(ngx_cycle_t *cycle);
void ngx_http_idem_log_exit_process(ngx_cycle_t *cycle);


#endif /* _NGX_HTTP_IDEM_EVENTS_H_INCLUDED_ */
