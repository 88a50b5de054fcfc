
/*
 * Which event is told when, and the line it makes.
 *
 * Called from wherever the thing happens; calls the log.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"
#include "observe/ngx_http_idem_events.h"
#include "observe/ngx_http_idem_metrics.h"


/* a line without its word: names of stores and groups are bounded below */
#define NGX_HTTP_IDEM_EVENT_LEN   1024
#define NGX_HTTP_IDEM_EVENT_NAME  64


static u_char *ngx_http_idem_event_head(u_char *p, u_char *last,
    ngx_http_idem_event_e event, ngx_http_idem_store_t *store);
static u_char *ngx_http_idem_event_string(u_char *p, u_char *last,
    const char *name, u_char *s, size_t len);


static struct {
    const char             *name;
    ngx_http_idem_level_e   level;
} ngx_http_idem_events[] = {
    { "idempotency.processed", NGX_HTTP_IDEM_LEVEL_INFO },
    { "idempotency.replay", NGX_HTTP_IDEM_LEVEL_INFO },
    { "idempotency.conflict", NGX_HTTP_IDEM_LEVEL_WARN },
    { "idempotency.key.created", NGX_HTTP_IDEM_LEVEL_INFO },
    { "idempotency.key.expired", NGX_HTTP_IDEM_LEVEL_INFO },
    { "idempotency.lock.contention", NGX_HTTP_IDEM_LEVEL_INFO },
    { "idempotency.lock.timeout", NGX_HTTP_IDEM_LEVEL_WARN },
    { "idempotency.lock.abandoned", NGX_HTTP_IDEM_LEVEL_WARN },
    { "idempotency.lock.lost", NGX_HTTP_IDEM_LEVEL_WARN },
    { "idempotency.storage.error", NGX_HTTP_IDEM_LEVEL_ERROR },
    { "idempotency.storage.slow", NGX_HTTP_IDEM_LEVEL_WARN },
    { "idempotency.circuit_breaker.opened", NGX_HTTP_IDEM_LEVEL_ERROR },
    { "idempotency.circuit_breaker.closed", NGX_HTTP_IDEM_LEVEL_WARN },
    { "idempotency.response.too_large", NGX_HTTP_IDEM_LEVEL_WARN }
};


static const char  *ngx_http_idem_levels[] = {
    "error", "warn", "info"
};


void
ngx_http_idem_event(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_event_e event, const char *word)
{
    u_char                 *p, *last;
    u_char                  line[NGX_HTTP_IDEM_EVENT_LEN];
    u_char                  hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_str_t               group;
    ngx_uint_t              status;
    ngx_http_request_t     *r;
    ngx_http_idem_log_t    *log;
    ngx_http_idem_level_e   level;

    log = ctx->conf->log;
    level = ngx_http_idem_events[event].level;

    if (log == NULL || !ngx_http_idem_log_wants(log, level)) {
        return;
    }

    r = ctx->request;
    last = line + sizeof(line) - 2;

    p = ngx_http_idem_event_head(line, last, event, ctx->conf->store);

    if (ctx->key.len) {
        ngx_http_idem_digest_plain(hash, ctx->key.data, ctx->key.len);

        p = ngx_slprintf(p, last, ",\"key_hash\":\"%*xs\"", sizeof(hash),
                         hash);
    }

    if (ctx->primary) {
        p = ngx_slprintf(p, last, ",\"record\":\"%*xs\"",
                         (size_t) NGX_HTTP_IDEM_ID_LEN,
                         ctx->primary->id);
    }

    p = ngx_http_idem_event_string(p, last, "method",
                                   r->method_name.data,
                                   r->method_name.len);

    group = ngx_http_idem_metrics_group_name(ngx_http_idem_group(ctx));

    p = ngx_http_idem_event_string(p, last, "uri_group", group.data,
                                   group.len);

    status = r->err_status ? r->err_status : r->headers_out.status;

    if (status) {
        p = ngx_slprintf(p, last, ",\"status\":%ui", status);
    }

    p = ngx_slprintf(p, last, ",\"duration_ms\":%M",
                     ngx_current_msec - ctx->arrival);

    if (ctx->status) {
        p = ngx_slprintf(p, last, ",\"outcome\":\"%V\"",
                         &ngx_http_idem_status_names[ctx->status]);
    }

    if (ctx->waited) {
        p = ngx_slprintf(p, last, ",\"wait_ms\":%M", ctx->wait_time);
    }

    if (ctx->store_time) {
        p = ngx_slprintf(p, last, ",\"store_ms\":%M", ctx->store_time);
    }

    if (word) {
        p = ngx_http_idem_event_string(p, last, "reason",
                                       (u_char *) word,
                                       ngx_strlen(word));
    }

    *p++ = '}';
    *p++ = '\n';

    ngx_http_idem_log_write(log, level, line, p - line);
}


void
ngx_http_idem_store_event(ngx_http_idem_store_t *store,
    ngx_http_idem_event_e event, const char *word)
{
    ngx_http_idem_record_event(store, event, NULL, word);
}


