
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The lock of a shared memory zone.  It is the mutex of the slab pool, the
 * one lock that nginx's master releases after a worker was killed.
 */


#ifndef _NGX_HTTP_IDEM_MUTEX_H_INCLUDED_
#define _NGX_HTTP_IDEM_MUTEX_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


void ngx_http_idem_mutex_lock(ngx_slab_pool_t *shpool);
void ngx_http_idem_mutex_unlock(ngx_slab_pool_t *shpool);


#endif /* _NGX_HTTP_IDEM_MUTEX_H_INCLUDED_ */
