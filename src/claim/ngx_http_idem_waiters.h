
/*
 * How many requests wait for a record, in all workers of this nginx: what
 * idempotency_max_waiters bounds.
 */


#ifndef _NGX_HTTP_IDEM_WAITERS_H_INCLUDED_
#define _NGX_HTTP_IDEM_WAITERS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


ngx_int_t ngx_http_idem_waiters_zone(ngx_conf_t *cf);

/* NGX_DECLINED if there are "max" already */
ngx_int_t ngx_http_idem_waiters_enter(ngx_str_t *store,
    u_char *id, ngx_msec_t time, ngx_int_t max);
void ngx_http_idem_waiters_leave(ngx_str_t *store, u_char *id);

/* how many wait now, for any record */
ngx_uint_t ngx_http_idem_waiters_all(void);


#endif /* _NGX_HTTP_IDEM_WAITERS_H_INCLUDED_ */
