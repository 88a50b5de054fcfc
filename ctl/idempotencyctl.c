
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * idempotencyctl: records of ngx_http_idempotency_module in a terminal.
 *
 * Asks a location with idempotency_admin, over HTTP or a unix socket, and shows
 * what it answers: a table for people, JSON with --json for programs.  "id"
 * asks nobody: it computes what the module would.  See idempotencyctl.1.
 *
 * Exit codes: 0 done; 1 there is no such record, or a store does not answer;
 * 2 it was asked wrongly; 3 nobody answers, or refuses.
 */


#include <getopt.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <curl/curl.h>
#include <openssl/evp.h>
#include <yajl/yajl_tree.h>


#define CTL_OK      0
#define CTL_NONE    1
#define CTL_USAGE   2
#define CTL_FAILED  3

#define CTL_SOCKET  "unix:"


typedef struct {
    char    *data;
    size_t   len;
} ctl_text_t;


typedef struct {
    const char  *url;
    const char  *store;
    const char  *key;
    const char  *scope;
    const char  *record;
    const char  *tenant;
    const char  *actor;
    const char  *group;
    const char  *state;
    const char  *older;
    const char  *user;
    long         limit;
    int          json;
    int          dry_run;
} ctl_options_t;


typedef int (*ctl_command_pt)(void);


static int ctl_inspect(void);
static int ctl_list(void);
static int ctl_delete(void);
static int ctl_cleanup(void);
static int ctl_purge(void);
static int ctl_tail(void);
static int ctl_stats(void);
static int ctl_id(void);
static int ctl_health(void);
static int ctl_pages(const char *method);


static struct {
    const char      *name;
    ctl_command_pt   run;
} ctl_commands[] = {
    { "inspect", ctl_inspect },
    { "list", ctl_list },
    { "delete", ctl_delete },
    { "cleanup", ctl_cleanup },
    { "purge", ctl_purge },
    { "tail", ctl_tail },
    { "stats", ctl_stats },
    { "id", ctl_id },
    { "health", ctl_health },
    { NULL, NULL }
};


static ctl_options_t  o;
static CURL          *ctl_curl;


static const char  ctl_usage[] =
    "usage: idempotencyctl --url <location> <command> [options]\n"
    "\n"
    "  inspect   --record <id> | --key <key> [--scope <scope>]\n"
    "  list      [--state <state>] [--older <time>] [--group <group>]\n"
    "            [--tenant <tenant>] [--actor <actor>] [--limit <n>]\n"
    "  delete    --record <id> | --key <key> [--scope <scope>] [--dry-run]\n"
    "  cleanup   --state <state> and/or --older <time> [--dry-run]\n"
    "  purge     --tenant <tenant> | --actor <actor> [--dry-run]\n"
    "  tail      [--key <key>] [--record <id>]\n"
    "  stats     of each store, by state\n"
    "  id        --key <key> --scope <scope>   (asks nobody)\n"
    "  health    of each store\n"
    "\n"
    "  --url     http://host:port/path/ or unix:<socket>:/path/\n"
    "            (or the variable IDEMPOTENCY_URL)\n"
    "  --store   which store; not needed where there is one\n"
    "  --user    <name>:<password>, for auth_basic\n"
    "  --json    as the location answers it\n";


static void
ctl_say(const char *fmt, ...)
{
    va_list  args;

    fputs("idempotencyctl: ", stderr);

    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);

    fputc('\n', stderr);
}


static size_t
ctl_gather(char *p, size_t size, size_t n, void *data)
{
    char        *more;
    ctl_text_t  *text = data;

    more = realloc(text->data, text->len + size * n + 1);

    if (more == NULL) {
        return 0;
    }

    memcpy(more + text->len, p, size * n);

    text->data = more;
    text->len += size * n;
    text->data[text->len] = '\0';

    return size * n;
}


/* an argument of an address, encoded, behind "?" or "&" */

static void
ctl_arg(ctl_text_t *path, const char *name, const char *value)
{
    char  *e, head[64];

    if (value == NULL) {
        return;
    }

    e = curl_easy_escape(ctl_curl, value, 0);

    snprintf(head, sizeof(head), "%c%s=",
             path->data && strchr(path->data, '?') ? '&' : '?', name);

    ctl_gather(head, 1, strlen(head), path);
    ctl_gather(e, 1, strlen(e), path);

    curl_free(e);
}


