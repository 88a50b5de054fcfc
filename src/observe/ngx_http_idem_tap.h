
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The tap: events for who follows them now (GET events of idempotency_admin),
 * whichever worker they happen in.  Where nobody can follow there is no tap,
 * and where nobody does, an event looks at one number.
 */


#ifndef _NGX_HTTP_IDEM_TAP_H_INCLUDED_
#define _NGX_HTTP_IDEM_TAP_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/* in shared memory: a ring of lines, each with its length before it */

typedef struct {
    ngx_atomic_t     until;                     /* somebody follows         */
    uint64_t         head;                      /* bytes written so far     */
    size_t           size;
    u_char           data[1];
} ngx_http_idem_tap_t;


/* NULL: there is none */
extern ngx_http_idem_tap_t  *ngx_http_idem_tap;

#define ngx_http_idem_tap_followed()                                          \
    (ngx_http_idem_tap                                                        \
     && (ngx_msec_int_t) (*(volatile ngx_atomic_t *)                          \
                              &ngx_http_idem_tap->until                       \
                          - ngx_current_msec) > 0)


/* "tag" is the module of the zone */
ngx_shm_zone_t *ngx_http_idem_tap_zone(ngx_conf_t *cf, void *tag);

/* one process; "zone" may be NULL */
void ngx_http_idem_tap_init_process(ngx_shm_zone_t *zone);

void ngx_http_idem_tap_write(u_char *p, size_t len);

/* where one who follows begins, and that he is still there */
uint64_t ngx_http_idem_tap_now(void);
void ngx_http_idem_tap_follow(void);

/*
 * The next line, in "buf" that has room for any; 0: there is none.  "at" moves
 * on; if it was too slow, to the end, with *missed set.
 */
size_t ngx_http_idem_tap_read(uint64_t *at, u_char *buf, size_t size,
    ngx_uint_t *missed);


#endif /* _NGX_HTTP_IDEM_TAP_H_INCLUDED_ */
