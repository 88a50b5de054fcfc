
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The two printers of metrics for idempotency_stats.  Both read the same
 * shared memory.  A text is a chain of buffers that grows.
 */


#ifndef _NGX_HTTP_IDEM_STATS_H_INCLUDED_
#define _NGX_HTTP_IDEM_STATS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


typedef struct {
    const char    *type;                        /* of its contents          */
    ngx_pool_t    *pool;
    ngx_chain_t   *first;
    ngx_chain_t  **last;
    ngx_buf_t     *buf;
    off_t          len;
    ngx_uint_t     failed;                      /* no memory                */
} ngx_http_idem_text_t;


/* idempotency_stats */
char *ngx_http_idem_conf_stats(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

void ngx_http_idem_text(ngx_http_idem_text_t *t, const char *fmt, ...);

/* whether the i-th store is the first of those that share their metrics */
ngx_uint_t ngx_http_idem_stats_first(
    ngx_http_idem_main_conf_t *mcf, ngx_uint_t i);

void ngx_http_idem_stats_prometheus(ngx_http_idem_text_t *t,
    ngx_http_idem_main_conf_t *mcf);

/* "history": include the last hour */
void ngx_http_idem_stats_json(ngx_http_idem_text_t *t,
    ngx_http_idem_main_conf_t *mcf, ngx_uint_t history);

/* ..._stats_history.c: called in each worker */
void ngx_http_idem_stats_init_process(ngx_http_idem_main_conf_t *mcf);
void ngx_http_idem_stats_exit_process(ngx_http_idem_main_conf_t *mcf);

/* prints recent events of a store as JSON members */
void ngx_http_idem_stats_lately(ngx_http_idem_text_t *t,
    ngx_http_idem_metrics_t *m, ngx_uint_t history);

/* ..._scan.c: starts counting the records of all stores, if it is due */
void ngx_http_idem_scan(ngx_http_idem_main_conf_t *mcf);


extern const char  *ngx_http_idem_conflict_names[];
extern const char  *ngx_http_idem_state_names[];


#endif /* _NGX_HTTP_IDEM_STATS_H_INCLUDED_ */
