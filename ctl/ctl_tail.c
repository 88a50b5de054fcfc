
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * tail: events as they happen, of one nginx; or those that a store keeps, of
 * all hosts.  export: these in files, one for each day.  And their removal, for
 * cleanup --events and purge --events.
 */


#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ctl.h"


#define CTL_AGAIN  200                          /* ms                       */


typedef struct {
    ctl_text_t   text;
    const char  *dir;                           /* NULL: to stdout          */
    FILE        *file;
    char         day[CTL_DAY + 1];
    char         after[256];                    /* id of the last one, or "" */
    long         n;
    int          people;
    int          failed;
} ctl_stream_t;


/* an event goes to the file of its day; a file that is there grows */

static int
ctl_file(ctl_stream_t *s, const char *line)
{
    char         name[4096];
    const char  *p, *suffix;

    p = strstr(line, "\"timestamp\":");
    p = p ? strchr(p + 12, '"') : NULL;

    if (p == NULL || strlen(p) <= CTL_DAY) {
        return CTL_OK;
    }

    if (s->file && strncmp(s->day, p + 1, CTL_DAY) == 0) {
        return CTL_OK;
    }

    if (s->file && fclose(s->file) != 0) {
        ctl_say("%s: %s", s->dir, strerror(errno));
        return CTL_FAILED;
    }

    memcpy(s->day, p + 1, CTL_DAY);
    s->day[CTL_DAY] = '\0';

    /* never a path of somebody else's making */

    if (strspn(s->day, "0123456789-") != CTL_DAY) {
        ctl_say("an event has no date");
        return CTL_FAILED;
    }

    suffix = s->dir[0] && s->dir[strlen(s->dir) - 1] == '/' ? "" : "/";

    snprintf(name, sizeof(name), "%s%sevents-%s.json", s->dir, suffix,
             s->day);

    s->file = fopen(name, "a");

    if (s->file == NULL) {
        ctl_say("%s: %s", name, strerror(errno));
        return CTL_FAILED;
    }

    return CTL_OK;
}


/* lines of a stream; "data: " goes, comments and ids too */

static size_t
ctl_stream(char *p, size_t size, size_t n, void *data)
{
    long           status;
    char          *line, *end;
    ctl_stream_t  *s = data;

    if (ctl_gather(p, size, n, &s->text) != size * n) {
        return 0;
    }

    /* an error is no stream: it is printed when all of it has arrived */

    curl_easy_getinfo(ctl_curl, CURLINFO_RESPONSE_CODE, &status);

    if (status != 200) {
        return size * n;
    }

    for (line = s->text.data; (end = strchr(line, '\n')) != NULL;
         line = end + 1)
    {
        if (strncmp(line, "id: ", 4) == 0
            && (size_t) (end - line - 4) < sizeof(s->after))
        {
            memcpy(s->after, line + 4, end - line - 4);
            s->after[end - line - 4] = '\0';
        }

        if (strncmp(line, ": some events", 13) == 0) {
            ctl_say("%.*s", (int) (end - line - 2), line + 2);
        }

        if (strncmp(line, "data: ", 6) != 0) {
            continue;
        }

        if (s->dir && ctl_file(s, line) != CTL_OK) {
            s->failed = 1;
            return 0;
        }

        if (s->people) {
            ctl_event(line + 6, end + 1 - line - 6, s->day);

        } else {
            fwrite(line + 6, 1, end + 1 - line - 6,
                   s->dir ? s->file : stdout);
        }

        if (s->dir == NULL) {
            fflush(stdout);
        }

        s->n++;
    }

    s->text.len -= line - s->text.data;
    memmove(s->text.data, line, s->text.len + 1);

    return size * n;
}


/* "events" and what is asked for there */

static void
ctl_events(ctl_text_t *path)
{
    char  id[65], hash[65];

    ctl_add(path, "events");
    ctl_arg(path, "store", o.store);
    ctl_arg(path, "since", o.since);
    ctl_arg(path, "older", o.older);
    ctl_arg(path, "actor", o.actor);

    /* an address is in nginx's logs: a key does not belong there */

    if (o.key && o.key[0] && o.scope && o.record == NULL) {
        ctl_key(id, hash);
        ctl_arg(path, "record", id);
        return;
    }

    ctl_arg(path, "key", o.key);
    ctl_arg(path, "scope", o.scope);
    ctl_arg(path, "record", o.record);
}