/* sets the address; "unix:<socket>:/path/" or one of HTTP */

static int
ctl_address(const char *path)
{
    size_t       len;
    char        *socket;
    const char  *base, *p;
    ctl_text_t   url = { NULL, 0 };

    base = o.url;

    if (base == NULL) {
        ctl_say("where? Say --url, or set IDEMPOTENCY_URL");
        return CTL_USAGE;
    }

    if (strncmp(base, CTL_SOCKET, sizeof(CTL_SOCKET) - 1) == 0) {
        base += sizeof(CTL_SOCKET) - 1;
        p = strchr(base, ':');
        len = p ? (size_t) (p - base) : strlen(base);

        socket = strndup(base, len);
        curl_easy_setopt(ctl_curl, CURLOPT_UNIX_SOCKET_PATH, socket);
        free(socket);

        ctl_gather("http://localhost", 1, 16, &url);
        base = p ? p + 1 : "/";
    }

    ctl_gather((char *) base, 1, strlen(base), &url);

    if (url.data[url.len - 1] != '/') {
        ctl_gather("/", 1, 1, &url);
    }

    ctl_gather((char *) path, 1, strlen(path), &url);

    curl_easy_setopt(ctl_curl, CURLOPT_URL, url.data);
    free(url.data);

    return CTL_OK;
}


/* CTL_OK with its status and body, or it was told why not */

