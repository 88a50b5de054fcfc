
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * How long the canonical forms keep a worker busy: the longest single step of
 * reading a body of 1 MB, for the shapes that cost most.  A step is what
 * nginx waits for: one piece of the body, or its end.
 *
 *     bench/loop-gap
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "canonical/ngx_http_idem_form.h"
#include "canonical/ngx_http_idem_json.h"
#include "canonical/ngx_http_idem_digest.h"
#include "../t/unit/canon.h"


#define SIZE   (1024 * 1024)
#define PIECE  (64 * 1024)               /* as of ..._rest.c */
#define END    64
#define WORK   262144
#define TURNS  7


static u_char  secret[32];


static double
now(void)
{
    struct timespec  t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);

    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}


static size_t
fill(u_char *p, const char *open, const char *close, const char *unit,
    int shape)
{
    u_char    text[256];
    size_t    len, n;
    unsigned  i, x;

    len = ngx_cpymem(p, open, ngx_strlen(open)) - p;
    x = 1;

    for (i = 0; ; i++) {
        x = x * 1103515245 + 12345;

        n = snprintf((char *) text, sizeof(text), unit,
                     shape ? x >> 4 : i % 7);

        if (len + n + ngx_strlen(close) + 1 > SIZE) {
            break;
        }

        if (i && ngx_strlen(close)) {
            p[len++] = ',';
        } else if (i) {
            p[len++] = '&';
        }

        ngx_memcpy(p + len, text, n);
        len += n;
    }

    return ngx_cpymem(p + len, close, ngx_strlen(close)) - p;
}


/* as the turns of src/request/ngx_http_idem_rest.c */

static int
step(ngx_http_idem_json_t *j, ngx_http_idem_form_t *f, u_char *body,
    size_t len, size_t *pos, int *last, u_char *digest, ngx_int_t *rc)
{
    size_t  n;

    if (j && ngx_http_idem_json_work(j, WORK) == NGX_AGAIN) {
        return 1;
    }

    n = len - *pos;

    if (n == 0 && j && !*last) {
        *last = 1;
        (void) ngx_http_idem_json_last(j);
        return 1;
    }

    if (n == 0) {
        if (f && ngx_http_idem_form_close(f, WORK) == NGX_AGAIN) {
            return 1;
        }

        *rc = j ? ngx_http_idem_json_done(j, digest)
                : ngx_http_idem_form_done(f, digest);
        return 0;
    }

    n = ngx_min(PIECE, n);

    if (len - *pos > END) {
        n = ngx_min(n, len - *pos - END);
    }

    if (j) {
        n = ngx_http_idem_json_cut(j, body + *pos, n);
        (void) ngx_http_idem_json_feed(j, body + *pos, n);
        (void) ngx_http_idem_json_flush(j);

    } else {
        (void) ngx_http_idem_form_feed(f, body + *pos, n);
    }

    *pos += n;

    return 1;
}


static void
measure(const char *name, u_char *body, size_t len, size_t piece,
    ngx_http_idem_json_options_t *json, ngx_http_idem_form_options_t *form)
{
    u_char                 digest[32];
    double                 start, took, longest, total, best, all;
    size_t                 i;
    int                    more, last;
    ngx_int_t              rc;
    ngx_uint_t             turn;
    ngx_http_idem_json_t  *j;
    ngx_http_idem_form_t  *f;

    best = all = 1e9;
    rc = NGX_ERROR;

    for (turn = 0; turn < TURNS; turn++) {
        j = json ? ngx_http_idem_json_create(json) : NULL;
        f = form ? ngx_http_idem_form_create(form) : NULL;

        longest = total = 0;

        i = 0;
        last = 0;

        do {
            start = now();
            more = step(j, f, body, len, &i, &last, digest, &rc);
            took = now() - start;

            total += took;
            longest = ngx_max(longest, took);
        } while (more);

        start = now();

        if (j) {
            ngx_http_idem_json_destroy(j);
        }

        if (f) {
            ngx_http_idem_form_destroy(f);
        }

        took = now() - start;
        longest = ngx_max(longest, took);

        best = ngx_min(best, longest);
        all = ngx_min(all, total + took);
    }

    printf("%-34s %7zu B a piece  %6.1f ms longest  %6.1f ms in all  %s\n",
           name, piece, best, all, rc == NGX_OK ? "" : "(not parsed)");
}


int
main(int argc, char **argv)
{
    u_char                        *body;
    size_t                         len, piece;
    unsigned                       i;
    ngx_http_idem_json_options_t   json;
    ngx_http_idem_form_options_t   form;

    static const struct {
        const char  *name, *open, *close, *unit;
        int          shape;
    } shapes[] = {
        { "array of digits", "[", "]", "%u", 0 },
        { "array of numbers", "[", "]", "%u", 1 },
        { "array of strings", "[", "]", "\"%x\"", 1 },
        { "array of arrays", "[", "]", "[%.0u]", 1 },
        { "array of objects", "[", "]", "{\"a\":%u}", 1 },
        { "array of lists", "[", "]", "[%u,2,1]", 1 },
        { "array of names", "[", "]",
          "\"the same long beginning of a name that is longer than that %u\"",
          1 },
        { "object of numbers", "{", "}", "\"%x\":1", 1 },
        { "object of one name", "{", "}", "\"%.0u\":1", 0 },
        { NULL, NULL, NULL, NULL, 0 }
    };


    body = malloc(SIZE + 1);

    piece = PIECE;

    for (i = 0; shapes[i].name; i++) {
        len = fill(body, shapes[i].open, shapes[i].close, shapes[i].unit,
                   shapes[i].shape);

        ngx_memzero(&json, sizeof(json));
        json.size = NGX_HTTP_IDEM_JSON_SIZE;
        json.depth = NGX_HTTP_IDEM_JSON_DEPTH;
        json.paths = NGX_HTTP_IDEM_JSON_PATHS;
        json.paths_size = NGX_HTTP_IDEM_JSON_PATHS_SIZE;
        json.secret = secret;

        printf("ordered    ");
        measure(shapes[i].name, body, len, piece, &json, NULL);

        json.unordered = 1;
        printf("unordered  ");
        measure(shapes[i].name, body, len, piece, &json, NULL);

        json.unordered = 0;
        json.detail = NGX_HTTP_IDEM_JSON_DETAIL_VALUES;
        printf("detail     ");
        measure(shapes[i].name, body, len, piece, &json, NULL);
    }

    ngx_memzero(&form, sizeof(form));
    form.size = NGX_HTTP_IDEM_FORM_SIZE;

    len = fill(body, "", "", "%x=1", 1);
    printf("form       ");
    measure("names", body, len, piece, NULL, &form);

    len = fill(body, "", "", "%u", 0);
    printf("form       ");
    measure("digits", body, len, piece, NULL, &form);

    return 0;
}
