
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Events of housekeeping: their timers do not keep a worker from exiting,
 * since operations have timers of their own.
 */


#ifndef _NGX_HOUSEKEEPING_H_INCLUDED_
#define _NGX_HOUSEKEEPING_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>


/* whether this process does what one worker does for all */
#define ngx_housekeeping_is_ours()                                            \
    (ngx_process == NGX_PROCESS_SINGLE                                        \
     || (ngx_process == NGX_PROCESS_WORKER && ngx_worker == 0))


static ngx_inline void
ngx_housekeeping_init(ngx_event_t *ev, ngx_event_handler_pt handler,
    void *data)
{
    ev->handler = handler;
    ev->data = data;
    ev->log = ngx_cycle->log;
    ev->cancelable = 1;
}


/* for any event: neither its timer nor a posted event is left */

static ngx_inline void
ngx_housekeeping_stop(ngx_event_t *ev)
{
    if (ev->timer_set) {
        ngx_del_timer(ev);
    }

    if (ev->posted) {
        ngx_delete_posted_event(ev);
    }
}


/* sets a timer, or moves it if it would expire later than after "delay" */

static ngx_inline void
ngx_housekeeping_within(ngx_event_t *ev, ngx_msec_t delay)
{
    if (ev->timer_set) {

        if ((ngx_msec_int_t) (ev->timer.key - ngx_current_msec)
            <= (ngx_msec_int_t) delay)
        {
            return;
        }

        ngx_del_timer(ev);
    }

    ngx_add_timer(ev, delay);
}


#endif /* _NGX_HOUSEKEEPING_H_INCLUDED_ */