static int
ctl_ask(const char *method, const char *path, ctl_text_t *body, long *status)
{
    int       rc;
    CURLcode  code;

    rc = ctl_address(path);

    if (rc != CTL_OK) {
        return rc;
    }

    body->data = NULL;
    body->len = 0;

    curl_easy_setopt(ctl_curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(ctl_curl, CURLOPT_WRITEFUNCTION, ctl_gather);
    curl_easy_setopt(ctl_curl, CURLOPT_WRITEDATA, body);
    curl_easy_setopt(ctl_curl, CURLOPT_TIMEOUT, 60L);

    code = curl_easy_perform(ctl_curl);

    if (code != CURLE_OK) {
        ctl_say("%s: %s", o.url, curl_easy_strerror(code));
        return CTL_FAILED;
    }

    curl_easy_getinfo(ctl_curl, CURLINFO_RESPONSE_CODE, status);

    if (body->data == NULL) {
        ctl_gather("", 1, 0, body);
    }

    return CTL_OK;
}


static yajl_val
ctl_parse(ctl_text_t *body)
{
    char  error[128];

    return yajl_tree_parse(body->data, error, sizeof(error));
}


static yajl_val
ctl_get(yajl_val v, const char *a, const char *b)
{
    const char  *path[3];

    path[0] = a;
    path[1] = b;
    path[2] = NULL;

    return v ? yajl_tree_get(v, path, yajl_t_any) : NULL;
}


static const char *
ctl_string(yajl_val v, const char *name, const char *none)
{
    v = ctl_get(v, name, NULL);

    return YAJL_IS_STRING(v) ? YAJL_GET_STRING(v)
           : YAJL_IS_NUMBER(v) ? YAJL_GET_NUMBER(v)
           : none;
}


static long long
ctl_number(yajl_val v, const char *name)
{
    v = ctl_get(v, name, NULL);

    return YAJL_IS_INTEGER(v) ? YAJL_GET_INTEGER(v) : -1;
}


/* the location refused it */

static int
ctl_refused(long status, ctl_text_t *body)
{
    yajl_val     v, message;
    const char  *text;

    v = ctl_parse(body);
    message = ctl_get(v, "error", "message");
    text = YAJL_IS_STRING(message) ? YAJL_GET_STRING(message) : NULL;

    if (o.json && v) {
        fwrite(body->data, 1, body->len, stdout);
    }

    if (text) {
        ctl_say("%s", text);

    } else {
        ctl_say("%s answers %ld: is it a location with idempotency_admin, "
                "and may you ask there?", o.url, status);
    }

    yajl_tree_free(v);

    return text && (status == 404 || status == 503) ? CTL_NONE
           : text && status == 400 ? CTL_USAGE
           : CTL_FAILED;
}


/* "records/<store>", where there is one store or one was named */

static int
ctl_records(ctl_text_t *path)
{
    int          rc;
    long         status;
    yajl_val     v, stores;
    ctl_text_t   body;
    const char  *name;

    v = NULL;
    name = o.store;

    if (name == NULL) {
        rc = ctl_ask("GET", "", &body, &status);

        if (rc != CTL_OK) {
            return rc;
        }

        if (status != 200) {
            return ctl_refused(status, &body);
        }

        v = ctl_parse(&body);
        stores = ctl_get(v, "stores", NULL);
        free(body.data);

        if (!YAJL_IS_ARRAY(stores) || stores->u.array.len == 0) {
            ctl_say("%s names no store: is it a location with "
                    "idempotency_admin?", o.url);
            yajl_tree_free(v);
            return CTL_FAILED;
        }

        if (stores->u.array.len > 1) {
            ctl_say("which store? There is more than one: say --store");
            yajl_tree_free(v);
            return CTL_USAGE;
        }

        name = YAJL_GET_STRING(stores->u.array.values[0]);
    }

    path->data = NULL;
    path->len = 0;

    ctl_gather("records/", 1, 8, path);
    ctl_gather((char *) name, 1, strlen(name), path);

    yajl_tree_free(v);

    return CTL_OK;
}


/* the record that --record or --key names */

static int
ctl_one(ctl_text_t *path)
{
    int  rc;

    if ((o.record == NULL) == (o.key == NULL)) {
        ctl_say("which record? Say --record, or --key and --scope");
        return CTL_USAGE;
    }

    rc = ctl_records(path);

    if (rc != CTL_OK) {
        return rc;
    }

    if (o.record) {
        ctl_gather("/", 1, 1, path);
        ctl_gather((char *) o.record, 1, strlen(o.record), path);

    } else {
        ctl_arg(path, "key", o.key);
        ctl_arg(path, "scope", o.scope);
    }

    return CTL_OK;
}


/* a time as people have it: 2.5h */

static const char *
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


/* a line of 79 columns; the whole id where there is room for it */

static void
ctl_row(yajl_val r, int wide)
{
    char       age[16], left[16];
    long long  ms;

    ms = ctl_number(r, "lease_left_ms");

    if (ms < 0) {
        ms = ctl_number(r, "ttl_left_ms");
    }

    printf("%-*.*s  %-11.11s  %-6.6s  %7s  %7s  %8lld  %-12.12s\n",
           wide ? 64 : 12, wide ? 64 : 12, ctl_string(r, "record", "?"),
           ctl_string(r, "state", "?"), ctl_string(r, "status", "-"),
           ctl_time(ctl_number(r, "age_ms"), age, sizeof(age)),
           ctl_time(ms, left, sizeof(left)), ctl_number(r, "size"),
           ctl_string(r, "tenant", ctl_string(r, "group", "-")));
}


/* a terminal that is narrow has the beginning of an id */

static int
ctl_wide(void)
{
    struct winsize  w;

    return !isatty(1) || ioctl(1, TIOCGWINSZ, &w) == -1 || w.ws_col == 0
           || w.ws_col >= 132;
}


static int
ctl_inspect(void)
{
    int         rc;
    long        status;
    size_t      i;
    yajl_val    v, m;
    ctl_text_t  path, body;

    rc = ctl_one(&path);

    if (rc != CTL_OK) {
        return rc;
    }

    rc = ctl_ask("GET", path.data, &body, &status);

    if (rc != CTL_OK) {
        return rc;
    }

    if (status != 200) {
        return ctl_refused(status, &body);
    }

    if (o.json) {
        fwrite(body.data, 1, body.len, stdout);
        return CTL_OK;
    }

    v = ctl_parse(&body);

    if (!YAJL_IS_OBJECT(v)) {
        ctl_say("%s does not answer with JSON", o.url);
        return CTL_FAILED;
    }

    for (i = 0; i < v->u.object.len; i++) {
        m = v->u.object.values[i];

        printf("%-14s %s\n", v->u.object.keys[i],
               YAJL_IS_STRING(m) ? YAJL_GET_STRING(m)
               : YAJL_IS_NUMBER(m) ? YAJL_GET_NUMBER(m)
               : YAJL_IS_TRUE(m) ? "yes" : "no");
    }

    yajl_tree_free(v);

    return CTL_OK;
}


static int
ctl_list(void)
{
    return ctl_pages("GET");
}


static int
ctl_delete(void)
{
    int         rc;
    long        status;
    yajl_val    v;
    ctl_text_t  path, body;

    rc = ctl_one(&path);

    if (rc != CTL_OK) {
        return rc;
    }

    ctl_arg(&path, "dry_run", o.dry_run ? "1" : NULL);

    rc = ctl_ask("DELETE", path.data, &body, &status);

    if (rc != CTL_OK) {
        return rc;
    }

    if (status != 200) {
        return ctl_refused(status, &body);
    }

    if (o.json) {
        fwrite(body.data, 1, body.len, stdout);
        return CTL_OK;
    }

    v = ctl_parse(&body);

    printf("%s %lld record\n", o.dry_run ? "would delete" : "deleted",
           ctl_number(v, o.dry_run ? "matched" : "deleted"));

    yajl_tree_free(v);

    return CTL_OK;
}


static int
ctl_cleanup(void)
{
    if (o.state == NULL && o.older == NULL) {
        ctl_say("clean up what? Say --state, --older, or both");
        return CTL_USAGE;
    }

    return ctl_pages("DELETE");
}


static int
ctl_purge(void)
{
    if (o.tenant == NULL && o.actor == NULL) {
        ctl_say("purge whose records? Say --tenant or --actor");
        return CTL_USAGE;
    }

    return ctl_pages("DELETE");
}


/* a page of a list, or of what was deleted */

static int
ctl_page(yajl_val v, int list, int wide, long *n)
{
    size_t    i;
    yajl_val  records;

    records = ctl_get(v, "records", NULL);

    if (!YAJL_IS_ARRAY(records)) {
        ctl_say("%s does not answer with a list", o.url);
        return CTL_FAILED;
    }

    for (i = 0; i < records->u.array.len; i++) {

        if (o.limit && *n >= o.limit) {
            return CTL_NONE;
        }

        if (list && *n == 0) {
            printf("%-*s  %-11s  %-6s  %7s  %7s  %8s  %-12s\n",
                   wide ? 64 : 12, "RECORD", "STATE", "STATUS", "AGE", "LEFT",
                   "SIZE", "TENANT");
        }

        (*n)++;

        if (list) {
            ctl_row(records->u.array.values[i], wide);
        }
    }

    return CTL_OK;
}


/* all pages; a line on stderr tells how far it is, on a terminal */

static int
ctl_pages(const char *method)
{
    int          rc, list, wide;
    char         limit[24];
    long         status, n;
    char        *cursor;
    yajl_val     v;
    ctl_text_t   path, base, body;
    const char  *next;

    list = (strcmp(method, "GET") == 0);
    wide = ctl_wide();
    n = 0;
    cursor = NULL;

    rc = ctl_records(&base);

    if (rc != CTL_OK) {
        return rc;
    }

    do {
        path.data = NULL;
        path.len = 0;

        ctl_gather(base.data, 1, base.len, &path);

        snprintf(limit, sizeof(limit), "%ld",
                 o.limit && o.limit - n < 1000 ? o.limit - n : 1000);

        ctl_arg(&path, "limit", limit);
        ctl_arg(&path, "state", o.state);
        ctl_arg(&path, "older", o.older);
        ctl_arg(&path, "group", o.group);
        ctl_arg(&path, "tenant", o.tenant);
        ctl_arg(&path, "actor", o.actor);
        ctl_arg(&path, "dry_run", o.dry_run ? "1" : NULL);
        ctl_arg(&path, "cursor", cursor);

        rc = ctl_ask(method, path.data, &body, &status);
        free(path.data);

        if (rc != CTL_OK) {
            return rc;
        }

        if (status != 200) {
            return ctl_refused(status, &body);
        }

        v = ctl_parse(&body);

        if (o.json) {
            fwrite(body.data, 1, body.len, stdout);
        }

        rc = ctl_page(v, list && !o.json, wide, &n);

        if (rc == CTL_FAILED) {
            return rc;
        }

        next = ctl_string(v, "cursor", NULL);

        free(cursor);
        cursor = (next && rc == CTL_OK && (!o.limit || n < o.limit))
                 ? strdup(next) : NULL;

        yajl_tree_free(v);
        free(body.data);

        if (isatty(2) && cursor) {
            fprintf(stderr, "\r%ld so far ", n);
        }

    } while (cursor);

    if (isatty(2)) {
        fputs("\r\033[K", stderr);
    }

    if (!o.json && !list) {
        printf("%s %ld record%s\n", o.dry_run ? "would delete" : "deleted",
               n, n == 1 ? "" : "s");

    } else if (!o.json && n == 0) {
        printf("no records\n");
    }

    return CTL_OK;
}


/* lines of a stream; "data: " goes, comments too */

static size_t
ctl_stream(char *p, size_t size, size_t n, void *data)
{
    char        *line, *end;
    ctl_text_t  *text = data;

    if (ctl_gather(p, size, n, text) != size * n) {
        return 0;
    }

    for (line = text->data; (end = strchr(line, '\n')) != NULL;
         line = end + 1)
    {
        if (strncmp(line, "data: ", 6) == 0) {
            fwrite(line + 6, 1, end + 1 - line - 6, stdout);
            fflush(stdout);
        }
    }

    text->len -= line - text->data;
    memmove(text->data, line, text->len + 1);

    return size * n;
}


static int
ctl_tail(void)
{
    int         rc;
    long        status;
    CURLcode    code;
    ctl_text_t  path = { NULL, 0 }, text = { NULL, 0 };

    ctl_gather("events", 1, 6, &path);
    ctl_arg(&path, "key", o.key);
    ctl_arg(&path, "record", o.record);

    rc = ctl_address(path.data);

    if (rc != CTL_OK) {
        return rc;
    }

    curl_easy_setopt(ctl_curl, CURLOPT_WRITEFUNCTION, ctl_stream);
    curl_easy_setopt(ctl_curl, CURLOPT_WRITEDATA, &text);

    code = curl_easy_perform(ctl_curl);

    if (code != CURLE_OK) {
        ctl_say("%s: %s", o.url, curl_easy_strerror(code));
        return CTL_FAILED;
    }

    curl_easy_getinfo(ctl_curl, CURLINFO_RESPONSE_CODE, &status);

    if (status == 200) {
        return CTL_OK;
    }

    if (text.data == NULL) {
        ctl_gather("", 1, 0, &text);
    }

    return ctl_refused(status, &text);
}


/* records of a store, counted by going through them */

static int
ctl_stats(void)
{
    int          rc, i;
    long         status, n;
    ctl_text_t   base, path, body;
    yajl_val     v;
    char        *cursor;
    const char  *next;

    static const char  *states[] = { "in_progress", "completed", "unusable" };

    rc = ctl_records(&base);

    if (rc != CTL_OK) {
        return rc;
    }

    for (i = 0; i < 3; i++) {
        n = 0;
        cursor = NULL;

        do {
            path.data = NULL;
            path.len = 0;

            ctl_gather(base.data, 1, base.len, &path);
            ctl_arg(&path, "limit", "1000");
            ctl_arg(&path, "state", states[i]);
            ctl_arg(&path, "cursor", cursor);

            rc = ctl_ask("GET", path.data, &body, &status);
            free(path.data);

            if (rc != CTL_OK) {
                return rc;
            }

            if (status != 200) {
                return ctl_refused(status, &body);
            }

            v = ctl_parse(&body);

            if (ctl_page(v, 0, 0, &n) == CTL_FAILED) {
                return CTL_FAILED;
            }

            next = ctl_string(v, "cursor", NULL);
            free(cursor);
            cursor = next ? strdup(next) : NULL;

            yajl_tree_free(v);
            free(body.data);

        } while (cursor);

        if (o.json) {
            printf("%s\"%s\":%ld%s", i ? "," : "{", states[i], n,
                   i == 2 ? "}\n" : "");

        } else {
            printf("%-12s %ld\n", states[i], n);
        }
    }

    return CTL_OK;
}


/* a field of a record id: its length in 8 bytes, then itself */

static void
ctl_field(EVP_MD_CTX *md, const char *s)
{
    int       i;
    size_t    len;
    uint8_t   n[8];

    len = strlen(s);

    for (i = 0; i < 8; i++) {
        n[i] = (uint8_t) ((uint64_t) len >> (56 - 8 * i));
    }

    EVP_DigestUpdate(md, n, sizeof(n));
    EVP_DigestUpdate(md, s, len);
}


static void
ctl_hex(const unsigned char *p, size_t len, char *text)
{
    size_t  i;

    for (i = 0; i < len; i++) {
        sprintf(text + 2 * i, "%02x", p[i]);
    }
}


static int
ctl_id(void)
{
    char           id[65], hash[65];
    EVP_MD_CTX    *md;
    unsigned char  sum[32];

    if (o.key == NULL || o.scope == NULL) {
        ctl_say("of which key? Say --key and --scope: what idempotency_scope "
                "is, or the host of the request");
        return CTL_USAGE;
    }

    md = EVP_MD_CTX_new();

    EVP_DigestInit_ex(md, EVP_sha256(), NULL);
    ctl_field(md, o.scope);
    ctl_field(md, o.key);
    EVP_DigestFinal_ex(md, sum, NULL);
    ctl_hex(sum, sizeof(sum), id);

    EVP_DigestInit_ex(md, EVP_sha256(), NULL);
    EVP_DigestUpdate(md, o.key, strlen(o.key));
    EVP_DigestFinal_ex(md, sum, NULL);
    ctl_hex(sum, sizeof(sum), hash);

    EVP_MD_CTX_free(md);

    printf(o.json ? "{\"record\":\"%s\",\"key_hash\":\"%s\"}\n"
                  : "record    %s\nkey_hash  %s\n", id, hash);

    return CTL_OK;
}


static int
ctl_health(void)
{
    int         rc;
    long        status;
    size_t      i;
    yajl_val    v, stores, s;
    ctl_text_t  body;

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

        printf("%-20s %-8s %6sms  %s\n", ctl_string(s, "name", "?"),
               YAJL_IS_TRUE(ctl_get(s, "ok", NULL)) ? "ok" : "failing",
               ctl_string(s, "duration_ms", "?"), ctl_string(s, "error", ""));
    }

    return status == 200 ? CTL_OK : CTL_NONE;
}


