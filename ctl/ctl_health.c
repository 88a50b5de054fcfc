
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * health: each store, or that of --store, is asked by the location.
 */


#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"


int
ctl_health(void)
{
    int          rc;
    long         status;
    ctl_text_t   path = { NULL, 0 }, body;
    ctl_json_t  *stores, *s;
    const char  *state;

    ctl_add(&path, "health");
    ctl_arg(&path, "store", o.store);

    rc = ctl_ask("GET", path.data, &body, &status);
    free(path.data);

    if (rc != CTL_OK) {
        return rc;
    }

    stores = ctl_json_get(ctl_json_parse(body.data), "stores");

    if (!ctl_json_is(stores, '[')) {
        return ctl_refused(status, &body);
    }

    if (o.json) {
        fwrite(body.data, 1, body.len, stdout);
        return status == 200 ? CTL_OK : CTL_NONE;
    }

    for (s = stores->child; s; s = s->next) {
        state = ctl_json_is(ctl_json_get(s, "ok"), 't') ? "ok" : "failing";

        printf("%-20s %s%-8s%s %6sms  %s\n", ctl_string(s, "name", "?"),
               ctl_colour(state), state, ctl_colour(NULL),
               ctl_string(s, "duration_ms", "?"), ctl_string(s, "error", ""));
    }

    return status == 200 ? CTL_OK : CTL_NONE;
}
