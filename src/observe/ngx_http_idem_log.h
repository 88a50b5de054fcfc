
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Where events go: a file, syslog or a store, without a request ever waiting
 * for it.
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


/* of a whole sample: parts in a million */
#define NGX_HTTP_IDEM_SAMPLE_ALL  1000000


typedef struct ngx_http_idem_log_s  ngx_http_idem_log_t;

/*
 * Sends lines to somewhere else, and says ..._log_sent() or _unsent() when it
 * is done, before it returns or later.
 */
typedef void (*ngx_http_idem_log_send_pt)(ngx_http_idem_log_t *log,
    u_char *p, size_t len);


struct ngx_http_idem_log_s {
    ngx_open_file_t        *file;
    ngx_syslog_peer_t      *syslog;
    ngx_http_idem_log_send_pt  send;
    void                   *target;             /* of "send"                */
    ngx_str_t               name;               /* ... for the log          */
    ngx_uint_t              max;                /* ... lines that stay there;
                                                   0: not said              */
    u_char                 *conf_file;          /* where it is configured   */
    ngx_uint_t              conf_line;
    ngx_http_idem_level_e   level;
    ngx_uint_t              sample[NGX_HTTP_IDEM_LEVEL_N];

    /* this worker */
    u_char                 *buf;
    u_char                 *spare;              /* NULL: being written      */
    size_t                  len;
    ngx_event_t             flush;
    ngx_uint_t              seen[NGX_HTTP_IDEM_LEVEL_N];
    time_t                  complained;
    u_char                 *batch;              /* being sent, or to be sent
                                                   again                    */
    size_t                  batch_len;
    unsigned                failed:1;           /* ... the latter           */
    unsigned                closed:1;           /* it is no use any more: the
                                                   worker leaves            */
#if (NGX_THREADS)
    ngx_thread_pool_t      *pool;
    ngx_thread_task_t      *task;
#endif
    ngx_queue_t             queue;              /* of all logs              */
};


/* one file is one of nginx's own, and several logs may share it */
ngx_int_t ngx_http_idem_log_file(ngx_conf_t *cf, ngx_http_idem_log_t *log,
    ngx_str_t *name);

ngx_uint_t ngx_http_idem_log_wants(ngx_http_idem_log_t *log,
    ngx_http_idem_level_e level);
void ngx_http_idem_log_write(ngx_http_idem_log_t *log,
    ngx_http_idem_level_e level, u_char *p, size_t len);

/*
 * What was sent is there, less so many lines that it is no use to send again;
 * or it is not there, and is sent again a while later.
 */
void ngx_http_idem_log_sent(ngx_http_idem_log_t *log, ngx_uint_t dropped,
    const char *error);
void ngx_http_idem_log_unsent(ngx_http_idem_log_t *log, const char *error);
ngx_uint_t ngx_http_idem_log_lines(u_char *p, size_t len);

/*
 * A line of the error log that every request may repeat: the first is written,
 * and once a second how many there were more of it.
 */
void ngx_http_idem_log_repeated(ngx_log_t *log, ngx_str_t *line);

/* one process: "logs" are all of the configuration */
ngx_int_t ngx_http_idem_log_init_process(ngx_cycle_t *cycle,
    ngx_queue_t *logs);
void ngx_http_idem_log_exit_process(ngx_queue_t *logs);

extern ngx_str_t  ngx_http_idem_level_names[];


#endif /* _NGX_HTTP_IDEM_LOG_H_INCLUDED_ */
