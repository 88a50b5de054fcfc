
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The log of events: a file, syslog or a store.  A request never waits for
 * it.
 *
 * Each worker collects lines in a buffer.  When the buffer is full or a
 * second old, a thread of nginx's pool writes it to the file, if nginx has
 * threads, while another buffer takes the lines.  If both are full, lines are
 * dropped and counted.  nginx reopens the file with its other files (USR1).
 * Lines for a store are sent by log->send, with the same two buffers: a
 * buffer that could not be sent is kept and sent again, while the other one
 * takes the lines.
 *
 * Called by the events; set up by conf/..._conf_log.c.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_housekeeping.h"
#include "observe/ngx_http_idem_log.h"
#include "observe/ngx_http_idem_metrics.h"


#define NGX_HTTP_IDEM_LOG_BUFFER  65536
#define NGX_HTTP_IDEM_LOG_FLUSH   1000

/* delay before lines are sent to a store, and after a failure, ms */
#define NGX_HTTP_IDEM_LOG_BATCH   200
#define NGX_HTTP_IDEM_LOG_AGAIN   1000

#define ngx_http_idem_log_delay(log)                                          \
    ((log)->send ? NGX_HTTP_IDEM_LOG_BATCH : NGX_HTTP_IDEM_LOG_FLUSH)

/* a line, and the header of syslog */
#define NGX_HTTP_IDEM_SYSLOG_MAX  6400


#define NGX_HTTP_IDEM_REPEATED      16
#define NGX_HTTP_IDEM_REPEATED_LEN  512


/* a line that was written to the error log, and the number of its
   repetitions */

typedef struct {
    u_char                  text[NGX_HTTP_IDEM_REPEATED_LEN];
    size_t                  len;                /* 0: free                  */
    ngx_uint_t              level;
    ngx_uint_t              more;
    ngx_event_t             timer;
} ngx_http_idem_repeated_t;


/* the task of a thread; it has its own descriptor, since files are
   reopened */

typedef struct {
    ngx_fd_t                fd;
    u_char                 *data;               /* the batch                */
    size_t                  len;
    ngx_err_t               err;
    ngx_uint_t              dropped;            /* lines                    */
} ngx_http_idem_log_write_t;


static ngx_uint_t ngx_http_idem_log_again(ngx_uint_t level, u_char *line,
    size_t size);
static void ngx_http_idem_log_repeated_handler(ngx_event_t *ev);
static void ngx_http_idem_log_flush(ngx_http_idem_log_t *log);
static void ngx_http_idem_log_flush_event(ngx_event_t *ev);
static void ngx_http_idem_log_flush_file(ngx_open_file_t *file,
    ngx_log_t *log);
static void ngx_http_idem_log_written(ngx_http_idem_log_t *log, ngx_err_t err,
    ngx_uint_t dropped);
static ngx_err_t ngx_http_idem_log_write_all(ngx_fd_t fd, u_char *p,
    size_t len, ngx_uint_t *dropped);
static void ngx_http_idem_log_failed(ngx_http_idem_log_t *log,
    ngx_err_t err, ngx_uint_t dropped, const char *error);

#if (NGX_THREADS)
static ngx_int_t ngx_http_idem_log_post(ngx_http_idem_log_t *log);
static void ngx_http_idem_log_thread(void *data, ngx_log_t *log);
static void ngx_http_idem_log_thread_event(ngx_event_t *ev);
#endif


ngx_str_t  ngx_http_idem_level_names[] = {
    ngx_string("error"), ngx_string("warn"), ngx_string("info"),
    ngx_string("debug")
};


/* all logs of this process; NULL in the master */
static ngx_queue_t  *ngx_http_idem_logs;

/* lines written to the error log in the last second */
static ngx_http_idem_repeated_t  ngx_http_idem_repeated[NGX_HTTP_IDEM_REPEATED];


ngx_int_t
ngx_http_idem_log_file(ngx_conf_t *cf, ngx_http_idem_log_t *log,
    ngx_str_t *name)
{
    log->file = ngx_conf_open_file(cf->cycle, name);
    if (log->file == NULL) {
        return NGX_ERROR;
    }

    if (log->file->flush && log->file->flush != ngx_http_idem_log_flush_file) {
        return NGX_BUSY;
    }

    log->file->flush = ngx_http_idem_log_flush_file;

#if (NGX_THREADS)
    log->pool = ngx_thread_pool_add(cf, NULL);
    if (log->pool == NULL) {
        return NGX_ERROR;
    }
#endif

    return NGX_OK;
}


