
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_json.c src/canonical/ngx_http_idem_json_walk.c src/canonical/ngx_http_idem_json_pointer.c src/canonical/ngx_http_idem_json_members.c src/canonical/ngx_http_idem_json_@json@.c src/canonical/ngx_http_idem_json_paths.c src/canonical/ngx_http_idem_form.c src/canonical/ngx_http_idem_canon.c src/canonical/ngx_http_idem_canon_close.c ; libs: -l@json@ -lcrypto */

/*
 * Large bodies in steps, as the event loop reads them: no step has more to do
 * than it was given, and the digest is the one that all at once have.
 */


#include "json.h"
#include "canonical/ngx_http_idem_form.h"


#define SIZE  300000
#define WORK  4096


static u_char  body[SIZE + 64];


static size_t
fill(const char *open, const char *unit, const char *close, char between)
{
    size_t    len;
    unsigned  i, x;

    len = sprintf((char *) body, "%s", open);
    x = 1;

    for (i = 0; len < SIZE; i++) {
        x = x * 1103515245 + 12345;

        if (i) {
            body[len++] = between;
        }

        len += sprintf((char *) body + len, unit, (x >> 8) % 50000);
    }

    return len + sprintf((char *) body + len, "%s", close);
}


static void
json(const char *name, size_t len, ngx_uint_t unordered, ngx_uint_t closes)
{
    u_char                         once[DIGEST_LEN], steps[DIGEST_LEN];
    size_t                         i, n;
    ngx_uint_t                     work;
    ngx_http_idem_json_t          *j;
    ngx_http_idem_json_options_t   options;

    options_init(&options);
    options.unordered = unordered;

    ok(run(&options, body, len, len, once) == NGX_OK, "%s: at once", name);

    j = ngx_http_idem_json_create(&options);
    work = 0;

    for (i = 0; i < len; i += n) {
        n = ngx_min(len - i, 65536);

        if (ngx_http_idem_json_feed(j, body + i, n) != NGX_OK) {
            break;
        }
    }

    while (ngx_http_idem_json_work(j, WORK) == NGX_AGAIN) {
        work++;
    }

    /* to read it takes no less than a step for so many bytes */

    ok(work >= closes + len / WORK, "%s: %u steps", name, (unsigned) work);

    ok(ngx_http_idem_json_done(j, steps) == NGX_OK
       && ngx_memcmp(once, steps, DIGEST_LEN) == 0,
       "%s: in steps", name);

    ngx_http_idem_json_destroy(j);

    /* left in the middle of it */

    j = ngx_http_idem_json_create(&options);
    (void) ngx_http_idem_json_feed(j, body, len);
    (void) ngx_http_idem_json_work(j, 1);
    ngx_http_idem_json_destroy(j);

    ok(memory.blocks == 0, "%s: nothing is left", name);
}


static void
form(const char *name, size_t len)
{
    u_char                         once[DIGEST_LEN], steps[DIGEST_LEN];
    ngx_uint_t                     work;
    ngx_http_idem_form_t          *f;
    ngx_http_idem_form_options_t   options;

    ngx_memzero(&options, sizeof(options));
    options.size = NGX_HTTP_IDEM_FORM_SIZE;

    f = ngx_http_idem_form_create(&options);
    (void) ngx_http_idem_form_feed(f, body, len);
    ok(ngx_http_idem_form_done(f, once) == NGX_OK, "%s: at once", name);
    ngx_http_idem_form_destroy(f);

    f = ngx_http_idem_form_create(&options);
    (void) ngx_http_idem_form_feed(f, body, len);

    for (work = 0; ngx_http_idem_form_work(f, WORK) == NGX_AGAIN; work++) {
        /* void */
    }

    ok(work >= 50 + len / WORK, "%s: %u steps", name, (unsigned) work);
    ok(ngx_http_idem_form_done(f, steps) == NGX_OK
       && ngx_memcmp(once, steps, DIGEST_LEN) == 0,
       "%s: in steps", name);
    ngx_http_idem_form_destroy(f);

    ok(memory.blocks == 0, "%s: nothing is left", name);
}


int
main(void)
{
    plan(32);

    json("digits", fill("[", "%u", "]", ','), 1, 50);
    json("in order", fill("[", "%u", "]", ','), 0, 0);
    json("an object", fill("{", "\"%u\":1", "}", ','), 0, 50);
    json("within others",
         fill("{\"a\":[{\"]\":[", "\"\\\"]%u\"", "],\"b\":1},2],\"c\":3}",
              ','),
         1, 50);
    json("common beginnings",
         fill("[", "\"the same beginning %u\"", "]", ','), 1, 50);
    json("of sets", fill("[", "[3,%u,1]", "]", ','), 1, 50);

    form("a form", fill("", "%u", "", '&'));
    form("groups", fill("", "a[%u]=1", "", '&'));

    return done();
}
