
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The events, their levels, and the line of each event.
 *
 * Called by request/..._request_events.c and by the stores; calls the log.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <openssl/rand.h>

#include "ngx_http_idem_utf8.h"
#include "observe/ngx_http_idem_events.h"
#include "observe/ngx_http_idem_history.h"


static struct {
    const char             *name;
    ngx_http_idem_level_e   level;
} ngx_http_idem_events[] = {
    { "idempotency.processed", NGX_HTTP_IDEM_LEVEL_INFO },
    { "idempotency.replay", NGX_HTTP_IDEM_LEVEL_INFO },
    { "idempotency.conflict", NGX_HTTP_IDEM_LEVEL_ERROR },
    { "idempotency.key.created", NGX_HTTP_IDEM_LEVEL_INFO },
    { "idempotency.key.expired", NGX_HTTP_IDEM_LEVEL_INFO },
    { "idempotency.lock.contention", NGX_HTTP_IDEM_LEVEL_WARN },
    { "idempotency.lock.timeout", NGX_HTTP_IDEM_LEVEL_ERROR },
    { "idempotency.lock.abandoned", NGX_HTTP_IDEM_LEVEL_WARN },
    { "idempotency.lock.lost", NGX_HTTP_IDEM_LEVEL_WARN },
    { "idempotency.storage.error", NGX_HTTP_IDEM_LEVEL_ERROR },
    { "idempotency.storage.slow", NGX_HTTP_IDEM_LEVEL_WARN },
    { "idempotency.circuit_breaker.opened", NGX_HTTP_IDEM_LEVEL_WARN },
    { "idempotency.circuit_breaker.closed", NGX_HTTP_IDEM_LEVEL_INFO },
    { "idempotency.response.too_large", NGX_HTTP_IDEM_LEVEL_ERROR },
    { "idempotency.record.deleted", NGX_HTTP_IDEM_LEVEL_WARN },
    { "idempotency.lock.attempt", NGX_HTTP_IDEM_LEVEL_DEBUG },
    { "idempotency.cache.lookup", NGX_HTTP_IDEM_LEVEL_DEBUG }
};


/* the id of an event: a random half for each process, and a counter */
static u_char    ngx_http_idem_line_base[8];
static ngx_pid_t ngx_http_idem_line_pid;
static uint64_t  ngx_http_idem_line_count;


static void ngx_http_idem_line_unique(void);


ngx_int_t
ngx_http_idem_line_start(ngx_http_idem_line_t *line, ngx_http_idem_log_t *log,
    ngx_http_idem_event_e event, ngx_str_t *store)
{
    line->log = log;
    line->level = ngx_http_idem_events[event].level;

    if (log == NULL || !ngx_http_idem_log_wants(log, line->level)) {

        if (line->level == NGX_HTTP_IDEM_LEVEL_DEBUG
            || !ngx_http_idem_tap_followed())
        {
            return NGX_DECLINED;
        }

        line->log = NULL;
    }

    line->last = line->buf + sizeof(line->buf) - 2;

    ngx_http_idem_line_unique();

    line->p = ngx_slprintf(line->buf, line->last,
                           "{\"event_id\":\"%*xs%016xL\"",
                           sizeof(ngx_http_idem_line_base),
                           ngx_http_idem_line_base,
                           ngx_http_idem_line_count++);

    ngx_http_idem_line_time(line, "timestamp", ngx_http_idem_history_now());
    ngx_http_idem_line_string(line, "level",
                              &ngx_http_idem_level_names[line->level]);
    ngx_http_idem_line_word(line, "component", "idempotency");
    ngx_http_idem_line_word(line, "event", ngx_http_idem_events[event].name);
    ngx_http_idem_line_string(line, "host", (ngx_str_t *) &ngx_cycle->hostname);
    ngx_http_idem_line_string(line, "store", store);

    return NGX_OK;
}


/* a forked process must not reuse the ids of its parent */

