
/*
 * The room of claims: the records that cover a request, and their life.  They
 * are derived, begun, waited for, renewed and settled here, and nowhere else.
 *
 * Called by the way of a request and by the response; calls the store.
 */


#ifndef _NGX_HTTP_IDEM_CLAIM_H_INCLUDED_
#define _NGX_HTTP_IDEM_CLAIM_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


typedef struct ngx_http_idem_ctx_s    ngx_http_idem_ctx_t;
typedef struct ngx_http_idem_watch_s  ngx_http_idem_watch_t;


/*
 * One record that covers a request: that of its key, or one derived from what
 * it is.  Mostly there is one.  They are asked for in order of their ids.
 */

typedef struct {
    ngx_http_idem_ctx_t          *ctx;
    u_char                        id[NGX_HTTP_IDEM_ID_LEN];
    u_char                        token[NGX_HTTP_IDEM_TOKEN_LEN];
                                                     /* of the last begin   */
    ngx_http_idem_claim_t         claim;
    ngx_str_t                     details;
    ngx_msec_t                    window;            /* of a derived one,   */
    ngx_msec_t                    linger;            /* and after its commit */
    ngx_http_idem_op_t            op;                /* begin, then commit  */
    ngx_http_idem_op_t            renewal;
    ngx_http_idem_store_t        *where;             /* op.where of the begin
                                                        that took the lock, or
                                                        found it taken      */
    ngx_msec_t                    locked_until;        /* at the least, by our
                                                        own clock           */
    unsigned                      derived:1;
    unsigned                      asked:1;
    unsigned                      taken:1;           /* the lock is ours    */
    unsigned                      lost:1;            /* not any more        */
} ngx_http_idem_cover_t;


/* ..._cover.c */

ngx_int_t ngx_http_idem_cover(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);

/* ..._begin.c */

ngx_int_t ngx_http_idem_begin(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_op_prepare(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op, ngx_http_idem_op_e kind);
void ngx_http_idem_locked(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op);
ngx_msec_t ngx_http_idem_grace(ngx_http_idem_cover_t *cover);
ngx_msec_t ngx_http_idem_commit_ttl(ngx_http_idem_cover_t *cover);
ngx_uint_t ngx_http_idem_same_request(
    ngx_http_idem_cover_t *cover, ngx_http_idem_claim_t *claim);

/* ..._wait.c */

ngx_int_t ngx_http_idem_wait(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover);
void ngx_http_idem_wait_cancel(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_wait_init(ngx_cycle_t *cycle);

/* ..._waiters.c: how many requests wait, in all workers of this nginx */

ngx_int_t ngx_http_idem_waiters_zone(ngx_conf_t *cf);

/* NGX_DECLINED if there are "max" of that record already */
ngx_int_t ngx_http_idem_waiters_enter(ngx_str_t *store, u_char *id,
    ngx_msec_t time, ngx_int_t max);
void ngx_http_idem_waiters_leave(ngx_str_t *store, u_char *id);

/* how many wait now, for any record */
ngx_uint_t ngx_http_idem_waiters_all(void);

/* ..._renew.c */

void ngx_http_idem_renew_init(ngx_cycle_t *cycle);
void ngx_http_idem_renew_start(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_renew_stop(ngx_http_idem_ctx_t *ctx);


#endif /* _NGX_HTTP_IDEM_CLAIM_H_INCLUDED_ */
