
/*
 * Where events go: a file or syslog, without a request ever waiting for it.
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


typedef struct {
    ngx_open_file_t        *file;
    ngx_syslog_peer_t      *syslog;
    ngx_http_idem_level_e   level;
    ngx_uint_t              sample[NGX_HTTP_IDEM_LEVEL_N];

    /* this worker */
    u_char                 *buf;
    u_char                 *spare;              /* NULL: being written      */
    size_t                  len;
    ngx_event_t             flush;
    ngx_uint_t              seen[NGX_HTTP_IDEM_LEVEL_N];
    time_t                  complained;
#if (NGX_THREADS)
    ngx_thread_pool_t      *pool;
    ngx_thread_task_t      *task;
#endif
    ngx_queue_t             queue;              /* of all logs              */
} ngx_http_idem_log_t;


/* one file is one of nginx's own, and several logs may share it */
ngx_int_t ngx_http_idem_log_file(ngx_conf_t *cf, ngx_http_idem_log_t *log,
    ngx_str_t *name);

ngx_uint_t ngx_http_idem_log_wants(ngx_http_idem_log_t *log,
    ngx_http_idem_level_e level);
void ngx_http_idem_log_write(ngx_http_idem_log_t *log,
    ngx_http_idem_level_e level, u_char *p, size_t len);

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
