
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * GET events?store=: stored events of all hosts, as server-sent events;
 * DELETE removes them.
 *
 *   since=, until=         time ago as in nginx.conf, or ISO 8601
 *   older=                 the same as until
 *   key=, record=, actor=  select events
 *   after=                 start after this id of the stream (Last-Event-ID)
 *   follow=0               end after the last stored event
 *   dry_run=1              with DELETE: only count
 *
 * The next slice is requested after the client has received the previous one.
 *
 * Called by the admin handler; calls the store.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_admin.h"
#include "claim/ngx_http_idem_claim.h"


/* polling interval after the last stored event, ms */
#define NGX_HTTP_IDEM_TRAIL_POLL       300

/* polling interval while the client reads slowly, ms */
#define NGX_HTTP_IDEM_TRAIL_POLL_SLOW  50


typedef struct {
    ngx_http_idem_job_t     job;
    ngx_http_idem_store_t  *store;
    ngx_http_idem_trail_t   trail;
    ngx_uint_t              n;                  /* events matched           */
    size_t                  cursor_len;
    u_char                  cursor[NGX_HTTP_IDEM_CURSOR_MAX];
    u_char                  text[2 * NGX_HTTP_IDEM_HASH_LEN];
    u_char                  record[2 * NGX_HTTP_IDEM_ID_LEN];
    u_char                  actor[NGX_HTTP_IDEM_LINE_STRING];
    unsigned                follow:1;
    unsigned                remove:1;
    unsigned                dry_run:1;
    unsigned                begun:1;            /* the header was sent      */
} ngx_http_idem_admin_trail_t;


static ngx_int_t ngx_http_idem_trail_query(ngx_http_idem_admin_trail_t *t,
    ngx_str_t *args);
static ngx_int_t ngx_http_idem_trail_time(ngx_str_t *value, uint64_t *time);
static ngx_int_t ngx_http_idem_trail_select(ngx_http_idem_admin_trail_t *t,
    ngx_str_t *args);
static ngx_int_t ngx_http_idem_trail_run(ngx_http_idem_job_t *job);
static ngx_int_t ngx_http_idem_trail_ask(ngx_http_idem_admin_trail_t *t);
static ngx_int_t ngx_http_idem_trail_replied(ngx_http_idem_admin_trail_t *t);
static ngx_int_t ngx_http_idem_trail_print(ngx_http_idem_admin_trail_t *t);
static ngx_int_t ngx_http_idem_trail_begin(ngx_http_idem_admin_trail_t *t);
static ngx_int_t ngx_http_idem_trail_end(ngx_http_idem_admin_trail_t *t);


ngx_int_t
ngx_http_idem_admin_trail(ngx_http_request_t *r, ngx_str_t *args,
    ngx_http_idem_store_t *store)
{
    ngx_int_t                     rc;
    ngx_uint_t                    scope;
    ngx_http_idem_admin_trail_t  *t;

    static const ngx_uint_t  known = ((1 << NGX_HTTP_IDEM_ARG_N) - 1)
                                     & ~(1 << NGX_HTTP_IDEM_ARG_GROUP
                                         | 1 << NGX_HTTP_IDEM_ARG_TENANT
                                         | 1 << NGX_HTTP_IDEM_ARG_STATE
                                         | 1 << NGX_HTTP_IDEM_ARG_LIMIT
                                         | 1 << NGX_HTTP_IDEM_ARG_CURSOR);

    /* a scope is that of a key */

    scope = args[NGX_HTTP_IDEM_ARG_KEY].data ? 0
                                             : 1 << NGX_HTTP_IDEM_ARG_SCOPE;

    if (ngx_http_idem_admin_deletion(r, known & ~scope, &rc) != NGX_OK) {
        return rc;
    }

    t = ngx_http_idem_admin_job(r, sizeof(ngx_http_idem_admin_trail_t),
                                ngx_http_idem_trail_run);
    if (t == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    t->store = store;
    t->remove = (r->method == NGX_HTTP_DELETE);
    t->follow = !t->remove;

    rc = ngx_http_idem_trail_query(t, args);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc != NGX_OK) {
        return ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                      "ARGUMENT_INVALID", "\"since\", \"until\" and \"older\" "
                      "are times as in nginx.conf (30s, 1h, 7d) or "
                      "2026-01-28T10:00:00Z, and \"record\" is 64 hexadecimal "
                      "digits.");
    }

    if (t->remove && t->trail.name.len == 0 && t->trail.until == 0) {
        return ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                      "FILTER_MISSING", "Which events are to be deleted? Say "
                      "older, actor, record or key.");
    }

    if (t->remove
        && (args[NGX_HTTP_IDEM_ARG_RECORD].data != NULL)
           + (args[NGX_HTTP_IDEM_ARG_KEY].data != NULL)
           + (args[NGX_HTTP_IDEM_ARG_ACTOR].data != NULL)
           > 1)
    {
        return ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                      "FILTER_INVALID", "Nothing was deleted: events are "
                      "chosen by one of record, key and actor.");
    }

    return ngx_http_idem_admin_start(t);
}


