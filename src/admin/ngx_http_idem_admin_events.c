
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
#define NGX_HTTP_IDEM_FOLLOW_SIZE   65536

/* "data: " and the blank line */
#define NGX_HTTP_IDEM_FOLLOW_FRAME  16

/* how long a stream may be silent, ms */
#define NGX_HTTP_IDEM_STREAM_ALIVE  15000


typedef struct {
    ngx_http_idem_job_t   job;
    uint64_t              at;
    u_char               *buf;
    ngx_str_t             hash;                 /* in each line, or empty   */
    ngx_str_t             record;               /* or this one              */
    u_char                hash_data[96];
    u_char                record_data[96];
} ngx_http_idem_events_t;


static ngx_int_t ngx_http_idem_follow_poll(ngx_http_idem_job_t *job);
static u_char *ngx_http_idem_follow_gather(ngx_http_idem_events_t *f);
static ngx_int_t ngx_http_idem_follow_select(ngx_http_idem_events_t *f,
    ngx_str_t *args);
static ngx_uint_t ngx_http_idem_follow_match(ngx_http_idem_events_t *f,
    u_char *p, size_t len);
static ngx_int_t ngx_http_idem_stream_output(ngx_http_idem_job_t *job,
    ngx_buf_t *b, u_char *p, u_char *last);
static void ngx_http_idem_stream_write(ngx_http_request_t *r);


ngx_int_t
ngx_http_idem_admin_events(ngx_http_request_t *r, ngx_str_t *args)
{
    ngx_int_t                rc;
    ngx_http_idem_events_t  *f;

    f = ngx_http_idem_admin_job(r, sizeof(ngx_http_idem_events_t),
                                ngx_http_idem_follow_poll);
    if (f == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_idem_follow_select(f, args);

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

    rc = ngx_http_idem_stream_begin(&f->job, ": events from now on\n\n");

    return (rc == NGX_OK && !r->header_only) ? ngx_http_idem_admin_start(f)
                                             : rc;
}


/*
 * Sets the text that a selected line contains.  Events that a store reports
 * for a record lack the hash of the key, which the store does not know.
 */

static ngx_int_t
ngx_http_idem_follow_select(ngx_http_idem_events_t *f, ngx_str_t *args)
{
    u_char     text[2][2 * NGX_HTTP_IDEM_ID_LEN];
    ngx_int_t  rc;
    ngx_str_t  record, hash;

    record.data = text[0];
    hash.data = text[1];

    rc = ngx_http_idem_admin_selected(f->job.request, args, &record, &hash);

    f->record.data = f->record_data;
    f->hash.data = f->hash_data;

    if (record.len) {
        f->record.len = ngx_sprintf(f->record_data, "\"record\":\"%V\"",
                                    &record)
                        - f->record_data;
    }

    if (hash.len) {
        f->hash.len = ngx_sprintf(f->hash_data, "\"key_hash\":\"%V\"", &hash)
                      - f->hash_data;
    }

    return rc;
}


static ngx_uint_t
ngx_http_idem_follow_match(ngx_http_idem_events_t *f, u_char *p, size_t len)
{
    return f->record.len == 0
           || ngx_strlcasestrn(p, p + len, f->record.data, f->record.len - 1)
           || (f->hash.len
               && ngx_strlcasestrn(p, p + len, f->hash.data,
                                   f->hash.len - 1));
}


static ngx_int_t
ngx_http_idem_follow_poll(ngx_http_idem_job_t *job)
{
    u_char                  *last;
    ngx_int_t                rc;
    ngx_http_idem_events_t  *f;

    f = (ngx_http_idem_events_t *) job;

    if (ngx_exiting || ngx_terminate) {
        return ngx_http_idem_stream_end(job);
    }

    ngx_http_idem_tap_follow();

    /* the buffer is reused: wait until its data was sent */

    if (!ngx_http_idem_stream_busy(job->request)) {
        last = ngx_http_idem_follow_gather(f);

        rc = (last == f->buf) ? ngx_http_idem_stream_alive(job)
                              : ngx_http_idem_stream_send(job, f->buf, last);
        if (rc != NGX_OK) {
            return rc;
        }
    }

    /* not cancelable: a worker that shuts down ends the request first */

    ngx_add_timer(&job->event, NGX_HTTP_IDEM_FOLLOW_POLL);

    return NGX_AGAIN;
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


ngx_int_t
ngx_http_idem_stream_begin(ngx_http_idem_job_t *job, const char *hello)
{
    u_char              *p;
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = job->request;

    rc = ngx_http_idem_admin_header(r, NGX_HTTP_OK, "text/event-stream", -1);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    r->write_event_handler = ngx_http_idem_stream_write;

    p = (u_char *) hello;

    return ngx_http_idem_stream_output(job, &job->comment, p,
                                       p + ngx_strlen(hello));
}


/* not called while the data before is being sent */

ngx_int_t
ngx_http_idem_stream_send(ngx_http_idem_job_t *job, u_char *p, u_char *last)
{
    return ngx_http_idem_stream_output(job, &job->data, p, last);
}


static ngx_int_t
ngx_http_idem_stream_output(ngx_http_idem_job_t *job, ngx_buf_t *b,
    u_char *p, u_char *last)
{
    ngx_chain_t  out;

    job->sent = ngx_current_msec;

    ngx_memzero(b, sizeof(ngx_buf_t));

    b->pos = p;
    b->last = last;
    b->memory = 1;
    b->flush = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(job->request, &out) == NGX_ERROR
           ? NGX_ERROR : NGX_OK;
}


ngx_int_t
ngx_http_idem_stream_alive(ngx_http_idem_job_t *job)
{
    static u_char  alive[] = ":\n\n";

    return (ngx_current_msec - job->sent > NGX_HTTP_IDEM_STREAM_ALIVE)
           ? ngx_http_idem_stream_output(job, &job->comment, alive, alive + 3)
           : NGX_OK;
}


/* NGX_AGAIN: nginx sends the rest once the request is finalized */

ngx_int_t
ngx_http_idem_stream_end(ngx_http_idem_job_t *job)
{
    ngx_int_t  rc;

    rc = ngx_http_send_special(job->request, NGX_HTTP_LAST);

    return (rc == NGX_AGAIN) ? NGX_OK : rc;
}


static void
ngx_http_idem_stream_write(ngx_http_request_t *r)
{
    if (ngx_http_output_filter(r, NULL) == NGX_ERROR
        || ngx_handle_write_event(r->connection->write, 0) != NGX_OK)
    {
        ngx_http_finalize_request(r, NGX_ERROR);
    }
}