/* whether an event of this level is written; must be called once per event */

ngx_uint_t
ngx_http_idem_log_wants(ngx_http_idem_log_t *log, ngx_http_idem_level_e level)
{
    if (level > log->level) {
        return 0;
    }

    /* samples evenly: an event is written when the sum of the rates
       reaches 1 */

    log->seen[level] += log->sample[level];

    if (log->seen[level] < NGX_HTTP_IDEM_SAMPLE_ALL) {
        return 0;
    }

    log->seen[level] -= NGX_HTTP_IDEM_SAMPLE_ALL;

    return 1;
}


void
ngx_http_idem_log_write(ngx_http_idem_log_t *log,
    ngx_http_idem_level_e level, u_char *p, size_t len)
{
    u_char  *last, buf[NGX_HTTP_IDEM_SYSLOG_MAX];

    if (log->syslog) {
        log->syslog->severity = (level == NGX_HTTP_IDEM_LEVEL_ERROR) ? 3
                              : (level == NGX_HTTP_IDEM_LEVEL_WARN) ? 4
                              : (level == NGX_HTTP_IDEM_LEVEL_INFO) ? 6
                                                                    : 7;
        last = ngx_syslog_add_header(log->syslog, buf);
        len = ngx_min(len - 1, (size_t) (buf + sizeof(buf) - last));
        last = ngx_cpymem(last, p, len);

        if (ngx_syslog_send(log->syslog, buf, last - buf) < 0) {
            ngx_http_idem_metrics_dropped(1);
        }

        return;
    }

    if (log->buf == NULL) {
        return;
    }

    if (log->closed) {
        ngx_http_idem_metrics_dropped(1);
        return;
    }

    if (log->len + len > NGX_HTTP_IDEM_LOG_BUFFER) {
        ngx_http_idem_log_flush(log);

        if (log->len + len > NGX_HTTP_IDEM_LOG_BUFFER) {
            ngx_http_idem_metrics_dropped(1);
            return;
        }
    }

    ngx_memcpy(log->buf + log->len, p, len);
    log->len += len;

    if (!log->flush.timer_set) {
        ngx_add_timer(&log->flush, ngx_http_idem_log_delay(log));
    }
}


static void
ngx_http_idem_log_flush_event(ngx_event_t *ev)
{
    ngx_http_idem_log_flush(ev->data);
}


/* nginx is about to reopen the file: the buffer belongs to the old one */

static void
ngx_http_idem_log_flush_file(ngx_open_file_t *file, ngx_log_t *dummy)
{
    ngx_queue_t          *q;
    ngx_http_idem_log_t  *log;

    if (ngx_http_idem_logs == NULL) {
        return;
    }

    for (q = ngx_queue_head(ngx_http_idem_logs);
         q != ngx_queue_sentinel(ngx_http_idem_logs);
         q = ngx_queue_next(q))
    {
        log = ngx_queue_data(q, ngx_http_idem_log_t, queue);

        if (log->file == file && log->buf) {
            ngx_http_idem_log_flush(log);
        }
    }
}


/* one batch at a time, to keep the order */

static void
ngx_http_idem_log_flush(ngx_http_idem_log_t *log)
{
    ngx_err_t   err;
    ngx_uint_t  dropped;

    if (log->batch == NULL) {

        if (log->len == 0) {
            return;
        }

        log->batch = log->buf;
        log->batch_len = log->len;

        log->buf = log->spare;
        log->spare = NULL;
        log->len = 0;

    } else if (!log->failed || log->flush.timer_set) {

        /* it is being written, or it is too early to send it again */

        return;
    }

    log->failed = 0;

    if (log->send) {
        log->send(log, log->batch, log->batch_len);
        return;
    }

#if (NGX_THREADS)

    if (ngx_http_idem_log_post(log) == NGX_OK) {
        return;
    }

#endif

    err = ngx_http_idem_log_write_all(log->file->fd, log->batch,
                                      log->batch_len, &dropped);
    ngx_http_idem_log_written(log, err, dropped);
}


static void
ngx_http_idem_log_written(ngx_http_idem_log_t *log, ngx_err_t err,
    ngx_uint_t dropped)
{
    if (err) {
        ngx_http_idem_log_failed(log, err, dropped, NULL);
    }

    ngx_http_idem_log_sent(log, 0, NULL);
}


void
ngx_http_idem_log_sent(ngx_http_idem_log_t *log, ngx_uint_t dropped,
    const char *error)
{
    if (dropped) {
        ngx_http_idem_log_failed(log, 0, dropped, error);
    }

    log->spare = log->batch;
    log->batch = NULL;

    if (log->len && !log->flush.timer_set) {
        ngx_add_timer(&log->flush, ngx_http_idem_log_delay(log));
    }
}


