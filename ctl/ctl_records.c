
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Commands on records: inspect, list, delete, cleanup, purge, stats.
 *
 * A list is asked for page by page, and so is what deletes many.
 */


#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ctl.h"


static int ctl_remove(void);
static int ctl_ignored(const char *option);
static int ctl_pages(const char *method);
static int ctl_count(const char *name);


const char *
ctl_time(long long ms, char *buf, size_t size)
{
    if (ms < 0) {
        snprintf(buf, size, "-");

    } else if (ms < 1000) {
        snprintf(buf, size, "%lldms", ms);

    } else if (ms < 120 * 1000) {
        snprintf(buf, size, "%.1fs", ms / 1e3);

    } else if (ms < 120 * 60000LL) {
        snprintf(buf, size, "%.1fm", ms / 6e4);

    } else if (ms < 48 * 3600000LL) {
        snprintf(buf, size, "%.1fh", ms / 3.6e6);

    } else {
        snprintf(buf, size, "%.1fd", ms / 8.64e7);
    }

    return buf;
}


/* of locks, who holds them is more than their size, which is nought */
#define ctl_locks()  (o.state && strcmp(o.state, "in_progress") == 0)


/* a line of 79 columns; the whole id where there is room for it */

static void
ctl_row(ctl_json_t *r, int wide)
{
    char         age[16], left[16], size[24];
    long long    ms;
    const char  *state;

    state = ctl_string(r, "state", "?");
    ms = ctl_number(r, "lease_left_ms");

    if (ms < 0) {
        ms = ctl_number(r, "ttl_left_ms");
    }

    snprintf(size, sizeof(size), "%8lld", ctl_number(r, "size"));

    printf("%-*.*s  %s%-11.11s%s  %-6.6s  %7s  %7s  %s%-*.*s  %-12.12s",
           wide ? 64 : 12, wide ? 64 : 12, ctl_string(r, "record", "?"),
           ctl_colour(state), state, ctl_colour(NULL),
           ctl_string(r, "status", "-"),
           ctl_time(ctl_number(r, "age_ms"), age, sizeof(age)),
           ctl_time(ms, left, sizeof(left)), ctl_locks() ? "" : size,
           ctl_locks() ? 10 : 0, ctl_locks() ? 10 : 0,
           ctl_string(r, "host", "-"),
           ctl_string(r, "tenant", "-"));

    if (wide) {
        printf("  %-12.12s", ctl_string(r, "group", "-"));
    }

    putchar('\n');
}


/* a terminal that is narrow has the beginning of an id, and no group */

static int
ctl_is_wide(void)
{
    struct winsize  w;

    return !isatty(1) || ioctl(1, TIOCGWINSZ, &w) == -1 || w.ws_col == 0
           || w.ws_col >= 143;
}


/* asks for the one record that was named, or deletes it */

static int
ctl_record(const char *method, ctl_json_t **v)
{
    int         rc;
    ctl_text_t  path;

    rc = ctl_record_path(&path);

    if (rc != CTL_OK) {
        return rc;
    }

    ctl_arg(&path, "dry_run", o.dry_run ? "1" : NULL);

    return ctl_answer(method, &path, v);
}


int
ctl_inspect(void)
{
    int          rc;
    ctl_json_t  *v, *m;
    const char  *text;

    rc = ctl_record("GET", &v);

    if (rc != CTL_OK || o.json) {
        return rc;
    }

    for (m = v->child; m; m = m->next) {
        text = m->text ? ctl_clean(m->text) : m->kind == 't' ? "yes" : "no";

        printf("%-14s %s%s%s\n", ctl_clean(m->name), ctl_colour(text), text,
               ctl_colour(NULL));
    }

    ctl_json_free(v);

    return CTL_OK;
}


int
ctl_list(void)
{
    if (o.record || o.key) {
        ctl_say("%s names one record: that is \"inspect\"",
                o.record ? "--record" : "--key");
        return CTL_USAGE;
    }

    return ctl_pages("GET");
}


int
ctl_delete(void)
{
    int          rc;
    ctl_json_t  *v;

    rc = ctl_ignored(o.state ? "--state" : o.older ? "--older"
                     : o.group ? "--group" : o.tenant ? "--tenant"
                     : o.actor ? "--actor" : o.since ? "--since"
                     : o.events ? "--events" : o.limit ? "--limit"
                     : o.record && o.scope ? "--scope" : NULL);

    if (rc != CTL_OK) {
        return rc;
    }

    rc = ctl_record("DELETE", &v);

    if (rc != CTL_OK || o.json) {
        return rc;
    }

    printf("%s %lld record\n", o.dry_run ? "would delete" : "deleted",
           ctl_number(v, o.dry_run ? "matched" : "deleted"));

    ctl_json_free(v);

    return CTL_OK;
}


