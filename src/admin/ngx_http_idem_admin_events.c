
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * GET events: live events of this nginx, as server-sent events.
 *
 * The request polls the tap, a ring buffer in shared memory with the events
 * of all workers, several times a second.  A client that reads too slowly
 * gets a comment that it missed events. ?key= and ?record= select events.
 *
 * Called by the admin handler; calls the tap.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_admin.h"
#include "observe/ngx_http_idem_tap.h"


#define NGX_HTTP_IDEM_FOLLOW_POLL   100
#define NGX_HTTP_IDEM_FOLLOW_ALIVE  15000
#define NGX_HTTP_IDEM_FOLLOW_SIZE   65536

/* "data: " and the blank line */
#define NGX_HTTP_IDEM_FOLLOW_FRAME  16


typedef struct {
    ngx_http_idem_job_t   job;
    uint64_t              at;
    u_char               *buf;
    ngx_msec_t            sent;
    ngx_str_t             word;                 /* in each line, or empty   */
    ngx_str_t             other;                /* or this one              */
    u_char                word_data[96];
    u_char                other_data[96];
} ngx_http_idem_events_t;


static void ngx_http_idem_follow_poll(ngx_event_t *ev);
static u_char *ngx_http_idem_follow_gather(ngx_http_idem_events_t *f);
static ngx_int_t ngx_http_idem_follow_send(ngx_http_idem_events_t *f,
    u_char *last);
static ngx_int_t ngx_http_idem_follow_select(ngx_http_idem_events_t *f);
static ngx_uint_t ngx_http_idem_follow_match(ngx_http_idem_events_t *f,
    u_char *p, size_t len);


ngx_int_t
ngx_http_idem_admin_events(ngx_http_request_t *r)
{
    u_char                  *p;
    ngx_int_t                rc;
    ngx_http_idem_events_t  *f;

    f = ngx_http_idem_admin_job(r, sizeof(ngx_http_idem_events_t),
                                ngx_http_idem_follow_poll);
    if (f == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_idem_follow_select(f);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc != NGX_OK) {
        return ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                      "RECORD_INVALID", "\"record\" is 64 hexadecimal "
                      "digits.");
    }

    f->buf = ngx_palloc(r->pool, NGX_HTTP_IDEM_FOLLOW_SIZE);
    if (f->buf == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    f->at = ngx_http_idem_tap_now();
    ngx_http_idem_tap_follow();

    rc = ngx_http_idem_admin_header(r, NGX_HTTP_OK,
                                    NGX_HTTP_IDEM_ADMIN_STREAM, -1);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    p = ngx_cpymem(f->buf, ": events from now on\n\n", 22);

    if (ngx_http_idem_follow_send(f, p) == NGX_ERROR) {
        return NGX_ERROR;
    }

    r->main->count++;
    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_idem_follow_write;

    /* not cancelable: a worker that shuts down ends the request first */

    ngx_add_timer(&f->job.event, NGX_HTTP_IDEM_FOLLOW_POLL);

    return NGX_DONE;
}


/*
 * Sets the text that a selected line contains.  Events that a store reports
 * for a record lack the hash of the key, which the store does not know.
 */

