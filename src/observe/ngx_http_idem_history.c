
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The recent history of a store: see the header.
 *
 * Called by the table of stores for each operation, by requests that end in a
 * conflict, and by the status endpoint.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "observe/ngx_http_idem_history.h"


/* the end of the year 9999, ms */
#define NGX_HTTP_IDEM_ISO_TIME_MAX  253402300799999ULL


static u_char *ngx_http_idem_two_digits(u_char *p, ngx_uint_t n);


uint64_t
ngx_http_idem_history_now(void)
{
    ngx_time_t  *tp;

    tp = ngx_timeofday();

    return (uint64_t) tp->sec * 1000 + tp->msec;
}


/*
 * hand-written: used for each replay, ngx_sprintf() takes ten times as long
 */

u_char *
ngx_http_idem_iso_time(u_char *p, uint64_t msec)
{
    ngx_tm_t  tm;

    /* four digits for the year, whatever time is in the store */

    ngx_gmtime((time_t) (ngx_min(msec, NGX_HTTP_IDEM_ISO_TIME_MAX) / 1000),
               &tm);

    p = ngx_http_idem_two_digits(p, tm.ngx_tm_year / 100);
    p = ngx_http_idem_two_digits(p, tm.ngx_tm_year % 100);
    *p++ = '-';
    p = ngx_http_idem_two_digits(p, tm.ngx_tm_mon);
    *p++ = '-';
    p = ngx_http_idem_two_digits(p, tm.ngx_tm_mday);
    *p++ = 'T';
    p = ngx_http_idem_two_digits(p, tm.ngx_tm_hour);
    *p++ = ':';
    p = ngx_http_idem_two_digits(p, tm.ngx_tm_min);
    *p++ = ':';
    p = ngx_http_idem_two_digits(p, tm.ngx_tm_sec);
    *p++ = 'Z';

    return p;
}


static u_char *
ngx_http_idem_two_digits(u_char *p, ngx_uint_t n)
{
    *p++ = (u_char) ('0' + n / 10);
    *p++ = (u_char) ('0' + n % 10);

    return p;
}


/* usually a single read */

void
ngx_http_idem_outage(ngx_http_idem_outage_t *o, const char *error)
{
    ngx_atomic_uint_t  since;

    since = o->since;

    if (error == NULL) {

        if (since && ngx_atomic_cmp_set(&o->since, since, 0)) {
            o->last_from = since;
            o->last_to = ngx_http_idem_history_now();
        }

        return;
    }

    if (since == 0
        && ngx_atomic_cmp_set(&o->since, 0, ngx_http_idem_history_now()))
    {
        (void) ngx_cpystrn(o->error, (u_char *) error, sizeof(o->error));
    }
}


void
ngx_http_idem_history_conflict(ngx_http_idem_history_t *h, u_char *id,
    ngx_uint_t group, ngx_uint_t kind)
{
    ngx_http_idem_recent_t  *c;

    c = &h->conflicts[ngx_atomic_fetch_add(&h->nconflicts, 1)
                      % NGX_HTTP_IDEM_HISTORY_CONFLICTS];

    ngx_memcpy(c->id, id, NGX_HTTP_IDEM_HISTORY_ID);

    c->group = group;
    c->kind = kind;
    c->time = ngx_http_idem_history_now();
}


ngx_uint_t
ngx_http_idem_history_turn(ngx_atomic_t *due, uint64_t now, uint64_t until)
{
    ngx_atomic_uint_t  was;

    was = *due;

    return was <= now && ngx_atomic_cmp_set(due, was, until);
}
