
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


/* polling interval after the last stored event, ms */
#define NGX_HTTP_IDEM_TRAIL_POLL       300
#define NGX_HTTP_IDEM_TRAIL_ALIVE      15000

/* polling interval while the client reads slowly, ms */
#define NGX_HTTP_IDEM_TRAIL_POLL_SLOW  50


typedef struct {
    ngx_http_idem_job_t     job;
    ngx_http_idem_trail_t   trail;
    ngx_msec_t              sent;
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


static ngx_uint_t ngx_http_idem_trail_selectors(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_trail_query(ngx_http_idem_admin_trail_t *t);
static ngx_int_t ngx_http_idem_trail_time(ngx_http_request_t *r,
    const char *name, uint64_t *time);
static ngx_int_t ngx_http_idem_trail_select(ngx_http_idem_admin_trail_t *t);
static void ngx_http_idem_trail_poll(ngx_event_t *ev);
static void ngx_http_idem_trail_submit(ngx_http_idem_admin_trail_t *t);
static void ngx_http_idem_trail_handler(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_trail_replied(ngx_http_idem_admin_trail_t *t);
static ngx_int_t ngx_http_idem_trail_print(ngx_http_idem_admin_trail_t *t);
static ngx_int_t ngx_http_idem_trail_begin(ngx_http_idem_admin_trail_t *t);
static ngx_int_t ngx_http_idem_trail_end(ngx_http_idem_admin_trail_t *t);
static ngx_int_t ngx_http_idem_trail_write(ngx_http_idem_admin_trail_t *t,
    u_char *p, u_char *last);
static void ngx_http_idem_trail_finish(ngx_http_idem_admin_trail_t *t);


ngx_int_t
ngx_http_idem_admin_trail(ngx_http_request_t *r, ngx_http_idem_store_t *store)
{
    ngx_int_t                     rc;
    ngx_str_t                     key;
    ngx_uint_t                    i;
    ngx_http_idem_admin_trail_t  *t;

    static const char  *names[] = { "scope", "store", "since", "until",
                                    "older", "key", "record", "actor",
                                    "after", "follow", "dry_run", NULL };

    /* a scope is that of a key */

    i = (ngx_http_arg(r, (u_char *) "key", 3, &key) != NGX_OK);

    if (ngx_http_idem_admin_deletion(r, names + i, &rc) != NGX_OK) {
        return rc;
    }

    t = ngx_http_idem_admin_job(r, sizeof(ngx_http_idem_admin_trail_t),
                                ngx_http_idem_trail_poll);
    if (t == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    t->job.op.store = store;
    t->remove = (r->method == NGX_HTTP_DELETE);
    t->follow = !t->remove;

    rc = ngx_http_idem_trail_query(t);

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

    if (t->remove && ngx_http_idem_trail_selectors(r) > 1) {
        return ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                      "FILTER_INVALID", "Nothing was deleted: events are "
                      "chosen by one of record, key and actor.");
    }

    r->main->count++;
    r->read_event_handler = ngx_http_test_reading;

    ngx_http_idem_trail_submit(t);

    return NGX_DONE;
}


/* one that is lost for want of memory was given */

static ngx_uint_t
ngx_http_idem_trail_selectors(ngx_http_request_t *r)
{
    ngx_str_t  value;

    return (ngx_http_idem_admin_arg(r, "record", &value) != NGX_DECLINED)
           + (ngx_http_idem_admin_arg(r, "key", &value) != NGX_DECLINED)
           + (ngx_http_idem_admin_arg(r, "actor", &value) != NGX_DECLINED);
}


/* NGX_DECLINED: an argument is invalid */

static ngx_int_t
ngx_http_idem_trail_query(ngx_http_idem_admin_trail_t *t)
{
    ngx_int_t            rc;
    ngx_str_t            follow, after;
    ngx_uint_t           dry_run;
    ngx_http_request_t  *r;

    r = t->job.request;

    rc = ngx_http_idem_trail_time(r, "since", &t->trail.since);

    if (rc == NGX_OK) {
        rc = ngx_http_idem_trail_time(r, "until", &t->trail.until);
    }

    if (rc == NGX_OK) {
        rc = ngx_http_idem_trail_time(r, "older", &t->trail.until);
    }

    if (rc == NGX_OK) {
        rc = ngx_http_idem_trail_select(t);
    }

    if (rc != NGX_OK) {
        return rc;
    }

    if (ngx_http_idem_admin_arg(r, "follow", &follow) == NGX_ERROR
        || ngx_http_idem_admin_arg(r, "after", &after) == NGX_ERROR
        || ngx_http_idem_admin_dry_run(r, &dry_run) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (t->trail.until || (follow.len == 1 && follow.data[0] == '0')) {
        t->follow = 0;
    }

    if (after.len && after.len < sizeof(t->cursor)) {
        ngx_memcpy(t->cursor, after.data, after.len);
        t->cursor_len = after.len;
    }

    t->dry_run = dry_run;
    t->trail.remove = (t->remove && !t->dry_run);

    return NGX_OK;
}


/* parses a time ago or a point in time; sets ms since the epoch */

static ngx_int_t
ngx_http_idem_trail_time(ngx_http_request_t *r, const char *name,
    uint64_t *time)
{
    int         n;
    time_t      sec;
    ngx_int_t   ms;
    ngx_str_t   value;
    struct tm   tm, date;
    ngx_uint_t  i;
    char        text[sizeof("2026-01-28T10:00:00")];

    if (ngx_http_idem_admin_arg(r, name, &value) == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (value.data == NULL) {
        return NGX_OK;
    }

    ms = ngx_parse_time(&value, 0);

    if (ms != NGX_ERROR) {
        *time = ngx_http_idem_history_now();
        *time = (uint64_t) ms < *time ? *time - ms : 1;

        return NGX_OK;
    }

    /* a date, or a date and a time; fractions of a second are ignored */

    n = (int) ngx_min(value.len, sizeof(text) - 1);

    for (i = n; i < value.len; i++) {
        if (value.data[i] == '+' || value.data[i] == '-') {
            return NGX_DECLINED;                /* the offset of a time zone */
        }
    }

    ngx_memzero(&tm, sizeof(struct tm));
    ngx_memzero(text, sizeof(text));
    ngx_memcpy(text, value.data, n);

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
ngx_http_idem_trail_select(ngx_http_idem_admin_trail_t *t)
{
    u_char                  id[NGX_HTTP_IDEM_ID_LEN];
    u_char                  hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_int_t               rc;
    ngx_str_t               scope, actor;
    ngx_http_request_t     *r;
    ngx_http_idem_trail_t  *trail;

    r = t->job.request;
    trail = &t->trail;

    rc = ngx_http_idem_admin_arg(r, "record", &trail->value);

    if (rc == NGX_OK) {

        if (ngx_http_idem_admin_id(&trail->value, id) != NGX_OK) {
            return NGX_DECLINED;
        }

        ngx_strlow(trail->value.data, trail->value.data, trail->value.len);
        ngx_str_set(&trail->name, "record");

        return NGX_OK;
    }

    if (rc == NGX_DECLINED) {
        rc = ngx_http_idem_admin_key(r, id, hash, &scope);
    }

    if (rc == NGX_OK) {
        ngx_str_set(&trail->name, "key_hash");

        /*
         * events that a store reports for a record lack the hash of the key
         */

        ngx_str_set(&trail->other_name, "record");
        trail->other.data = t->record;
        trail->other.len = ngx_hex_dump(t->record, id, sizeof(id))
                           - t->record;

    } else {

        if (rc == NGX_ERROR
            || ngx_http_idem_admin_arg(r, "actor", &actor) == NGX_ERROR)
        {
            return NGX_ERROR;
        }

        if (actor.len == 0) {
            return NGX_OK;
        }

        /* by name, stored as a hash or plain; or by the hash */

        ngx_str_set(&trail->name, "actor");
        trail->other_name = trail->name;
        trail->other.data = t->actor;
        trail->other.len = ngx_http_idem_line_text(t->actor, &actor)
                           - t->actor;
        ngx_http_idem_digest_plain(hash, actor.data, actor.len);
    }

    trail->value.data = t->text;
    trail->value.len = ngx_hex_dump(t->text, hash, sizeof(hash)) - t->text;

    return NGX_OK;
}


static void
ngx_http_idem_trail_poll(ngx_event_t *ev)
{
    ngx_connection_t             *c;
    ngx_http_request_t           *r;
    ngx_http_idem_admin_trail_t  *t;

    static u_char  alive[] = ":\n\n";

    t = ev->data;
    r = t->job.request;
    c = r->connection;

    if (ngx_exiting || ngx_terminate) {
        ngx_http_finalize_request(r, ngx_http_idem_trail_end(t));
        ngx_http_run_posted_requests(c);
        return;
    }

    /* the data being sent is in the pool of the slice */

    if (t->begun && (r->buffered || c->buffered || r->out)) {
        ngx_add_timer(ev, NGX_HTTP_IDEM_TRAIL_POLL_SLOW);
        return;
    }

    if (t->begun && ngx_current_msec - t->sent > NGX_HTTP_IDEM_TRAIL_ALIVE
        && ngx_http_idem_trail_write(t, alive, alive + 3) == NGX_ERROR)
    {
        ngx_http_finalize_request(r, NGX_ERROR);

    } else {
        ngx_http_idem_trail_submit(t);
    }

    ngx_http_run_posted_requests(c);
}


/*
 * The request may be finalized when it returns.  The posted requests are left
 * to the caller: the first of them may end the request, which must not happen
 * while its content handler runs.
 */

static void
ngx_http_idem_trail_submit(ngx_http_idem_admin_trail_t *t)
{
    ngx_http_idem_op_t     *op;
    ngx_http_idem_store_t  *store;

    if (t->job.pool) {
        ngx_destroy_pool(t->job.pool);
    }

    t->job.pool = ngx_create_pool(16384, t->job.request->connection->log);

    if (t->job.pool == NULL
        || ngx_array_init(&t->trail.found, t->job.pool,
                          NGX_HTTP_IDEM_TRAIL_SLICE, sizeof(ngx_str_t))
           != NGX_OK)
    {
        ngx_http_finalize_request(t->job.request,
                                  t->begun ? NGX_ERROR
                                           : NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    op = &t->job.op;
    store = op->store;

    ngx_memzero(op, sizeof(ngx_http_idem_op_t));

    op->kind = NGX_HTTP_IDEM_OP_EVENTS;
    op->store = store;
    op->trail = &t->trail;
    op->pool = t->job.pool;
    op->log = t->job.request->connection->log;
    op->handler = ngx_http_idem_trail_handler;
    op->data = t;

    t->trail.cursor.data = t->cursor;
    t->trail.cursor.len = t->cursor_len;
    t->trail.matched = 0;
    t->trail.more = 0;

    if (ngx_http_idem_store_submit(op) == NGX_OK) {
        ngx_http_idem_trail_finish(t);
    }
}


static void
ngx_http_idem_trail_handler(ngx_http_idem_op_t *op)
{
    ngx_connection_t             *c;
    ngx_http_idem_admin_trail_t  *t;

    t = op->data;
    c = t->job.request->connection;

    ngx_http_idem_trail_finish(t);
    ngx_http_run_posted_requests(c);
}


static void
ngx_http_idem_trail_finish(ngx_http_idem_admin_trail_t *t)
{
    ngx_int_t  rc;

    rc = ngx_http_idem_trail_replied(t);

    if (rc != NGX_AGAIN) {
        ngx_http_finalize_request(t->job.request, rc);
    }
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
                      NGX_HTTP_SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE",
                      "Store \"%V\" does not answer: %s. %ui events were "
                      "deleted before that.", &op->store->name,
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

    if (!t->begun && ngx_http_idem_trail_begin(t) != NGX_OK) {
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

    return ngx_http_idem_trail_write(t, start, p);
}


static ngx_int_t
ngx_http_idem_trail_begin(ngx_http_idem_admin_trail_t *t)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    static u_char  hello[] = ": events of all hosts\n\n";

    r = t->job.request;

    rc = ngx_http_idem_admin_header(r, NGX_HTTP_OK,
                                    NGX_HTTP_IDEM_ADMIN_STREAM, -1);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return NGX_ERROR;
    }

    t->begun = 1;
    r->write_event_handler = ngx_http_idem_follow_write;

    return ngx_http_idem_trail_write(t, hello, hello + sizeof(hello) - 1);
}


static ngx_int_t
ngx_http_idem_trail_end(ngx_http_idem_admin_trail_t *t)
{
    ngx_int_t              rc;
    ngx_str_t              by;
    ngx_http_request_t    *r;
    ngx_http_idem_text_t   text;

    r = t->job.request;

    if (!t->remove) {

        if (!t->begun && ngx_http_idem_trail_begin(t) != NGX_OK) {
            return NGX_ERROR;
        }

        rc = ngx_http_send_special(r, NGX_HTTP_LAST);

        /* NGX_AGAIN: nginx sends the rest once the request is finalized */

        return (rc == NGX_AGAIN) ? NGX_OK : rc;
    }

    by = r->headers_in.user.len ? r->headers_in.user
                                : r->connection->addr_text;

    if (t->n && !t->dry_run) {
        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "idempotency: %ui events were deleted from store "
                      "\"%V\" by %V", t->n, &t->job.op.store->name, &by);
    }

    ngx_http_idem_admin_text(r, &text);

    ngx_http_idem_text(&text, "{\"deleted\":%ui,\"matched\":%ui,"
                       "\"dry_run\":%s}\n", t->dry_run ? 0 : t->n, t->n,
                       t->dry_run ? "true" : "false");

    return ngx_http_idem_admin_send(r, NGX_HTTP_OK, &text);
}


static ngx_int_t
ngx_http_idem_trail_write(ngx_http_idem_admin_trail_t *t, u_char *p,
    u_char *last)
{
    t->sent = ngx_current_msec;

    return ngx_http_idem_admin_stream_send(t->job.request, p, last)
           == NGX_ERROR ? NGX_ERROR : NGX_OK;
}
