
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What every room may use of the module as a whole: its version, its module
 * object, and the tag of its shared memory zones; and the comparison of two
 * strings, which nginx lacks.
 */


#ifndef _NGX_HTTP_IDEM_H_INCLUDED_
#define _NGX_HTTP_IDEM_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#include "idempotency_version.h"

/* from the file VERSION, see config */
#define NGX_HTTP_IDEM_VERSION  IDEMPOTENCY_VERSION


extern ngx_module_t  ngx_http_idempotency_module;

/*
 * nginx keeps a zone across a reload if the tag is unchanged.  The address of
 * this module changes when its .so file is replaced; the address of a module
 * that is built into nginx does not.
 */
extern ngx_module_t  ngx_http_core_module;

#define ngx_http_idem_zone_tag  ((void *) &ngx_http_core_module)


#define ngx_http_idem_same_text(a, b)                                         \
    ((a)->len == (b)->len && ngx_memcmp((a)->data, (b)->data, (a)->len) == 0)


#endif /* _NGX_HTTP_IDEM_H_INCLUDED_ */
