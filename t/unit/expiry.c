
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/store/zone/ngx_http_idem_expiry.c */

/*
 * The wheel of expiry times: each record comes up within a tick of its time,
 * none is lost, and none comes up more often than the wheel has to turn.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_zone.h"
#include "unit.h"


#define NODES  20000
#define TICK   64

#define MINUTE  (60 * 1000UL)
#define HOUR    (60 * MINUTE)
#define DAY     (24 * HOUR)


volatile ngx_msec_t  ngx_current_msec;

static ngx_http_idem_expiry_t  wheel;
static ngx_http_idem_item_t    nodes[NODES];


/* what is due is taken out if it has expired, else put in again */

static ngx_uint_t
drain(ngx_uint_t *looks, ngx_msec_t *late)
{
    ngx_uint_t             n, work;
    ngx_http_idem_item_t  *item;

    n = 0;

    work = (ngx_uint_t) -1;

    while ((item = ngx_http_idem_expiry_next(&wheel, &work)) != NULL) {

        (*looks)++;
        ngx_queue_remove(&item->expiry);

        if ((ngx_msec_int_t) (item->expires - ngx_current_msec) > 0) {
            ngx_http_idem_expiry_add(&wheel, item);
            continue;
        }

        *late = ngx_max(*late, ngx_current_msec - item->expires);
        n++;
    }

    return n;
}


/* records of up to "longest" ms, and time in steps of up to "step" ms */

static void
turn(const char *name, ngx_msec_t start, ngx_msec_t longest, ngx_msec_t step)
{
    ngx_msec_t  late, end, last;
    ngx_uint_t  i, n, looks;

    ngx_current_msec = start;
    ngx_http_idem_expiry_init(&wheel);

    end = start + longest + step + 2 * TICK;
    n = 0;
    looks = 0;
    late = 0;
    last = start;

    for (i = 0; i < NODES; i++) {
        nodes[i].expires = start + 1 + unit_below(longest);
        ngx_http_idem_expiry_add(&wheel, &nodes[i]);
    }

    while ((ngx_msec_int_t) (ngx_current_msec - end) < 0) {
        ngx_current_msec += 1 + unit_below(step);
        n += drain(&looks, &late);
        last = ngx_current_msec;
    }

    ok(n == NODES, "%s: %d of %d expired", name, (int) n, NODES);
    ok(late < step + 2 * TICK, "%s: at most %d ms late", name, (int) late);
    ok(looks <= NODES * 5, "%s: %d looks", name, (int) looks);
    ok((ngx_msec_int_t) (last - wheel.time) < TICK, "%s: in step with time",
       name);
}


int
main(void)
{
    ngx_uint_t  looks, work, calls;
    ngx_msec_t  late;

    unit_seed();
    plan(8 * 4 + 3 + 4);

    turn("seconds", 1000, 5000, 10);
    turn("minutes", 12345, 10 * MINUTE, 200);
    turn("hours", 7, 5 * HOUR, 1000);
    turn("days", 99, 3 * DAY, 5000);
    turn("months", 5, 90 * DAY, 10 * MINUTE);
    turn("all at once", 77, 3 * DAY, 4 * DAY);
    turn("the clock's end", (ngx_msec_t) 0 - MINUTE, 10 * MINUTE, 100);
    turn("close together", 64, 100, 1);

    /* one that has expired already, and one that lives on */

    ngx_current_msec = 5000;
    ngx_http_idem_expiry_init(&wheel);

    nodes[0].expires = 4000;
    nodes[1].expires = 5100;
    ngx_http_idem_expiry_add(&wheel, &nodes[0]);
    ngx_http_idem_expiry_add(&wheel, &nodes[1]);

    looks = 0;
    late = 0;

    work = 100;

    ok(ngx_http_idem_expiry_next(&wheel, &work) == NULL, "a tick runs");

    ngx_current_msec += TICK;
    ok(ngx_http_idem_expiry_next(&wheel, &work) == &nodes[0],
       "the past comes up at once");

    nodes[1].expires = 60000;
    ngx_current_msec = 59999;
    ok(drain(&looks, &late) == 1 && looks >= 2, "a lease that was renewed");

    /* nobody came for a month: that is made up for in pieces */

    ngx_current_msec = 1000;
    ngx_http_idem_expiry_init(&wheel);

    nodes[0].expires = 1000 + 20 * DAY;
    nodes[1].expires = 1000 + 40 * DAY;
    ngx_http_idem_expiry_add(&wheel, &nodes[0]);
    ngx_http_idem_expiry_add(&wheel, &nodes[1]);

    ngx_current_msec += 30 * DAY;

    work = 1000;
    ok(ngx_http_idem_expiry_next(&wheel, &work) == NULL && work == 0,
       "not more than that much work");

    nodes[2].expires = ngx_current_msec + MINUTE;
    ngx_http_idem_expiry_add(&wheel, &nodes[2]);

    for (calls = 1; calls < 100000; calls++) {
        work = 1000;

        if (ngx_http_idem_expiry_next(&wheel, &work) == &nodes[0]) {
            break;
        }
    }

    ok(calls > 20 && calls < 100000, "found in %d calls", (int) calls);

    looks = 0;
    late = 0;
    ok(drain(&looks, &late) == 1, "it alone has expired");

    ngx_current_msec += 10 * DAY;
    ok(drain(&looks, &late) == 2, "the others in their time");

    return done();
}