static ngx_int_t
ngx_http_idem_follow_select(ngx_http_idem_events_t *f)
{
    u_char     *p, id[NGX_HTTP_IDEM_ID_LEN];
    u_char      hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_int_t   rc;
    ngx_str_t   value, scope;

    f->word.data = f->word_data;
    f->other.data = f->other_data;

    rc = ngx_http_idem_admin_arg(f->job.request, "record", &value);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_OK) {

        if (ngx_http_idem_id_parse(value.data, value.len, id) != NGX_OK) {
            return NGX_DECLINED;
        }

        p = ngx_sprintf(f->word_data, "\"record\":\"%*xs\"", sizeof(id), id);
        f->word.len = p - f->word_data;

        return NGX_OK;
    }

    rc = ngx_http_idem_admin_key(f->job.request, id, hash, &scope);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_OK) {
        p = ngx_sprintf(f->word_data, "\"key_hash\":\"%*xs\"", sizeof(hash),
                        hash);
        f->word.len = p - f->word_data;

        p = ngx_sprintf(f->other_data, "\"record\":\"%*xs\"", sizeof(id), id);
        f->other.len = p - f->other_data;
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_idem_follow_match(ngx_http_idem_events_t *f, u_char *p, size_t len)
{
    return f->word.len == 0
           || ngx_strlcasestrn(p, p + len, f->word.data, f->word.len - 1)
           || (f->other.len
               && ngx_strlcasestrn(p, p + len, f->other.data,
                                   f->other.len - 1));
}


static void
ngx_http_idem_follow_poll(ngx_event_t *ev)
{
    u_char                  *last;
    ngx_connection_t        *c;
    ngx_http_request_t      *r;
    ngx_http_idem_events_t  *f;

    f = ev->data;
    r = f->job.request;
    c = r->connection;

    if (ngx_exiting || ngx_terminate) {
        ngx_http_finalize_request(r, ngx_http_send_special(r, NGX_HTTP_LAST));
        ngx_http_run_posted_requests(c);
        return;
    }

    ngx_http_idem_tap_follow();

    /* the buffer is reused: wait until its data was sent */

    if (!r->buffered && !c->buffered && r->out == NULL) {

        last = ngx_http_idem_follow_gather(f);

        if (last == f->buf
            && ngx_current_msec - f->sent > NGX_HTTP_IDEM_FOLLOW_ALIVE)
        {
            last = ngx_cpymem(f->buf, ":\n\n", 3);
        }

        if (last != f->buf
            && ngx_http_idem_follow_send(f, last) == NGX_ERROR)
        {
            ngx_http_finalize_request(r, NGX_ERROR);
            ngx_http_run_posted_requests(c);
            return;
        }
    }

    ngx_add_timer(ev, NGX_HTTP_IDEM_FOLLOW_POLL);
}


static u_char *
ngx_http_idem_follow_gather(ngx_http_idem_events_t *f)
{
    u_char      *p, *last;
    size_t       len;
    ngx_uint_t   missed;

    p = f->buf;
    last = f->buf + NGX_HTTP_IDEM_FOLLOW_SIZE;

    while (last - p > (ssize_t) NGX_HTTP_IDEM_LINE_LEN
                      + 4 * NGX_HTTP_IDEM_FOLLOW_FRAME)
    {
        missed = 0;

        len = ngx_http_idem_tap_read(&f->at, p + 6, NGX_HTTP_IDEM_LINE_LEN,
                                     &missed);

        if (missed) {
            p = ngx_cpymem(p, ": some events were missed\n\n", 27);
            continue;
        }

        if (len == 0) {
            break;
        }

        if (!ngx_http_idem_follow_match(f, p + 6, len)) {
            continue;
        }

        ngx_memcpy(p, "data: ", 6);
        p += 6 + len;

        /* the line itself ends with a line feed */

        *p++ = LF;
    }

    return p;
}


static ngx_int_t
ngx_http_idem_follow_send(ngx_http_idem_events_t *f, u_char *last)
{
    f->sent = ngx_current_msec;

    return ngx_http_idem_admin_stream_send(f->job.request, f->buf, last);
}


ngx_int_t
ngx_http_idem_admin_stream_send(ngx_http_request_t *r, u_char *p,
    u_char *last)
{
    ngx_buf_t    *b;
    ngx_chain_t   out;

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_ERROR;
    }

    b->pos = p;
    b->last = last;
    b->memory = 1;
    b->flush = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


void
ngx_http_idem_follow_write(ngx_http_request_t *r)
{
    if (ngx_http_output_filter(r, NULL) == NGX_ERROR
        || ngx_handle_write_event(r->connection->write, 0) != NGX_OK)
    {
        ngx_http_finalize_request(r, NGX_ERROR);
    }
}