void
ngx_http_idem_record_event(ngx_http_idem_store_t *store,
    ngx_http_idem_event_e event, u_char *id, const char *word)
{
    u_char                 *p, *last;
    u_char                  line[NGX_HTTP_IDEM_EVENT_LEN];
    ngx_http_idem_log_t    *log;
    ngx_http_idem_level_e   level;

    log = store->log;
    level = ngx_http_idem_events[event].level;

    if (log == NULL || !ngx_http_idem_log_wants(log, level)) {
        return;
    }

    last = line + sizeof(line) - 2;

    p = ngx_http_idem_event_head(line, last, event, store);

    if (id) {
        p = ngx_slprintf(p, last, ",\"record\":\"%*xs\"",
                         (size_t) NGX_HTTP_IDEM_ID_LEN, id);
    }

    if (word) {
        p = ngx_http_idem_event_string(p, last, "reason",
                                       (u_char *) word,
                                       ngx_strlen(word));
    }

    *p++ = '}';
    *p++ = '\n';

    ngx_http_idem_log_write(log, level, line, p - line);
}


void
ngx_http_idem_outcome_event(ngx_http_idem_ctx_t *ctx)
{
    if (ctx->conf->log == NULL) {
        return;
    }

    switch (ctx->status) {

    case NGX_HTTP_IDEM_STATUS_EXECUTED:
    case NGX_HTTP_IDEM_STATUS_RELEASED:
    case NGX_HTTP_IDEM_STATUS_UNPROTECTED:
        ngx_http_idem_event(ctx, NGX_HTTP_IDEM_EVENT_PROCESSED, NULL);
        break;

    case NGX_HTTP_IDEM_STATUS_TOO_LARGE:

        /* the one that ran, not those that were refused for it */

        if (ctx->phase == NGX_HTTP_IDEM_SEND) {
            ngx_http_idem_event(ctx, NGX_HTTP_IDEM_EVENT_TOO_LARGE, NULL);
        }

        ngx_http_idem_event(ctx, NGX_HTTP_IDEM_EVENT_PROCESSED, NULL);
        break;

    case NGX_HTTP_IDEM_STATUS_REPLAYED:
        ngx_http_idem_event(ctx, NGX_HTTP_IDEM_EVENT_REPLAY, NULL);
        break;

    case NGX_HTTP_IDEM_STATUS_CONFLICT:
        ngx_http_idem_event(ctx, NGX_HTTP_IDEM_EVENT_CONFLICT, NULL);
        break;

    case NGX_HTTP_IDEM_STATUS_BUSY:
    case NGX_HTTP_IDEM_STATUS_WAITERS:
        ngx_http_idem_event(ctx, NGX_HTTP_IDEM_EVENT_LOCK_CONTENTION, NULL);
        break;

    case NGX_HTTP_IDEM_STATUS_TIMEOUT:
        ngx_http_idem_event(ctx, NGX_HTTP_IDEM_EVENT_LOCK_TIMEOUT, NULL);
        break;

    case NGX_HTTP_IDEM_STATUS_INVALID:
    case NGX_HTTP_IDEM_STATUS_UNKNOWN:
    case NGX_HTTP_IDEM_STATUS_UNAVAILABLE:
        ngx_http_idem_event(ctx, NGX_HTTP_IDEM_EVENT_PROCESSED, NULL);
        break;

    default: /* NGX_HTTP_IDEM_STATUS_BYPASS: nothing happened */
        break;
    }
}


static u_char *
ngx_http_idem_event_head(u_char *p, u_char *last,
    ngx_http_idem_event_e event, ngx_http_idem_store_t *store)
{
    ngx_tm_t     tm;
    ngx_time_t  *tp;

    tp = ngx_timeofday();
    ngx_gmtime(tp->sec, &tm);

    p = ngx_slprintf(p, last,
                     "{\"timestamp\":\"%04d-%02d-%02dT%02d:%02d:%02d.%03MZ\","
                     "\"level\":\"%s\",\"component\":\"idempotency\","
                     "\"event\":\"%s\"",
                     tm.ngx_tm_year, tm.ngx_tm_mon, tm.ngx_tm_mday,
                     tm.ngx_tm_hour, tm.ngx_tm_min, tm.ngx_tm_sec,
                     (ngx_msec_t) tp->msec,
                     ngx_http_idem_levels[
                                    ngx_http_idem_events[event].level],
                     ngx_http_idem_events[event].name);

    return ngx_http_idem_event_string(p, last, "store",
                                      store->name.data,
                                      store->name.len);
}


/* bounded, and without what JSON would not have between quotes */

static u_char *
ngx_http_idem_event_string(u_char *p, u_char *last, const char *name,
    u_char *s, size_t len)
{
    size_t  i;

    len = ngx_min(len, 2 * NGX_HTTP_IDEM_EVENT_NAME);

    p = ngx_slprintf(p, last, ",\"%s\":\"", name);

    for (i = 0; i < len && p < last - 1; i++) {
        *p++ = (s[i] < 0x20 || s[i] > 0x7e || s[i] == '"' || s[i] == '\\')
               ? '_' : s[i];
    }

    if (p < last) {
        *p++ = '"';
    }

    return p;
}
