
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_url.c */

/*
 * URLs that mean the same, and those that do not: each as the text that it
 * becomes.  Random ones stay within their room, and do not change any more.
 */


#include "canonical/ngx_http_idem_url.h"
#include "unit.h"


typedef struct {
    const char  *url;
    const char  *result;                       /* NULL: it is none        */
} case_t;


static ngx_str_t  strip[] = { ngx_string("utm_*"), ngx_string("fbclid") };


static case_t  cases[] = {
    { "http://example.com", "http://example.com/" },
    { "http://example.com/", "http://example.com/" },
    { "HTTP://EXAMPLE.com/A", "http://example.com/A" },
    { "http://example.com:80/a", "http://example.com/a" },
    { "https://example.com:443", "https://example.com/" },
    { "https://example.com:80/a", "https://example.com:80/a" },
    { "http://example.com:8080", "http://example.com:8080/" },
    { "http://example.com:/a", "http://example.com/a" },
    { "http://U:P@Example.com/", "http://U:P@example.com/" },
    { "http://[2001:DB8::1]:80/", "http://[2001:db8::1]/" },
    { "http://[2001:DB8::80]/", "http://[2001:db8::80]/" },
    { "http://h/a/./b/../c", "http://h/a/c" },
    { "http://h/../../a", "http://h/a" },
    { "http://h/a/..", "http://h/" },
    { "http://h/a/b/..", "http://h/a/" },
    { "http://h/a/.", "http://h/a/" },
    { "http://h/a/%2e%2E/b", "http://h/b" },
    { "http://h/...", "http://h/..." },
    { "http://h//a", "http://h//a" },
    { "http://h/%7ea%2Db", "http://h/~a-b" },
    { "http://h/%2f%3a", "http://h/%2F%3A" },
    { "http://h/a b", "http://h/a%20b" },
    { "http://h/\xc3\xa9", "http://h/%C3%A9" },
    { "http://h/%c3%a9", "http://h/%C3%A9" },
    { "http://h/%zz%4", "http://h/%25zz%254" },
    { "http://h/a#b", "http://h/a" },
    { "http://h#b?c=1", "http://h/" },
    { "http://h?a=1", "http://h/?a=1" },
    { "http://h/?", "http://h/" },
    { "http://h/?b=2&a=1", "http://h/?a=1&b=2" },
    { "http://h/?b=2&a=2&a=1", "http://h/?a=2&a=1&b=2" },
    { "http://h/?%62=2&a=1&", "http://h/?a=1&b=2" },
    { "http://h/?a&a=", "http://h/?a&a=" },
    { "http://h/?a=1%26b=2", "http://h/?a=1%26b=2" },
    { "http://h/?utm_source=x&a=1&fbclid=2", "http://h/?a=1" },
    { "http://h/?u%74m_source=x", "http://h/" },
    { "http://h/?utm=1&fbclid2=1", "http://h/?fbclid2=1&utm=1" },
    { "custom+x://Host/a", "custom+x://host/a" },
    { "http:///a", NULL },
    { "http://:80/a", NULL },
    { "http://u@/a", NULL },
    { "http://h::80/a", NULL },
    { "http://", NULL },
    { "//h/a", NULL },
    { "/a", NULL },
    { "a", NULL },
    { "", NULL },
    { "mailto:a@b", NULL },
    { "1http://h/", NULL }
};


/* NGX_OK, and "text" is the result */

static ngx_int_t
normalize(const char *url, size_t len, char *text, size_t size)
{
    u_char     *buf, *copy;
    ngx_int_t   rc;
    ngx_str_t   s, result, *args;

    /* of their own size: the sanitizer watches their ends */

    buf = malloc(ngx_http_idem_url_room(len));
    args = malloc(ngx_http_idem_url_args(len) * sizeof(ngx_str_t));
    copy = malloc(len ? len : 1);

    if (buf == NULL || args == NULL || copy == NULL) {
        abort();
    }

    memcpy(copy, url, len);

    s.data = copy;
    s.len = len;

    rc = ngx_http_idem_url_normalize(&s, strip, 2, args, buf, &result);

    if (rc == NGX_OK && result.len < size) {
        memcpy(text, result.data, result.len);
        text[result.len] = '\0';
    }

    free(buf);
    free(args);
    free(copy);

    return rc;
}


static void
test_cases(void)
{
    char       text[1024];
    size_t     i;
    ngx_int_t  rc;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        text[0] = '\0';
        rc = normalize(cases[i].url, strlen(cases[i].url), text,
                       sizeof(text));

        if (cases[i].result == NULL) {
            ok(rc == NGX_DECLINED, "none: %s", cases[i].url);

        } else {
            ok(rc == NGX_OK && strcmp(text, cases[i].result) == 0,
               "%s: %s", cases[i].url, text);
        }
    }
}


static void
test_random(void)
{
    int         bad;
    char        url[64], once[256], twice[1024];
    size_t      i, len;
    ngx_uint_t  n;

    static const char  chars[] = "aA./%2eE?&=#:@ \xc3uf*";

    bad = 0;

    for (n = 0; n < 200000; n++) {
        len = 9 + (size_t) unit_random() % 40;
        memcpy(url, "http://h/", 9);

        for (i = 7 + (size_t) unit_random() % 3; i < len; i++) {
            url[i] = chars[(size_t) unit_random() % (sizeof(chars) - 1)];
        }

        if (normalize(url, len, once, sizeof(once)) == NGX_OK) {
            bad += (normalize(once, strlen(once), twice, sizeof(twice))
                    != NGX_OK
                    || strcmp(once, twice) != 0);
        }
    }

    ok(bad == 0, "what was normalized stays: %d do not", bad);
}


int
main(void)
{
    plan((int) (sizeof(cases) / sizeof(cases[0])) + 1);
    unit_seed();

    test_cases();
    test_random();

    return done();
}
