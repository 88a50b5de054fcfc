
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * An event as a line for people: when, how grave, what, which record and group,
 * the status, and what else matters of it.
 *
 * Called by tail, on a terminal.
 */


#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"


#define CTL_CLOCK    12                         /* "10:00:00.123"           */
#define CTL_SHORT    12                         /* of a hash                */
#define CTL_PREFIX   "idempotency."


/* members of an event that are printed behind the columns */

static const struct {
    const char  *member;
    const char  *name;
    enum { WORD, HASH, MS, BYTES } kind;
} ctl_members[] = {
    { "outcome", "", WORD },
    { "conflict_type", "", WORD },
    { "reason", "", WORD },
    { "by", "by", WORD },
    { "wait_ms", "wait", MS },
    { "queue_depth", "queue", WORD },
    { "lock_holder", "holder", WORD },
    { "lock_age_ms", "lock age", MS },
    { "replay_count", "replays", WORD },
    { "time_since_original_ms", "age", MS },
    { "original_actor", "original actor", HASH },
    { "ttl_ms", "ttl", MS },
    { "lifetime_ms", "lived", MS },
    { "response_size_bytes", "size", BYTES },
    { "max_size_bytes", "limit", BYTES },
    { "tenant", "tenant", WORD },
    { "actor", "actor", HASH },
    { "duration_ms", "took", MS },
    { "store", "store", WORD },
    { "host", "host", WORD },
    { NULL, NULL, WORD }
};


static void
ctl_event_more(ctl_json_t *v)
{
    int          i;
    char         buf[24];
    const char  *value, *comma;

    comma = "";

    for (i = 0; ctl_members[i].member; i++) {
        value = ctl_string(v, ctl_members[i].member, NULL);

        if (value == NULL) {
            continue;
        }

        if (ctl_members[i].kind == MS) {
            value = ctl_time(atoll(value), buf, sizeof(buf));
        }

        printf("%s%s%s%.*s%s", comma, ctl_members[i].name,
               ctl_members[i].name[0] ? " " : "",
               ctl_members[i].kind == HASH ? CTL_SHORT : 128, value,
               ctl_members[i].kind == BYTES ? " bytes" : "");

        comma = ", ";
    }
}


/* "day" is that of the event before: a new one has a line of its own */

void
ctl_event(const char *line, size_t len, char day[CTL_DAY + 1])
{
    ctl_json_t  *v;
    ctl_text_t   text = { NULL, 0 };
    const char  *time, *level, *event;

    ctl_gather((char *) line, 1, len, &text);

    v = text.data ? ctl_json_parse(text.data) : NULL;
    free(text.data);

    time = ctl_string(v, "timestamp", "");
    level = ctl_string(v, "level", "");
    event = ctl_string(v, "event", NULL);

    if (event == NULL) {
        fwrite(line, 1, len, stdout);
        ctl_json_free(v);
        return;
    }

    if (strncmp(event, CTL_PREFIX, sizeof(CTL_PREFIX) - 1) == 0) {
        event += sizeof(CTL_PREFIX) - 1;
    }

    if (strlen(time) > CTL_DAY && strncmp(day, time, CTL_DAY) != 0) {
        memcpy(day, time, CTL_DAY);
        day[CTL_DAY] = '\0';
        printf("%s UTC\n", day);
    }

    if (strlen(time) > CTL_DAY) {
        time += CTL_DAY + 1;
    }

    printf("%-*.*s %s%-5s%s %-22s %-*.*s %-10.10s %3s  ",
           CTL_CLOCK, CTL_CLOCK, time, ctl_colour(level), level,
           ctl_colour(NULL), event, CTL_SHORT, CTL_SHORT,
           ctl_string(v, "record", "-"), ctl_string(v, "group", "-"),
           ctl_string(v, "status", "-"));

    ctl_event_more(v);
    putchar('\n');

    ctl_json_free(v);
}