/* NGX_DECLINED: an argument is invalid */

static ngx_int_t
ngx_http_idem_trail_query(ngx_http_idem_admin_trail_t *t, ngx_str_t *args)
{
    ngx_str_t  *after;

    if (ngx_http_idem_trail_time(&args[NGX_HTTP_IDEM_ARG_SINCE],
                                 &t->trail.since)
        != NGX_OK
        || ngx_http_idem_trail_time(&args[NGX_HTTP_IDEM_ARG_UNTIL],
                                    &t->trail.until)
           != NGX_OK
        || ngx_http_idem_trail_time(&args[NGX_HTTP_IDEM_ARG_OLDER],
                                    &t->trail.until)
           != NGX_OK)
    {
        return NGX_DECLINED;
    }

    if (t->trail.until
        || ngx_http_idem_admin_is_0(&args[NGX_HTTP_IDEM_ARG_FOLLOW]))
    {
        t->follow = 0;
    }

    after = &args[NGX_HTTP_IDEM_ARG_AFTER];

    if (after->len && after->len < sizeof(t->cursor)) {
        ngx_memcpy(t->cursor, after->data, after->len);
        t->cursor_len = after->len;
    }

    t->dry_run = ngx_http_idem_admin_is_dry_run(args);
    t->trail.remove = (t->remove && !t->dry_run);

    return ngx_http_idem_trail_select(t, args);
}


/* parses a time ago or a point in time; sets ms since the epoch */

static ngx_int_t
ngx_http_idem_trail_time(ngx_str_t *value, uint64_t *time)
{
    int         n;
    time_t      sec;
    ngx_int_t   ms;
    struct tm   tm, date;
    ngx_uint_t  i;
    char        text[sizeof("2026-01-28T10:00:00")];

    if (value->data == NULL) {
        return NGX_OK;
    }

    ms = ngx_parse_time(value, 0);

    if (ms != NGX_ERROR) {
        *time = ngx_http_idem_history_now();
        *time = (uint64_t) ms < *time ? *time - ms : 1;

        return NGX_OK;
    }

    /* a date, or a date and a time; fractions of a second are ignored */

    n = (int) ngx_min(value->len, sizeof(text) - 1);

    for (i = n; i < value->len; i++) {
        if (value->data[i] == '+' || value->data[i] == '-') {
            return NGX_DECLINED;                /* the offset of a time zone */
        }
    }

    ngx_memzero(&tm, sizeof(struct tm));
    ngx_memzero(text, sizeof(text));
    ngx_memcpy(text, value->data, n);

    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d", &tm.tm_year, &tm.tm_mon,
               &tm.tm_mday, &tm.tm_hour, &tm.tm_min, &tm.tm_sec)
        < 3)
    {
        return NGX_DECLINED;
    }

    tm.tm_year -= 1900;
    tm.tm_mon -= 1;

    /* the 13th month would be one of the next year */

    date = tm;
    sec = timegm(&date);

    if (date.tm_mon != tm.tm_mon || date.tm_mday != tm.tm_mday
        || date.tm_hour != tm.tm_hour || date.tm_min != tm.tm_min
        || date.tm_sec != tm.tm_sec)
    {
        return NGX_DECLINED;
    }

    *time = sec > 0 ? (uint64_t) sec * 1000 : 1;

    return NGX_OK;
}