static int
ctl_options(int argc, char **argv)
{
    int  c;

    static struct option  options[] = {
        { "url", 1, NULL, 'u' }, { "store", 1, NULL, 's' },
        { "key", 1, NULL, 'k' }, { "scope", 1, NULL, 'c' },
        { "record", 1, NULL, 'r' }, { "tenant", 1, NULL, 't' },
        { "actor", 1, NULL, 'a' }, { "group", 1, NULL, 'g' },
        { "state", 1, NULL, 'S' }, { "older", 1, NULL, 'o' },
        { "limit", 1, NULL, 'l' }, { "user", 1, NULL, 'U' },
        { "json", 0, NULL, 'j' }, { "dry-run", 0, NULL, 'n' },
        { "help", 0, NULL, 'h' }, { NULL, 0, NULL, 0 }
    };

    while ((c = getopt_long(argc, argv, "jnh", options, NULL)) != -1) {

        switch (c) {

        case 'u': o.url = optarg; break;
        case 's': o.store = optarg; break;
        case 'k': o.key = optarg; break;
        case 'c': o.scope = optarg; break;
        case 'r': o.record = optarg; break;
        case 't': o.tenant = optarg; break;
        case 'a': o.actor = optarg; break;
        case 'g': o.group = optarg; break;
        case 'S': o.state = optarg; break;
        case 'o': o.older = optarg; break;
        case 'l': o.limit = atol(optarg); break;
        case 'U': o.user = optarg; break;
        case 'j': o.json = 1; break;
        case 'n': o.dry_run = 1; break;

        case 'h':
            fputs(ctl_usage, stdout);
            exit(CTL_OK);

        default:
            return CTL_USAGE;
        }
    }

    return CTL_OK;
}


