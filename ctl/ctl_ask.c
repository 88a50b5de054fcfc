
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Asks the location: addresses and their arguments, what is answered, and what
 * it means where it is an error.
 *
 * Called by the commands; calls libcurl, and ctl_json.c.
 */


#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl.h"


#define CTL_SOCKET  "unix:"


int   ctl_began;
char  ctl_error[512];


void
ctl_say(const char *fmt, ...)
{
    va_list  args;

    fputs("idempotencyctl: ", stderr);

    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);

    fputc('\n', stderr);
}


/* the address for messages: without a user and a password */

const char *
ctl_url(void)
{
    const char  *host, *at;

    host = strstr(o.url, "://");
    at = host ? strrchr(host, '@') : NULL;

    return at ? at + 1 : o.url;
}


const char *
ctl_colour(const char *word)
{
    int          i;
    const char  *no, *term;

    static int  terminal = -1;

    static const struct {
        const char  *word;
        const char  *code;
    } colours[] = {
        { "error", "\033[31m" }, { "failing", "\033[31m" },
        { "unusable", "\033[31m" }, { "warn", "\033[33m" },
        { "in_progress", "\033[33m" }, { "ok", "\033[32m" },
        { "debug", "\033[2m" }, { NULL, "" }
    };

    if (terminal == -1) {
        no = getenv("NO_COLOR");
        term = getenv("TERM");

        terminal = isatty(1) && (no == NULL || no[0] == '\0')
                   && (term == NULL || strcmp(term, "dumb") != 0);
    }

    if (!terminal) {
        return "";
    }

    if (word == NULL) {
        return "\033[0m";
    }

    for (i = 0; colours[i].word && strcmp(colours[i].word, word); i++) {
        /* void */
    }

    return colours[i].code;
}


size_t
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


void
ctl_add(ctl_text_t *text, const char *s)
{
    ctl_gather((char *) s, 1, strlen(s), text);
}


void
ctl_arg(ctl_text_t *path, const char *name, const char *value)
{
    char  *e, head[64];

    if (value == NULL) {
        return;
    }

    e = curl_easy_escape(ctl_curl, value, 0);

    snprintf(head, sizeof(head), "%c%s=",
             path->data && strchr(path->data, '?') ? '&' : '?', name);

    ctl_add(path, head);
    ctl_add(path, e);

    curl_free(e);
}


/* keeps why an answer failed, for a document that is half written */

void
ctl_reason(const char *text)
{
    snprintf(ctl_error, sizeof(ctl_error), "%s", text);
}


void
ctl_quoted(const char *s)
{
    putchar('"');

    for ( /* void */ ; *s; s++) {

        if (*s == '"' || *s == '\\') {
            printf("\\%c", *s);

        } else if ((unsigned char) *s < 0x20) {
            printf("\\u%04x", (unsigned char) *s);

        } else {
            putchar(*s);
        }
    }

    putchar('"');
}


/* sets the address; "unix:<socket>:/path/" or one of HTTP */

int
ctl_address(const char *path)
{
    size_t       len;
    char        *socket;
    const char  *base, *p;
    ctl_text_t   url = { NULL, 0 };

    base = o.url;

    if (base == NULL || *base == '\0') {
        ctl_say("where? Say --url, or set IDEMPOTENCY_URL");
        return CTL_USAGE;
    }

    /* as nginx has it in proxy_pass */

    if (strncmp(base, "http://" CTL_SOCKET, sizeof("http://" CTL_SOCKET) - 1)
        == 0)
    {
        base += sizeof("http://") - 1;
    }

    if (strncmp(base, CTL_SOCKET, sizeof(CTL_SOCKET) - 1) == 0) {
        base += sizeof(CTL_SOCKET) - 1;
        p = strchr(base, ':');
        len = p ? (size_t) (p - base) : strlen(base);

        socket = strndup(base, len);
        curl_easy_setopt(ctl_curl, CURLOPT_UNIX_SOCKET_PATH, socket);
        free(socket);

        ctl_add(&url, "http://localhost");
        base = p ? p + 1 : "/";
    }

    ctl_add(&url, base);

    if (url.data[url.len - 1] != '/') {
        ctl_add(&url, "/");
    }

    ctl_add(&url, path);

    curl_easy_setopt(ctl_curl, CURLOPT_URL, url.data);
    free(url.data);

    return CTL_OK;
}


int
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
        ctl_reason(curl_easy_strerror(code));
        ctl_say("%s: %s", ctl_url(), curl_easy_strerror(code));
        return CTL_FAILED;
    }

    curl_easy_getinfo(ctl_curl, CURLINFO_RESPONSE_CODE, status);

    if (body->data == NULL) {
        ctl_add(body, "");
    }

    return CTL_OK;
}


const char *
ctl_clean(char *s)
{
    unsigned char  *p;

    for (p = (unsigned char *) s; *p; p++) {

        if (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) {
            *p++ = '?';
            *p = '?';
        }

        if (*p < 0x20 || *p == 0x7f) {
            *p = '?';
        }
    }

    return s;
}