void
ngx_http_idem_log_unsent(ngx_http_idem_log_t *log, const char *error)
{
    ngx_uint_t  n;

    if (ngx_exiting) {
        n = ngx_http_idem_log_lines(log->batch, log->batch_len)
            + ngx_http_idem_log_lines(log->buf, log->len);

        log->closed = 1;
        log->len = 0;

        ngx_http_idem_log_sent(log, n, error);
        return;
    }

    ngx_http_idem_log_failed(log, 0, 0, error);

    log->failed = 1;

    ngx_housekeeping_stop(&log->flush);
    ngx_add_timer(&log->flush, NGX_HTTP_IDEM_LOG_AGAIN);
}


ngx_uint_t
ngx_http_idem_log_lines(u_char *p, size_t len)
{
    size_t      i;
    ngx_uint_t  n;

    for (i = 0, n = 0; i < len; i++) {
        n += (p[i] == '\n');
    }

    return n;
}


/* also runs in a thread: uses its arguments only */

static ngx_err_t
ngx_http_idem_log_write_all(ngx_fd_t fd, u_char *p, size_t len,
    ngx_uint_t *dropped)
{
    u_char     *last;
    ssize_t     n;
    ngx_err_t   err;

    last = p + len;
    *dropped = 0;

    while (p < last) {
        n = ngx_write_fd(fd, p, last - p);

        if (n > 0) {
            p += n;
            continue;
        }

        err = (n == -1) ? ngx_errno : NGX_ENOSPC;

        if (err == NGX_EINTR) {
            continue;
        }

        /* a line that was written in part counts as well */

        *dropped = ngx_http_idem_log_lines(p, last - p);

        return err;
    }

    return 0;
}


static void
ngx_http_idem_log_failed(ngx_http_idem_log_t *log,
    ngx_err_t err, ngx_uint_t dropped, const char *error)
{
    ngx_http_idem_metrics_dropped(dropped);

    /* on a full disk every write fails: log it once a minute */

    if (ngx_time() - log->complained < 60) {
        return;
    }

    log->complained = ngx_time();

    if (error) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: events could not be written to store "
                      "\"%V\": %s; it is tried again, and what there is no "
                      "room for is dropped and counted", &log->name, error);
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, err,
                  "idempotency: events could not be written to \"%V\"",
                  &log->file->name);
}


#if (NGX_THREADS)

static ngx_int_t
ngx_http_idem_log_post(ngx_http_idem_log_t *log)
{
    ngx_http_idem_log_write_t  *w;

    w = log->task->ctx;

    w->fd = dup(log->file->fd);

    if (w->fd == NGX_INVALID_FILE) {
        return NGX_DECLINED;
    }

    w->data = log->batch;
    w->len = log->batch_len;

    log->task->handler = ngx_http_idem_log_thread;
    log->task->event.handler = ngx_http_idem_log_thread_event;
    log->task->event.data = log;

    if (ngx_thread_task_post(log->pool, log->task) != NGX_OK) {
        (void) ngx_close_file(w->fd);
        return NGX_DECLINED;
    }

    return NGX_OK;
}


static void
ngx_http_idem_log_thread(void *data, ngx_log_t *dummy)
{
    ngx_http_idem_log_write_t  *w = data;

    w->err = ngx_http_idem_log_write_all(w->fd, w->data, w->len, &w->dropped);

    (void) ngx_close_file(w->fd);
}


static void
ngx_http_idem_log_thread_event(ngx_event_t *ev)
{
    ngx_http_idem_log_t        *log;
    ngx_http_idem_log_write_t  *w;

    log = ev->data;
    w = log->task->ctx;

    ngx_http_idem_log_written(log, w->err, w->dropped);
}

#endif


