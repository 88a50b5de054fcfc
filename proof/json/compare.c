
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Both JSON parsers on the same texts: the answer and the digest have to be
 * the same, in one piece and in pieces of a byte; and so has the object with
 * members set, at once and in steps.  Texts are those of the files that are
 * named, and what random changes make of them.  Prints TAP; built and run by
 * t/json-parsers.t, with yyjson's pieces so small that most texts have some.
 *
 *     compare <seed> <changes of each> <file> ...
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <stdio.h>
#include <stdlib.h>

#include "canonical/ngx_http_idem_json.h"
#include "canonical/ngx_http_idem_json_edit.h"
#include "canonical/ngx_http_idem_json_walk.h"


#define SIZE_MAX_OF_TEXT  65536


volatile ngx_cycle_t  *ngx_cycle;

static uint64_t        state;
static unsigned long   texts, accepted, edited, different;


void *
ngx_http_idem_canon_alloc(size_t size)
{
    return malloc(size);
}


void
ngx_http_idem_canon_free(void *p)
{
    free(p);
}


static unsigned
random_below(unsigned n)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;

    return (unsigned) (state >> 33) % n;
}


static ngx_int_t
parse(const ngx_http_idem_json_parser_t *parser, const u_char *p, size_t len,
    size_t piece, u_char *digest)
{
    size_t                         n;
    u_char                        *copy;
    ngx_int_t                      rc;
    ngx_http_idem_json_t          *j;
    ngx_http_idem_json_options_t   options;

    ngx_memzero(&options, sizeof(options));
    options.size = NGX_HTTP_IDEM_JSON_SIZE;
    options.depth = NGX_HTTP_IDEM_JSON_DEPTH;

    ngx_http_idem_json_parser = parser;

    j = ngx_http_idem_json_create(&options);

    while (len) {
        n = ngx_min(piece, len);

        /* memory of its own size: what is read beyond is seen */

        copy = malloc(n);
        ngx_memcpy(copy, p, n);
        (void) ngx_http_idem_json_feed(j, copy, n);
        free(copy);

        p += n;
        len -= n;
    }

    rc = ngx_http_idem_json_done(j, digest);

    ngx_http_idem_json_destroy(j);

    return rc;
}


/* "out" is to be freed */

static ngx_int_t
edit(const ngx_http_idem_json_parser_t *parser, const u_char *p, size_t len,
    size_t work, ngx_str_t *out)
{
    u_char                     *copy, *buf;
    ngx_int_t                   rc;
    ngx_str_t                   text;
    ngx_http_idem_json_edit_t   e;

    static const ngx_http_idem_json_set_t  set[] = {
        { ngx_string("a"), ngx_string("[1]") },
        { ngx_string("n\"\n"), ngx_string("null") }
    };

    ngx_http_idem_json_parser = parser;

    copy = malloc(len);
    ngx_memcpy(copy, p, len);

    text.data = copy;
    text.len = len;

    buf = malloc(ngx_http_idem_json_edit_size(&text, set, 2));

    rc = ngx_http_idem_json_edit_init(&e, &text, set, 2, buf);

    if (rc == NGX_OK) {
        do {
            rc = ngx_http_idem_json_edit_step(&e, work, out);
        } while (rc == NGX_AGAIN);
    }

    ngx_http_idem_json_edit_destroy(&e);
    free(copy);

    out->data = buf;

    if (rc != NGX_OK) {
        out->len = 0;
    }

    return rc;
}


static void
differ(const char *what, ngx_int_t rc, const u_char *p, size_t len)
{
    size_t  i;

    if (different++ < 10) {
        printf("# %s: yajl says %d of", what, (int) rc);

        for (i = 0; i < len && i < 200; i++) {
            printf(" %02x", p[i]);
        }

        printf("\n");
    }
}


