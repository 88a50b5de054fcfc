
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Long work of a request, continued in further iterations of the event loop.
 *
 * Called by the code that parses, compresses or captures large bodies; calls
 * its handler in the next iteration, and again as long as there is work left,
 * unless that is cancelled.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* a timer of 0 would fire in the same iteration */
#define NGX_HTTP_IDEM_TURN_PAUSE  1


static void ngx_http_idem_turn_event(ngx_event_t *ev);


void
ngx_http_idem_turn(ngx_http_idem_turn_t *turn, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_turn_pt handler, const char *work)
{
    turn->ctx = ctx;
    turn->handler = handler;
    turn->work = work;

    turn->event.handler = ngx_http_idem_turn_event;
    turn->event.data = turn;
    turn->event.log = ctx->request->connection->log;

    ngx_add_timer(&turn->event, NGX_HTTP_IDEM_TURN_PAUSE);
}


static void
ngx_http_idem_turn_event(ngx_event_t *ev)
{
    ngx_connection_t      *c;
    ngx_http_request_t    *r;
    ngx_http_idem_turn_t  *turn;

    turn = ev->data;
    r = turn->ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, c->log, 0,
                   "idempotency: a turn of %s, continued", turn->work);

    /* with any other result the request may be freed */

    if (turn->handler(r, turn->ctx) == NGX_AGAIN) {
        ngx_add_timer(ev, NGX_HTTP_IDEM_TURN_PAUSE);
    }

    ngx_http_run_posted_requests(c);
}


void
ngx_http_idem_turn_cancel(ngx_http_idem_turn_t *turn)
{
    if (turn && turn->event.timer_set) {
        ngx_del_timer(&turn->event);
    }
}
