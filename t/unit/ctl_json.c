
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: ctl/ctl_json.c */

/*
 * The JSON that idempotencyctl reads: values of each kind come out, what is no
 * JSON is refused, and random changes of it are no trouble.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "../../ctl/ctl_json.h"
#include "unit.h"


#define CHANGES  200000


static const char  answer[] =
    "{ \"state\" : \"completed\", \"size\":1234,\"ttl\":-1.5e3 ,\n"
    "\"text\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t "
    "\\u0041\\u00e9\\u20ac\\ud83d\\ude00\","
    "\"yes\":true,\"no\":false,\"none\":null,\"list\":[],\"object\":{},"
    "\"records\":[{\"a\":1},\"two\",[3]], \"state\":\"twice\" }\r\n";


static ngx_uint_t
text_is(ctl_json_t *v, char kind, const char *text)
{
    return ctl_json_is(v, kind) && v->text && strcmp(v->text, text) == 0;
}


static void
test_answer(void)
{
    ctl_json_t  *v, *r;

    v = ctl_json_parse(answer);

    ok(ctl_json_is(v, '{'), "an object");
    ok(text_is(ctl_json_get(v, "state"), '"', "completed"), "the first");
    ok(text_is(ctl_json_get(v, "size"), '0', "1234"), "an integer");
    ok(text_is(ctl_json_get(v, "ttl"), '0', "-1.5e3"), "any number");
    ok(text_is(ctl_json_get(v, "text"), '"', "\"\\/\b\f\n\r\t A\xc3\xa9"
               "\xe2\x82\xac\xf0\x9f\x98\x80"), "escapes");
    ok(ctl_json_is(ctl_json_get(v, "yes"), 't')
       && ctl_json_is(ctl_json_get(v, "no"), 'f')
       && ctl_json_is(ctl_json_get(v, "none"), 'n'), "words");

    r = ctl_json_get(v, "list");
    ok(ctl_json_is(r, '[') && r->child == NULL, "an empty list");

    r = ctl_json_get(v, "records");
    ok(ctl_json_is(r, '[') && text_is(ctl_json_get(r->child, "a"), '0', "1")
       && text_is(r->child->next, '"', "two")
       && ctl_json_is(r->child->next->next, '[')
       && r->child->next->next->next == NULL, "children in their order");

    ok(ctl_json_get(v, "other") == NULL && ctl_json_get(r, "a") == NULL
       && ctl_json_get(NULL, "a") == NULL, "what is not there");

    ctl_json_free(v);
}


static void
test_refused(void)
{
    char        deep[200];
    ngx_uint_t  i;

    static const char  *texts[] = {
        "", " ", "<html>", "{", "[", "{\"a\"", "{\"a\":", "{\"a\":1",
        "{\"a\":1,}", "{\"a\":1 \"b\":2}", "{a:1}", "[1,]", "[,1]", "[1 2]",
        "[1}", "{\"a\":1]", "[1] 2", "\"a", "\"\\", "\"\\x\"", "\"\\u12\"",
        "\"\\u12g4\"", "\"\\ud800\"", "\"\\ud800\\u0041\"", "\"\\udc00\"",
        "\"\t\"", "nul", "truth", "fals", "{\"a\":}", "]"
    };

    for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        ok(ctl_json_parse(texts[i]) == NULL, "refused: %s", texts[i]);
    }

    memset(deep, '[', 100);
    memset(deep + 100, ']', 99);
    deep[199] = '\0';
    ok(ctl_json_parse(deep) == NULL, "refused: 100 levels");
}


static void
test_changes(void)
{
    char        *text;
    size_t       len;
    ngx_uint_t   i, n, parsed;
    ctl_json_t  *v;

    parsed = 0;

    for (i = 0; i < CHANGES; i++) {
        len = sizeof(answer);
        text = (char *) exact(answer, len);

        for (n = 1 + unit_below(3); n; n--) {
            text[unit_below(len - 1)] = unit_below(2)
                                        ? "{}[]\",:\\u0 "[unit_below(11)]
                                        : (char) unit_below(256);
        }

        v = ctl_json_parse(text);
        parsed += (v != NULL);

        ctl_json_free(v);
        exact_free((u_char *) text, len);
    }

    ok(parsed > CHANGES / 20 && parsed < CHANGES * 19 / 20,
       "%lu of %d changed texts are JSON", (unsigned long) parsed, CHANGES);
}


int
main(void)
{
    plan(9 + 32 + 1);
    unit_seed();

    test_answer();
    test_refused();
    test_changes();

    return done();
}
