
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * yajl's memory, for those who write JSON into a response.
 *
 * yajl does not look whether it got the memory it asked for.  So it gets it
 * from here: when there is none, this does not return to yajl, but to where
 * its user called setjmp(y->no_memory), who then frees all of it.
 */


#ifndef _NGX_HTTP_IDEM_YAJL_H_INCLUDED_
#define _NGX_HTTP_IDEM_YAJL_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include <setjmp.h>
#include <yajl/yajl_parse.h>


typedef struct {
    yajl_alloc_funcs   funcs;
    jmp_buf            no_memory;
    ngx_queue_t        blocks;
} ngx_http_idem_yajl_t;


void ngx_http_idem_yajl_init(ngx_http_idem_yajl_t *y);

/* in place of yajl_free(), which can't be called once memory ran out */
void ngx_http_idem_yajl_done(ngx_http_idem_yajl_t *y);

/* NGX_OK: it is JSON; NGX_DECLINED: it is not; NGX_ERROR: no memory */
ngx_int_t ngx_http_idem_yajl_valid(const ngx_str_t *text);


#endif /* _NGX_HTTP_IDEM_YAJL_H_INCLUDED_ */