static void
ngx_http_idem_line_unique(void)
{
    uint32_t  n;

    if (ngx_http_idem_line_pid == ngx_pid) {
        return;
    }

    ngx_http_idem_line_pid = ngx_pid;

    if (RAND_bytes(ngx_http_idem_line_base, sizeof(ngx_http_idem_line_base))
        == 1)
    {
        return;
    }

    /* the id is not a secret: being unique on this host is enough */

    n = (uint32_t) ngx_pid;
    ngx_memcpy(ngx_http_idem_line_base, &n, sizeof(uint32_t));
    n = (uint32_t) ngx_time();
    ngx_memcpy(ngx_http_idem_line_base + 4, &n, sizeof(uint32_t));
}


void
ngx_http_idem_line_string(ngx_http_idem_line_t *line, const char *name,
    ngx_str_t *s)
{
    u_char     text[NGX_HTTP_IDEM_LINE_STRING];
    ngx_str_t  value;

    value.data = text;
    value.len = ngx_http_idem_line_text(text, s) - text;

    /* a member that does not fit is left out: half of one is no JSON */

    if (line->last - line->p
        >= (ssize_t) (ngx_strlen(name) + 2 * value.len + sizeof(",\"\":\"\"")))
    {
        line->p = ngx_sprintf(line->p, ",\"%s\":\"", name);
        line->p = ngx_http_idem_line_escape(line->p, &value);
        *line->p++ = '"';
    }
}


u_char *
ngx_http_idem_line_text(u_char *dst, ngx_str_t *s)
{
    size_t   n;
    u_char  *p, *last;

    last = s->data + ngx_min(s->len, NGX_HTTP_IDEM_LINE_STRING);

    for (p = s->data; p < last; p += n) {

        if (*p >= 0x20 && *p < 0x7f) {
            n = 1;
            *dst++ = *p;
            continue;
        }

        n = ngx_http_idem_utf8_len(p, last);

        /* U+0080 to U+009F are control characters, too */

        if (n <= 1 || (*p == 0xc2 && p[1] < 0xa0))
        {
            n = 1;
            *dst++ = '_';
            continue;
        }

        dst = ngx_cpymem(dst, p, n);
    }

    return dst;
}


u_char *
ngx_http_idem_line_escape(u_char *dst, ngx_str_t *s)
{
    size_t  i;

    for (i = 0; i < s->len; i++) {

        if (s->data[i] == '"' || s->data[i] == '\\') {
            *dst++ = '\\';
        }

        *dst++ = s->data[i];
    }

    return dst;
}


void
ngx_http_idem_line_word(ngx_http_idem_line_t *line, const char *name,
    const char *word)
{
    ngx_str_t  s;

    s.data = (u_char *) word;
    s.len = ngx_strlen(word);

    ngx_http_idem_line_string(line, name, &s);
}


void
ngx_http_idem_line_hex(ngx_http_idem_line_t *line, const char *name,
    u_char *p, size_t len)
{
    line->p = ngx_slprintf(line->p, line->last, ",\"%s\":\"%*xs\"", name, len,
                           p);
}


void
ngx_http_idem_line_number(ngx_http_idem_line_t *line, const char *name,
    uint64_t n)
{
    line->p = ngx_slprintf(line->p, line->last, ",\"%s\":%uL", name, n);
}


void
ngx_http_idem_line_time(ngx_http_idem_line_t *line, const char *name,
    uint64_t msec)
{
    u_char  time[NGX_HTTP_IDEM_ISO_TIME_LEN];

    ngx_http_idem_iso_time(time, msec);

    line->p = ngx_slprintf(line->p, line->last, ",\"%s\":\"%*s.%03uLZ\"",
                           name, sizeof(time) - 1, time, msec % 1000);
}


void
ngx_http_idem_line_write(ngx_http_idem_line_t *line)
{
    *line->p++ = '}';
    *line->p++ = '\n';

    if (ngx_http_idem_tap_followed()) {
        ngx_http_idem_tap_write(line->buf, line->p - line->buf);
    }

    if (line->log) {
        ngx_http_idem_log_write(line->log, line->level, line->buf,
                                line->p - line->buf);
    }
}