int
ctl_cleanup(void)
{
    if (o.state == NULL && o.older == NULL) {
        ctl_say("clean up what? Say --state, --older, or both");
        return CTL_USAGE;
    }

    if (o.events && o.older == NULL) {
        ctl_say("which events? Say --older");
        return CTL_USAGE;
    }

    return ctl_remove();
}


int
ctl_purge(void)
{
    if (o.tenant == NULL && o.actor == NULL) {
        ctl_say("purge whose records? Say --tenant or --actor");
        return CTL_USAGE;
    }

    if (o.events && o.actor == NULL) {
        ctl_say("whose events? Say --actor");
        return CTL_USAGE;
    }

    return ctl_remove();
}


static int
ctl_remove(void)
{
    int          rc;
    const char  *option;

    if (o.events) {
        option = o.state ? "--state" : o.group ? "--group"
                 : o.tenant ? "--tenant" : o.limit ? "--limit" : NULL;

    } else {
        option = o.record ? "--record" : o.key ? "--key"
                 : o.since ? "--since" : NULL;
    }

    rc = ctl_ignored(option ? option : o.scope ? "--scope" : NULL);

    if (rc != CTL_OK) {
        return rc;
    }

    return o.events ? ctl_forget() : ctl_pages("DELETE");
}


/* an option that would be ignored would delete more than was meant */

static int
ctl_ignored(const char *option)
{
    if (option == NULL) {
        return CTL_OK;
    }

    ctl_say("nothing was deleted: %s does not choose %s here", option,
            o.events ? "events" : "records");

    return CTL_USAGE;
}


/* a page of a list, or of what was deleted */

static int
ctl_page(ctl_json_t *v, int list, int wide, long *n)
{
    ctl_json_t  *record, *records;

    records = ctl_json_get(v, "records");

    if (!ctl_json_is(records, '[')) {
        ctl_say("%s does not answer with a list", ctl_url());
        return CTL_FAILED;
    }

    for (record = records->child; record; record = record->next) {

        if (o.limit && *n >= o.limit) {
            return CTL_NONE;
        }

        if (list && *n == 0) {
            printf("%-*s  %-11s  %-6s  %7s  %7s  %s  %-12s%s\n",
                   wide ? 64 : 12, "RECORD", "STATE", "STATUS", "AGE", "LEFT",
                   ctl_locks() ? "HOST      " : "    SIZE", "TENANT",
                   wide ? "  GROUP       " : "");
        }

        (*n)++;

        if (list) {
            ctl_row(record, wide);
        }
    }

    return CTL_OK;
}


/* gets the page at "cursor", and sets the next cursor; NULL: the last page */

static int
ctl_next(const char *method, ctl_text_t *base, const char *state, long n,
    char **cursor, ctl_text_t *body, ctl_json_t **page)
{
    int          rc;
    char         limit[24];
    ctl_text_t   path = { NULL, 0 };
    const char  *next;

    snprintf(limit, sizeof(limit), "%ld",
             o.limit && o.limit - n < 1000 ? o.limit - n : 1000);

    ctl_add(&path, base->data);
    ctl_arg(&path, "limit", limit);
    ctl_arg(&path, "state", state);
    ctl_arg(&path, "older", o.older);
    ctl_arg(&path, "group", o.group);
    ctl_arg(&path, "tenant", o.tenant);
    ctl_arg(&path, "actor", o.actor);
    ctl_arg(&path, "dry_run", o.dry_run ? "1" : NULL);
    ctl_arg(&path, "cursor", *cursor);

    rc = ctl_get(method, path.data, body);
    free(path.data);

    if (rc != CTL_OK) {
        return rc;
    }

    *page = ctl_json_parse(body->data);
    next = ctl_string(*page, "cursor", NULL);

    /* a deletion may go on from where it was, as long as it deletes */

    if (next && *cursor && strcmp(next, *cursor) == 0
        && ctl_number(*page, "deleted") <= 0)
    {
        ctl_reason("the same page again");
        ctl_say("%s answers with the same page again", ctl_url());
        return CTL_FAILED;
    }

    free(*cursor);
    *cursor = next ? strdup(next) : NULL;

    return CTL_OK;
}


/*
 * The records of a page, as they are, behind "n" of the pages before: several
 * pages are one list.  Behind the records there is no other "]" in an answer.
 */

static void
ctl_join(ctl_text_t *body, long n)
{
    char  *first, *last;

    first = strchr(body->data, '[');
    last = strrchr(body->data, ']');

    if (first == NULL || last == NULL || last == first + 1) {
        return;
    }

    fputs(n ? ",\n" : "{\"records\":[", stdout);
    fwrite(first + 1, 1, last - first - 1, stdout);

    ctl_began = 1;
}


/*
 * The end of all pages.  With an error in the middle it tells what was deleted
 * before, and is still one document.
 */