/* sets the members that a selected event has */

static ngx_int_t
ngx_http_idem_trail_select(ngx_http_idem_admin_trail_t *t, ngx_str_t *args)
{
    u_char                  hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_int_t               rc;
    ngx_str_t               record, plain, *actor;
    ngx_http_idem_trail_t  *trail;

    trail = &t->trail;

    record.data = t->record;
    trail->value.data = t->text;

    rc = ngx_http_idem_admin_selected(t->job.request, args, &record,
                                      &trail->value);

    if (rc != NGX_OK) {
        return rc;
    }

    if (trail->value.len) {

        /*
         * events that a store reports for a record lack the hash of the key
         */

        ngx_str_set(&trail->name, "key_hash");
        ngx_str_set(&trail->other_name, "record");
        trail->other = record;

    } else if (record.len) {
        ngx_str_set(&trail->name, "record");
        trail->value = record;

    } else if (args[NGX_HTTP_IDEM_ARG_ACTOR].len) {
        actor = &args[NGX_HTTP_IDEM_ARG_ACTOR];
        plain = *actor;

        if (plain.len > NGX_HTTP_IDEM_LABEL_MAX
            && ngx_http_idem_label_bounded(t->job.request->pool, &plain)
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        /* by name, stored as a hash or plain; or by the hash */

        ngx_str_set(&trail->name, "actor");
        trail->other_name = trail->name;
        trail->other.data = t->actor;
        trail->other.len = ngx_http_idem_line_text(t->actor, &plain)
                           - t->actor;

        ngx_http_idem_digest_plain(hash, actor->data, actor->len);
        trail->value.len = ngx_hex_dump(t->text, hash, sizeof(hash))
                           - t->text;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_trail_run(ngx_http_idem_job_t *job)
{
    ngx_int_t                     rc;
    ngx_http_idem_admin_trail_t  *t;

    t = (ngx_http_idem_admin_trail_t *) job;

    if (!job->asked) {
        rc = ngx_http_idem_trail_ask(t);

        if (rc != NGX_OK) {
            return rc;
        }
    }

    job->asked = 0;

    return ngx_http_idem_trail_replied(t);
}


/* for the next slice; there is a pool if it is not the first */

static ngx_int_t
ngx_http_idem_trail_ask(ngx_http_idem_admin_trail_t *t)
{
    ngx_http_request_t  *r;

    r = t->job.request;

    if (t->job.pool && (ngx_exiting || ngx_terminate)) {
        return ngx_http_idem_trail_end(t);
    }

    if (t->begun) {

        /* the data being sent is in the pool of the slice */

        if (ngx_http_idem_stream_busy(r)) {
            ngx_add_timer(&t->job.event, NGX_HTTP_IDEM_TRAIL_POLL_SLOW);
            return NGX_AGAIN;
        }

        if (ngx_http_idem_stream_alive(&t->job) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (t->job.pool) {
        ngx_destroy_pool(t->job.pool);
    }

    t->job.pool = ngx_create_pool(16384, r->connection->log);

    if (t->job.pool == NULL
        || ngx_array_init(&t->trail.found, t->job.pool,
                          NGX_HTTP_IDEM_TRAIL_SLICE, sizeof(ngx_str_t))
           != NGX_OK)
    {
        return t->begun ? NGX_ERROR : NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    t->trail.cursor.data = t->cursor;
    t->trail.cursor.len = t->cursor_len;
    t->trail.matched = 0;
    t->trail.more = 0;

    return ngx_http_idem_admin_ask(&t->job, t->store, NGX_HTTP_IDEM_OP_EVENTS,
                                   NULL, NULL, &t->trail);
}


/* NGX_AGAIN: continues later */

static ngx_int_t
ngx_http_idem_trail_replied(ngx_http_idem_admin_trail_t *t)
{
    ngx_http_idem_op_t     *op;
    ngx_http_idem_trail_t  *trail;

    op = &t->job.op;
    trail = &t->trail;

    if (op->result != NGX_HTTP_IDEM_OK) {

        /* the client reconnects with the id of the last event */

        if (t->begun) {
            return ngx_http_idem_trail_end(t);
        }

        return ngx_http_idem_admin_error(t->job.request,
                      op->denied ? NGX_HTTP_FORBIDDEN
                                 : NGX_HTTP_SERVICE_UNAVAILABLE,
                      op->denied ? "STORE_FORBIDDEN" : "STORE_UNAVAILABLE",
                      t->remove ? "Store \"%V\" %s: %s. %ui events were "
                                  "deleted before that."
                                : "Store \"%V\" %s: %s.",
                      &t->store->name,
                      op->denied ? "refuses" : "does not answer",
                      op->error ? op->error : "no reply",
                      t->dry_run ? 0 : t->n);
    }

    if (trail->cursor.data != t->cursor) {
        t->cursor_len = ngx_min(trail->cursor.len, sizeof(t->cursor));
        ngx_memcpy(t->cursor, trail->cursor.data, t->cursor_len);
    }

    t->n += trail->matched;

    if (!t->remove && ngx_http_idem_trail_print(t) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!trail->more && !t->follow) {
        return ngx_http_idem_trail_end(t);
    }

    /* not cancelable: a worker that shuts down ends the request first */

    ngx_add_timer(&t->job.event, trail->more ? 1 : NGX_HTTP_IDEM_TRAIL_POLL);

    return NGX_AGAIN;
}


/*
 * sends "data: <event>" for each event, and the cursor as id of the last one
 */

static ngx_int_t
ngx_http_idem_trail_print(ngx_http_idem_admin_trail_t *t)
{
    size_t       size;
    u_char      *p, *start;
    ngx_str_t   *line;
    ngx_uint_t   i;

    if (ngx_http_idem_trail_begin(t) != NGX_OK) {
        return NGX_ERROR;
    }

    line = t->trail.found.elts;
    size = t->cursor_len + sizeof("id: \n") - 1;

    for (i = 0; i < t->trail.found.nelts; i++) {
        size += line[i].len + sizeof("data: \n\n") - 1;
    }

    if (i == 0) {
        return NGX_OK;
    }

    start = ngx_pnalloc(t->job.pool, size);
    if (start == NULL) {
        return NGX_ERROR;
    }

    for (p = start, i = 0; i < t->trail.found.nelts; i++) {

        if (i + 1 == t->trail.found.nelts) {
            p = ngx_sprintf(p, "id: %*s\n", t->cursor_len, t->cursor);
        }

        p = ngx_sprintf(p, "data: %V\n\n", &line[i]);
    }

    return ngx_http_idem_stream_send(&t->job, start, p);
}


static ngx_int_t
ngx_http_idem_trail_begin(ngx_http_idem_admin_trail_t *t)
{
    if (t->begun) {
        return NGX_OK;
    }

    t->begun = 1;

    return ngx_http_idem_stream_begin(&t->job, ": events of all hosts\n\n");
}


static ngx_int_t
ngx_http_idem_trail_end(ngx_http_idem_admin_trail_t *t)
{
    ngx_str_t              by;
    ngx_http_request_t    *r;
    ngx_http_idem_text_t   text;

    r = t->job.request;

    if (!t->remove) {

        return ngx_http_idem_trail_begin(t) == NGX_OK
               ? ngx_http_idem_stream_end(&t->job) : NGX_ERROR;
    }

    by = r->headers_in.user.len ? r->headers_in.user
                                : r->connection->addr_text;

    if (t->n && !t->dry_run) {
        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "idempotency: %ui events were deleted from store "
                      "\"%V\" by %V", t->n, &t->store->name, &by);
    }

    ngx_http_idem_admin_text(r, &text);

    ngx_http_idem_text(&text, "{\"deleted\":%ui,\"matched\":%ui,"
                       "\"dry_run\":%s}\n", t->dry_run ? 0 : t->n, t->n,
                       t->dry_run ? "true" : "false");

    return ngx_http_idem_admin_send(r, NGX_HTTP_OK, &text);
}
