
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


uint64_t
ngx_http_idem_history_now(void)
{
    ngx_time_t  *tp;

    tp = ngx_timeofday();

    return (uint64_t) tp->sec * 1000 + tp->msec;
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
