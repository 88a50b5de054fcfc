
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The tap: a live stream of events for the clients of GET events
 * (idempotency_admin), from all workers.  There is no tap unless that
 * endpoint is configured, and without a client the tap costs an event one
 * comparison.
 */


#ifndef _NGX_HTTP_IDEM_TAP_H_INCLUDED_
#define _NGX_HTTP_IDEM_TAP_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/* in shared memory: a ring of lines, each preceded by its length */

typedef struct {
    ngx_atomic_t     until;                     /* there are clients until
                                                   then                     */
    uint64_t         head;                      /* bytes written so far     */
    size_t           size;
    u_char           data[1];
} ngx_http_idem_tap_t;


/* NULL: there is no tap */
extern ngx_http_idem_tap_t  *ngx_http_idem_tap;

#define ngx_http_idem_tap_followed()                                          \
    (ngx_http_idem_tap                                                        \
     && (ngx_msec_int_t) (*(volatile ngx_atomic_t *)                          \
                              &ngx_http_idem_tap->until                       \
                          - ngx_current_msec) > 0)


/* "tag" is the module of the zone */
ngx_shm_zone_t *ngx_http_idem_tap_zone(ngx_conf_t *cf, void *tag);

/* in each worker; "zone" may be NULL */
void ngx_http_idem_tap_init_process(ngx_shm_zone_t *zone);

void ngx_http_idem_tap_write(u_char *p, size_t len);

/* the position at which a new client starts; and a sign that a client is
   still there */
uint64_t ngx_http_idem_tap_now(void);
void ngx_http_idem_tap_follow(void);

/*
 * Copies the next line to "buf", which has room for any line; returns 0 if
 * there is none.  "at" is advanced.  A client that was too slow continues at
 * the end, and *missed is set.
 */
size_t ngx_http_idem_tap_read(uint64_t *at, u_char *buf, size_t size,
    ngx_uint_t *missed);


#endif /* _NGX_HTTP_IDEM_TAP_H_INCLUDED_ */