int
main(int argc, char **argv)
{
    int  i, rc;

    o.url = getenv("IDEMPOTENCY_URL");

    if (ctl_options(argc, argv) != CTL_OK || optind + 1 != argc) {
        fputs(ctl_usage, stderr);
        return CTL_USAGE;
    }

    for (i = 0; ctl_commands[i].name; i++) {
        if (strcmp(ctl_commands[i].name, argv[optind]) == 0) {
            break;
        }
    }

    if (ctl_commands[i].name == NULL) {
        ctl_say("there is no command \"%s\"", argv[optind]);
        fputs(ctl_usage, stderr);
        return CTL_USAGE;
    }

    curl_global_init(CURL_GLOBAL_DEFAULT);
    ctl_curl = curl_easy_init();

    if (ctl_curl == NULL) {
        ctl_say("no memory");
        return CTL_FAILED;
    }

    curl_easy_setopt(ctl_curl, CURLOPT_CONNECTTIMEOUT, 5L);
    curl_easy_setopt(ctl_curl, CURLOPT_NOSIGNAL, 1L);

    if (o.user) {
        curl_easy_setopt(ctl_curl, CURLOPT_USERPWD, o.user);
    }

    rc = ctl_commands[i].run();

    curl_easy_cleanup(ctl_curl);
    curl_global_cleanup();

    return rc;
}