static int
ctl_follow(ctl_text_t *path, ctl_stream_t *s)
{
    int       rc;
    long      status;
    CURLcode  code;

    rc = ctl_address(path->data);

    if (rc != CTL_OK) {
        return rc;
    }

    curl_easy_setopt(ctl_curl, CURLOPT_WRITEFUNCTION, ctl_stream);
    curl_easy_setopt(ctl_curl, CURLOPT_WRITEDATA, s);

    code = curl_easy_perform(ctl_curl);

    if (s->file && fclose(s->file) != 0 && !s->failed) {
        ctl_say("%s: %s", s->dir, strerror(errno));
        return CTL_FAILED;
    }

    if (s->failed) {
        return CTL_FAILED;
    }

    if (code != CURLE_OK) {
        ctl_say("%s: %s", ctl_url(), curl_easy_strerror(code));
        return CTL_FAILED;
    }

    curl_easy_getinfo(ctl_curl, CURLINFO_RESPONSE_CODE, &status);

    if (status == 200) {
        return CTL_OK;
    }

    if (s->text.data == NULL) {
        ctl_add(&s->text, "");
    }

    return ctl_refused(status, &s->text);
}


/* a reload ends the stream, and it is followed anew */

int
ctl_tail(void)
{
    int           rc;
    ctl_text_t    path;
    ctl_stream_t  s;

    if (o.store == NULL && (o.since || o.older || o.actor)) {
        ctl_say("of which store? An nginx has no past events of its own: "
                "say --store");
        return CTL_USAGE;
    }

    memset(&s, 0, sizeof(s));
    s.people = !o.json && isatty(1);

    for ( ;; ) {
        path.data = NULL;
        path.len = 0;

        s.text.len = 0;

        ctl_events(&path);
        ctl_arg(&path, "after", s.after[0] ? s.after : NULL);

        rc = ctl_follow(&path, &s);
        free(path.data);

        if (rc != CTL_OK || o.older) {
            return rc;
        }

        usleep(CTL_AGAIN * 1000);
    }
}


int
ctl_export(void)
{
    int           rc;
    ctl_text_t    path = { NULL, 0 };
    ctl_stream_t  s;
    struct stat   st;

    if (o.store == NULL || o.dir == NULL) {
        ctl_say("which events, and where to? Say --store and --dir");
        return CTL_USAGE;
    }

    if (stat(o.dir, &st) != 0 || !S_ISDIR(st.st_mode)) {
        ctl_say("%s is not a directory", o.dir);
        return CTL_USAGE;
    }

    memset(&s, 0, sizeof(s));
    s.dir = o.dir;

    ctl_events(&path);
    ctl_arg(&path, "follow", "0");

    rc = ctl_follow(&path, &s);

    if (rc == CTL_OK) {
        printf(o.json ? "{\"exported\":%ld}\n" : "exported %ld event%s\n",
               s.n, s.n == 1 ? "" : "s");
    }

    return rc;
}


int
ctl_forget(void)
{
    int         rc;
    ctl_json_t *v;
    long long   n;
    ctl_text_t  path = { NULL, 0 };

    if (o.store == NULL) {
        ctl_say("the events of which store? Say --store");
        return CTL_USAGE;
    }

    ctl_events(&path);
    ctl_arg(&path, "dry_run", o.dry_run ? "1" : NULL);

    /* slice after slice: it may take long */

    rc = ctl_answer("DELETE", &path, &v);

    if (rc != CTL_OK || o.json) {
        return rc;
    }
    n = ctl_number(v, "matched");

    printf("%s %lld event%s\n", o.dry_run ? "would delete" : "deleted", n,
           n == 1 ? "" : "s");

    ctl_json_free(v);

    return CTL_OK;
}
