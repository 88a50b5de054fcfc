
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The log of events: a file, syslog or a store.  A request never waits for
 * it.
 */


#ifndef _NGX_HTTP_IDEM_LOG_H_INCLUDED_
#define _NGX_HTTP_IDEM_LOG_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#if (NGX_THREADS)
#include <ngx_thread_pool.h>
#endif


typedef enum {
    NGX_HTTP_IDEM_LEVEL_ERROR = 0,
    NGX_HTTP_IDEM_LEVEL_WARN,
    NGX_HTTP_IDEM_LEVEL_INFO,
    NGX_HTTP_IDEM_LEVEL_DEBUG,
    NGX_HTTP_IDEM_LEVEL_N
} ngx_http_idem_level_e;


/* a sample of all events: rates are in parts per million */
#define NGX_HTTP_IDEM_SAMPLE_ALL  1000000


typedef struct ngx_http_idem_log_s  ngx_http_idem_log_t;

/*
 * Sends lines elsewhere, and calls ..._log_sent() or _unsent() when done,
 * before it returns or later.
 */
typedef void (*ngx_http_idem_log_send_pt)(ngx_http_idem_log_t *log,
    u_char *p, size_t len);


struct ngx_http_idem_log_s {
    ngx_open_file_t        *file;
    ngx_syslog_peer_t      *syslog;
    ngx_http_idem_log_send_pt  send;
    void                   *target;             /* the data of "send"       */
    ngx_str_t               name;               /* of the target, for the
                                                   error log                */
    ngx_uint_t              max;                /* lines that the target
                                                   keeps; 0: not configured */
    u_char                 *conf_file;          /* where it is configured   */
    ngx_uint_t              conf_line;
    ngx_http_idem_level_e   level;
    ngx_uint_t              sample[NGX_HTTP_IDEM_LEVEL_N];

    /* the state of this worker */
    u_char                 *buf;
    u_char                 *spare;              /* NULL: it is the batch    */
    size_t                  len;
    ngx_event_t             flush;
    ngx_uint_t              seen[NGX_HTTP_IDEM_LEVEL_N];
    time_t                  complained;
    u_char                 *batch;              /* being written, or to be
                                                   sent again               */
    size_t                  batch_len;
    unsigned                failed:1;           /* "batch" is to be sent
                                                   again                    */
    unsigned                closed:1;           /* the worker is exiting,
                                                   and sending failed       */
#if (NGX_THREADS)
    ngx_thread_pool_t      *pool;
    ngx_thread_task_t      *task;
#endif
    ngx_queue_t             queue;              /* of all logs              */
};


/* the file is opened by nginx, and several logs may share it */
ngx_int_t ngx_http_idem_log_file(ngx_conf_t *cf, ngx_http_idem_log_t *log,
    ngx_str_t *name);

ngx_uint_t ngx_http_idem_log_wants(ngx_http_idem_log_t *log,
    ngx_http_idem_level_e level);
void ngx_http_idem_log_write(ngx_http_idem_log_t *log,
    ngx_http_idem_level_e level, u_char *p, size_t len);

/*
 * "batch" was sent, except for "dropped" lines that can't be sent at all; or
 * it was not sent, and is sent again later.
 */
void ngx_http_idem_log_sent(ngx_http_idem_log_t *log, ngx_uint_t dropped,
    const char *error);
void ngx_http_idem_log_unsent(ngx_http_idem_log_t *log, const char *error);
ngx_uint_t ngx_http_idem_log_lines(u_char *p, size_t len);

/*
 * Writes a line to the error log that every request may repeat: the first one
 * is written, with its record if that is not NULL, and then, once a second,
 * the number of repetitions.
 */
void ngx_http_idem_log_repeated(ngx_uint_t level, ngx_log_t *log,
    u_char *record, const char *fmt, ...);

/*
 * Whether a line of that kind was written within the last second: it is
 * counted then, by the text given here.  For lines with a value that may
 * come from anybody.
 */
ngx_uint_t ngx_http_idem_log_is_repeated(ngx_uint_t level, const char *fmt,
    ...);

/* in each worker; "logs" are all logs of the configuration */
ngx_int_t ngx_http_idem_log_init_process(ngx_cycle_t *cycle,
    ngx_queue_t *logs);
void ngx_http_idem_log_exit_process(ngx_queue_t *logs);

extern ngx_str_t  ngx_http_idem_level_names[];


#endif /* _NGX_HTTP_IDEM_LOG_H_INCLUDED_ */