static void
ctl_end(int list, long n, int rc)
{
    if (o.json) {

        if (rc != CTL_OK && !ctl_began) {
            return;                             /* it was the whole answer */
        }

        fputs(ctl_began ? "]" : "{\"records\":[]", stdout);

        if (!list) {
            printf(",\"deleted\":%ld,\"matched\":%ld,\"dry_run\":%s",
                   o.dry_run ? 0 : n, n, o.dry_run ? "true" : "false");
        }

        if (rc != CTL_OK) {
            fputs(",\"error\":{\"message\":", stdout);
            ctl_quoted(ctl_error);
            putchar('}');
        }

        fputs("}\n", stdout);

    } else if (!list && (rc == CTL_OK || n)) {
        printf("%s %ld record%s\n", o.dry_run ? "would delete" : "deleted",
               n, n == 1 ? "" : "s");

    } else if (n == 0 && rc == CTL_OK) {
        printf("no records\n");
    }
}


/* all pages; a line on stderr tells how far it is, on a terminal */

static int
ctl_pages(const char *method)
{
    int          rc, list, wide;
    long         n;
    char        *cursor;
    ctl_json_t  *v;
    ctl_text_t   base, body;

    list = (strcmp(method, "GET") == 0);
    wide = ctl_is_wide();
    n = 0;
    cursor = NULL;

    rc = ctl_records(&base);

    if (rc != CTL_OK) {
        return rc;
    }

    do {
        rc = ctl_next(method, &base, o.state, n, &cursor, &body, &v);

        if (rc != CTL_OK) {
            ctl_end(list, n, rc);
            return rc;
        }

        if (o.json) {
            ctl_join(&body, n);
        }

        rc = ctl_page(v, list && !o.json, wide, &n);

        ctl_json_free(v);
        free(body.data);

        if (rc == CTL_FAILED) {
            return rc;
        }

        if (isatty(2) && cursor) {
            fprintf(stderr, "\r%ld so far ", n);
        }

    } while (cursor && rc == CTL_OK && (!o.limit || n < o.limit));

    if (isatty(2)) {
        fputs("\r\033[K", stderr);
    }

    ctl_end(list, n, CTL_OK);

    return CTL_OK;
}


/* records of each store, or of one, counted by going through them */

int
ctl_stats(void)
{
    int          rc, one, several;
    ctl_json_t  *v, *stores, *store;

    if (o.store) {
        return ctl_count(NULL);
    }

    rc = ctl_stores(&v, &stores);

    if (rc != CTL_OK) {
        return rc;
    }

    several = (stores->child->next != NULL);

    if (o.json && several) {
        fputs("{\"stores\":[", stdout);
        ctl_began = 1;
    }

    for (store = stores->child; store; store = store->next) {
        o.store = store->text;

        if (o.json && store != stores->child) {
            putchar(',');
        }

        one = ctl_count(several ? o.store : NULL);

        if (one != CTL_OK && ctl_began) {
            fputs("{\"name\":", stdout);
            ctl_quoted(o.store);
            fputs(",\"error\":{\"message\":", stdout);
            ctl_quoted(ctl_error);
            fputs("}}", stdout);
        }

        /* the stores behind one that does not answer may do so */

        rc = (one > rc) ? one : rc;

        if (one == CTL_FAILED) {
            break;
        }
    }

    if (ctl_began) {
        fputs("]}\n", stdout);
    }

    o.store = NULL;
    ctl_json_free(v);

    return rc;
}


/* "name" is told where there are others */

static int
ctl_count(const char *name)
{
    int          rc, i;
    long         n[3];
    char        *cursor;
    ctl_json_t  *v;
    ctl_text_t   base, body;

    static const char  *states[] = { "in_progress", "completed", "unusable" };

    rc = ctl_records(&base);

    if (rc != CTL_OK) {
        return rc;
    }

    for (i = 0; i < 3; i++) {
        n[i] = 0;
        cursor = NULL;

        do {
            rc = ctl_next("GET", &base, states[i], 0, &cursor, &body, &v);

            if (rc != CTL_OK) {
                return rc;
            }

            rc = ctl_page(v, 0, 0, &n[i]);

            ctl_json_free(v);
            free(body.data);

            if (rc == CTL_FAILED) {
                return rc;
            }

        } while (cursor);
    }

    if (o.json) {
        putchar('{');

        if (name) {
            fputs("\"name\":", stdout);
            ctl_quoted(name);
            putchar(',');
        }

        printf("\"in_progress\":%ld,\"completed\":%ld,\"unusable\":%ld}%s",
               n[0], n[1], n[2], name ? "" : "\n");
        return CTL_OK;
    }

    if (name) {
        printf("%s\n", name);
    }

    for (i = 0; i < 3; i++) {
        printf("%s%-12s %ld\n", name ? "  " : "", states[i], n[i]);
    }

    return CTL_OK;
}