const char *
ctl_string(ctl_json_t *v, const char *name, const char *none)
{
    v = ctl_json_get(v, name);

    return v && v->text ? ctl_clean(v->text) : none;
}


long long
ctl_number(ctl_json_t *v, const char *name)
{
    char       *end;
    long long   n;

    v = ctl_json_get(v, name);

    if (!ctl_json_is(v, '0')) {
        return -1;
    }

    errno = 0;
    n = strtoll(v->text, &end, 10);

    return *end || errno ? -1 : n;
}


int
ctl_get(const char *method, const char *path, ctl_text_t *body)
{
    int   rc;
    long  status;

    rc = ctl_ask(method, path, body, &status);

    return rc == CTL_OK && status != 200 ? ctl_refused(status, body) : rc;
}


/*
 * Asks for what is told at once: refused, or, with --json, printed as it is,
 * and *v is NULL then.
 */

int
ctl_answer(const char *method, ctl_text_t *path, ctl_json_t **v)
{
    int         rc;
    ctl_text_t  body;

    *v = NULL;

    rc = ctl_get(method, path->data, &body);

    if (rc != CTL_OK) {
        return rc;
    }

    *v = ctl_json_parse(body.data);

    if (!ctl_json_is(*v, '{')) {
        ctl_say("%s does not answer with JSON", ctl_url());
        return CTL_FAILED;
    }

    if (o.json) {
        fwrite(body.data, 1, body.len, stdout);
        *v = NULL;
    }

    return CTL_OK;
}


int
ctl_refused(long status, ctl_text_t *body)
{
    int          none;
    ctl_json_t  *v;
    const char  *text;

    v = ctl_json_parse(body->data);
    text = ctl_string(ctl_json_get(v, "error"), "message", NULL);

    none = status == 404 || status == 503
           || strcmp(ctl_string(ctl_json_get(v, "error"), "code", ""),
                     "STORE_FORBIDDEN")
              == 0;

    if (o.json && v && !ctl_began) {
        fwrite(body->data, 1, body->len, stdout);
    }

    ctl_reason(text ? text : "refused");

    if (text) {
        ctl_say("%s", text);

    } else {
        ctl_say("%s answers %ld: is it a location with idempotency_admin, "
                "and may you ask there?", ctl_url(), status);
    }

    ctl_json_free(v);

    return text && none ? CTL_NONE
           : text && status == 400 ? CTL_USAGE
           : CTL_FAILED;
}


int
ctl_stores(ctl_json_t **v, ctl_json_t **stores)
{
    int          rc;
    ctl_text_t   body;

    rc = ctl_get("GET", "", &body);

    if (rc != CTL_OK) {
        return rc;
    }

    *v = ctl_json_parse(body.data);
    *stores = ctl_json_get(*v, "stores");
    free(body.data);

    if (!ctl_json_is(*stores, '[') || !ctl_json_is((*stores)->child, '"')) {
        ctl_say("%s names no store: is it a location with "
                "idempotency_admin?", ctl_url());
        ctl_json_free(*v);
        return CTL_FAILED;
    }

    return CTL_OK;
}


int
ctl_records(ctl_text_t *path)
{
    int          rc;
    char        *e;
    ctl_json_t  *v, *stores;
    const char  *name;

    v = NULL;
    name = o.store;

    if (name == NULL) {
        rc = ctl_stores(&v, &stores);

        if (rc != CTL_OK) {
            return rc;
        }

        if (stores->child->next) {
            ctl_say("which store? There is more than one: say --store");
            ctl_json_free(v);
            return CTL_USAGE;
        }

        name = stores->child->text;
    }

    path->data = NULL;
    path->len = 0;

    e = curl_easy_escape(ctl_curl, name, 0);

    ctl_add(path, "records/");
    ctl_add(path, e);

    curl_free(e);
    ctl_json_free(v);

    return CTL_OK;
}


int
ctl_record_path(ctl_text_t *path)
{
    int   rc;
    char  id[65], hash[65];

    if ((o.record == NULL) == (o.key == NULL)) {
        ctl_say("which record? Say --record, or --key and --scope");
        return CTL_USAGE;
    }

    if ((o.record ? o.record : o.key)[0] == '\0') {
        ctl_say("which record? %s is empty", o.record ? "--record" : "--key");
        return CTL_USAGE;
    }

    rc = ctl_records(path);

    if (rc != CTL_OK) {
        return rc;
    }

    if (o.record) {
        ctl_add(path, "/");
        ctl_add(path, o.record);

    } else if (o.scope) {
        ctl_key(id, hash);
        ctl_add(path, "/");
        ctl_add(path, id);

    } else {
        ctl_arg(path, "key", o.key);            /* the scope is nginx's host */
    }

    return CTL_OK;
}
