
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What every room may know of the module as a whole: its version, itself, and
 * the tag of its shared memory.
 */


#ifndef _NGX_HTTP_IDEM_H_INCLUDED_
#define _NGX_HTTP_IDEM_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#include "idempotency_version.h"

/* the file VERSION of the tree, see config */
#define NGX_HTTP_IDEM_VERSION  IDEMPOTENCY_VERSION


extern ngx_module_t  ngx_http_idempotency_module;

/*
 * nginx keeps a zone over a reload if its tag is the same.  The module's own
 * address changes when its file was replaced; that of a module that is built
 * into nginx does not.
 */
extern ngx_module_t  ngx_http_core_module;

#define ngx_http_idem_zone_tag  ((void *) &ngx_http_core_module)


#endif /* _NGX_HTTP_IDEM_H_INCLUDED_ */
