
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * health: each store is asked by the location.
 */


#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"


int
ctl_health(void)
{
    int         rc;
    long        status;
    size_t      i;
    yajl_val    v, stores, s;
    ctl_text_t  body;
    const char  *state;

    rc = ctl_ask("GET", "health", &body, &status);

    if (rc != CTL_OK) {
        return rc;
    }

    v = ctl_parse(&body);
    stores = ctl_get(v, "stores", NULL);

    if (!YAJL_IS_ARRAY(stores)) {
        return ctl_refused(status, &body);
    }

    if (o.json) {
        fwrite(body.data, 1, body.len, stdout);
        return status == 200 ? CTL_OK : CTL_NONE;
    }

    for (i = 0; i < stores->u.array.len; i++) {
        s = stores->u.array.values[i];

        state = YAJL_IS_TRUE(ctl_get(s, "ok", NULL)) ? "ok" : "failing";

        printf("%-20s %s%-8s%s %6sms  %s\n", ctl_string(s, "name", "?"),
               ctl_colour(state), state, ctl_colour(NULL),
               ctl_string(s, "duration_ms", "?"), ctl_string(s, "error", ""));
    }

    return status == 200 ? CTL_OK : CTL_NONE;
}