ngx_int_t
ngx_http_idem_log_init_process(ngx_cycle_t *cycle, ngx_queue_t *logs)
{
    ngx_queue_t          *q;
    ngx_http_idem_log_t  *log;

    ngx_http_idem_logs = logs;

    for (q = ngx_queue_head(logs);
         q != ngx_queue_sentinel(logs);
         q = ngx_queue_next(q))
    {
        log = ngx_queue_data(q, ngx_http_idem_log_t, queue);

        if (log->file == NULL && log->send == NULL) {
            continue;
        }

        log->buf = ngx_palloc(cycle->pool, NGX_HTTP_IDEM_LOG_BUFFER);
        log->spare = ngx_palloc(cycle->pool, NGX_HTTP_IDEM_LOG_BUFFER);

        if (log->buf == NULL || log->spare == NULL) {
            return NGX_ERROR;
        }

#if (NGX_THREADS)
        log->task = ngx_thread_task_alloc(cycle->pool,
                                          sizeof(ngx_http_idem_log_write_t));
        if (log->task == NULL) {
            return NGX_ERROR;
        }
#endif

        log->flush.handler = ngx_http_idem_log_flush_event;
        log->flush.data = log;
        log->flush.log = cycle->log;

        /* lines can't be sent during exit, so the worker waits for them
           before */

        log->flush.cancelable = (log->send == NULL);
    }

    return NGX_OK;
}


/* the process ends: writes what is left synchronously */

void
ngx_http_idem_log_exit_process(ngx_queue_t *logs)
{
    ngx_err_t             err;
    ngx_uint_t            dropped;
    ngx_queue_t          *q;
    ngx_http_idem_log_t  *log;

    for (q = ngx_queue_head(logs);
         q != ngx_queue_sentinel(logs);
         q = ngx_queue_next(q))
    {
        log = ngx_queue_data(q, ngx_http_idem_log_t, queue);

        if (log->file && log->len) {
            err = ngx_http_idem_log_write_all(log->file->fd, log->buf,
                                              log->len, &dropped);
            if (err) {
                ngx_http_idem_log_failed(log, err, dropped, NULL);
            }
        }

        if (log->send) {
            ngx_http_idem_metrics_dropped(
                       ngx_http_idem_log_lines(log->buf, log->len)
                       + (log->batch ? ngx_http_idem_log_lines(log->batch,
                                                    log->batch_len) : 0));
        }
    }
}


void
ngx_http_idem_log_repeated(ngx_uint_t level, ngx_log_t *log, u_char *record,
    const char *fmt, ...)
{
    u_char   line[NGX_MAX_ERROR_STR];
    size_t   size;
    va_list  args;

    va_start(args, fmt);
    size = ngx_vslprintf(line, line + sizeof(line), fmt, args) - line;
    va_end(args);

    if (ngx_http_idem_log_again(level, line, size)) {
        return;
    }

    if (record) {
        ngx_log_error(level, log, 0, "%*s, record %*xs", size, line,
                      (size_t) 8, record);
    } else {
        ngx_log_error(level, log, 0, "%*s", size, line);
    }
}


ngx_uint_t
ngx_http_idem_log_is_repeated(ngx_uint_t level, const char *fmt, ...)
{
    u_char   line[NGX_HTTP_IDEM_REPEATED_LEN];
    size_t   size;
    va_list  args;

    va_start(args, fmt);
    size = ngx_vslprintf(line, line + sizeof(line), fmt, args) - line;
    va_end(args);

    return ngx_http_idem_log_again(level, line, size);
}


/* whether "line" was logged within the last second; then it is counted */

static ngx_uint_t
ngx_http_idem_log_again(ngx_uint_t level, u_char *line, size_t size)
{
    size_t                     len;
    ngx_uint_t                 i;
    ngx_http_idem_repeated_t  *r, *vacant;

    vacant = NULL;
    len = ngx_min(size, NGX_HTTP_IDEM_REPEATED_LEN);

    for (i = 0; i < NGX_HTTP_IDEM_REPEATED; i++) {
        r = &ngx_http_idem_repeated[i];

        if (r->len == 0) {
            vacant = r;

        } else if (r->len == len && ngx_memcmp(r->text, line, len) == 0) {
            r->more++;
            return 1;
        }
    }

    if (vacant == NULL) {
        return 0;
    }

    ngx_memcpy(vacant->text, line, len);
    vacant->len = len;
    vacant->level = level;
    vacant->more = 0;

    ngx_housekeeping_init(&vacant->timer, ngx_http_idem_log_repeated_handler,
                          vacant);
    ngx_add_timer(&vacant->timer, 1000);

    return 0;
}


static void
ngx_http_idem_log_repeated_handler(ngx_event_t *ev)
{
    ngx_http_idem_repeated_t  *r;

    r = ev->data;

    if (r->more == 0) {
        r->len = 0;
        return;
    }

    ngx_log_error(r->level, ngx_cycle->log, 0,
                  "%*s: %ui more in the last second", r->len, r->text,
                  r->more);

    r->more = 0;

    /* a worker that is exiting logs the last number and stops */

    if (ngx_exiting) {
        r->len = 0;
        return;
    }

    ngx_add_timer(&r->timer, 1000);
}