static void
compare(const u_char *p, size_t len)
{
    u_char      one[32], two[32];
    size_t      piece;
    ngx_int_t   rc;
    ngx_str_t   old, new;

    texts++;

    rc = parse(&ngx_http_idem_json_yajl, p, len, len, one);
    accepted += (rc == NGX_OK);

    for (piece = len; piece; piece = (piece > 1) ? 1 : 0) {

        if (parse(&ngx_http_idem_json_yyjson, p, len, piece, two) != rc
            || (rc == NGX_OK && ngx_memcmp(one, two, 32) != 0))
        {
            differ("digest", rc, p, len);
        }
    }

    rc = edit(&ngx_http_idem_json_yajl, p, len, NGX_MAX_SIZE_T_VALUE, &old);
    edited += (rc == NGX_OK);

    for (piece = 0; piece < 3; piece++) {

        /* yajl in steps of some bytes, yyjson at once and in steps */

        if (edit(piece ? &ngx_http_idem_json_yyjson : &ngx_http_idem_json_yajl,
                 p, len, piece == 1 ? NGX_MAX_SIZE_T_VALUE : 7, &new)
            != rc
            || new.len != old.len
            || (old.len && ngx_memcmp(new.data, old.data, old.len) != 0))
        {
            differ("object", rc, p, len);
        }

        free(new.data);
    }

    free(old.data);
}


/* bytes that matter to JSON, more often than others */

static u_char
byte(void)
{
    static const char  words[] = "{}[]\",:\\/u0123456789abcdefDn.eE+- \t\n\r";

    return random_below(4) ? (u_char) words[random_below(sizeof(words) - 1)]
                           : (u_char) random_below(256);
}


static void
change(u_char *p, size_t *len)
{
    size_t  at, n;

    at = random_below((unsigned) *len + 1);

    switch (random_below(4)) {

    case 0:
        if (at < *len) {
            p[at] = byte();
        }

        break;

    case 1:
        if (*len < SIZE_MAX_OF_TEXT) {
            memmove(p + at + 1, p + at, *len - at);
            p[at] = byte();
            (*len)++;
        }

        break;

    case 2:
        n = 1 + random_below(4);
        n = ngx_min(*len - at, n);
        memmove(p + at, p + at + n, *len - at - n);
        *len -= n;
        break;

    default:
        n = 1 + random_below(16);
        n = ngx_min(*len - at, n);

        if (*len + n <= SIZE_MAX_OF_TEXT) {
            memmove(p + at + n, p + at, *len - at);
            *len += n;
        }
    }
}


int
main(int argc, char **argv)
{
    FILE           *f;
    int             i;
    size_t          len, n;
    unsigned long   changes, c, times;

    static u_char  text[SIZE_MAX_OF_TEXT], changed[SIZE_MAX_OF_TEXT];

    state = strtoull(argv[1], NULL, 10);
    changes = strtoul(argv[2], NULL, 10);

    for (i = 3; i < argc; i++) {
        f = fopen(argv[i], "r");

        if (f == NULL) {
            perror(argv[i]);
            return 1;
        }

        len = fread(text, 1, SIZE_MAX_OF_TEXT, f);
        fclose(f);

        compare(text, len);

        for (c = 0; c < changes; c++) {
            ngx_memcpy(changed, text, len);
            n = len;

            for (times = 1 + random_below(3); times; times--) {
                change(changed, &n);
            }

            compare(changed, n);
        }
    }

    printf("1..4\n");
    printf("%s 1 - both say the same of each text\n",
           different ? "not ok" : "ok");
    printf("%s 2 - of %lu texts some are JSON: %lu\n",
           accepted > texts / 20 ? "ok" : "not ok", texts, accepted);
    printf("%s 3 - and some are not\n",
           texts - accepted > texts / 20 ? "ok" : "not ok");

    printf("%s 4 - %lu are objects\n",
           edited > texts / 200 ? "ok" : "not ok", edited);

    return 0;
}
