
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_json.c src/canonical/ngx_http_idem_json_walk.c src/canonical/ngx_http_idem_json_pointer.c src/canonical/ngx_http_idem_json_members.c src/canonical/ngx_http_idem_json_@json@.c src/canonical/ngx_http_idem_json_paths.c src/canonical/ngx_http_idem_json_diff.c src/canonical/ngx_http_idem_canon.c src/canonical/ngx_http_idem_canon_close.c ; libs: -l@json@ -lcrypto */

/*
 * A JSON body as it counts: which pairs are the same, which are not, which
 * bodies are no JSON; wanted members; memory that runs out.  Random pairs are
 * in json_fuzz.c, the paths in json_diff.c, large bodies in json_limits.c.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "json.h"


typedef struct {
    const char  *text;
    size_t       len;
    const char  *name;
} text_t;


static ngx_str_t  excluded[] = {
    ngx_string("ts"), ngx_string("trace id"), ngx_string("\xc3\xa9")
};


static pair_t  same[] = {
    { S("{\"a\":1,\"b\":2}"), S("{\"b\":2,\"a\":1}") },
    { S("{\"a\":1,\"b\":2}"), S("\r\n{ \"a\"\t: 1 ,\n\"b\" :2 } \n") },
    { S("\"a\""), S("\"\\u0061\"") },
    { S("\"/\""), S("\"\\/\"") },
    { S("\"\\n\\t\\r\\b\\f\\\"\\\\\""),
      S("\"\\u000a\\u0009\\u000D\\u0008\\u000C\\u0022\\u005c\"") },
    { S("\"\\u00e9\""), S("\"\xc3\xa9\"") },
    { S("\"\\u20AC\""), S("\"\xe2\x82\xac\"") },
    { S("\"\\ud83d\\ude00\""), S("\"\xf0\x9f\x98\x80\"") },
    { S("\"\\uD83D\\uDE00\""), S("\"\\ud83d\\ude00\"") },
    { S("\"\\ud800\\udc00\""), S("\"\xf0\x90\x80\x80\"") },
    { S("\"\\udbff\\udfff\""), S("\"\xf4\x8f\xbf\xbf\"") },
    { S("{\"\\u0061\":1}"), S("{\"a\":1}") },
    { S("{\"a\":1,\"b\":0,\"a\":2}"), S("{\"b\":0,\"a\":1,\"a\":2}") },
    { S("[1,[2,{\"a\":3,\"b\":[]}]]"), S("[1 ,[2,{\"b\":[ ],\"a\":3}]]") },
    { S("{\"the first of two names that are long\":1,"
        "\"the second of two names that are long\":2}"),
      S("{\"the second of two names that are long\":2,"
        "\"the first of two names that are long\":1}") }
};


static pair_t  different[] = {
    { S("9007199254740993"), S("9007199254740992") },
    { S("1e400"), S("1e401") },
    { S("-1e400"), S("1e400") },
    { S("1"), S("1.0") },
    { S("1"), S("1e0") },
    { S("1e0"), S("1E0") },
    { S("1e1"), S("1e+1") },
    { S("0"), S("-0") },
    { S("0.1"), S("0.10") },
    { S("1"), S("\"1\"") },
    { S("123456789012345678901234567890123456789012345678901234567890"),
      S("123456789012345678901234567890123456789012345678901234567891") },
    { S("{\"a\":1,\"a\":2}"), S("{\"a\":1}") },
    { S("{\"a\":1,\"a\":2}"), S("{\"a\":2}") },
    { S("{\"a\":1,\"a\":2}"), S("{\"a\":2,\"a\":1}") },
    { S("{\"a\":1,\"a\":1}"), S("{\"a\":1}") },
    { S("[\"ab\",\"c\"]"), S("[\"a\",\"bc\"]") },
    { S("[\"ab\",\"c\"]"), S("[\"abc\"]") },
    { S("[\"a\"]"), S("\"a\"") },
    { S("[[1],2]"), S("[1,[2]]") },
    { S("[[1,2]]"), S("[[1],[2]]") },
    { S("[1,2]"), S("[2,1]") },
    { S("[1,1]"), S("[1]") },
    { S("[]"), S("{}") },
    { S("[]"), S("[[]]") },
    { S("[]"), S("[{}]") },
    { S("[]"), S("[null]") },
    { S("{}"), S("{\"\":null}") },
    { S("{\"a\":null}"), S("{}") },
    { S("{\"a\":null}"), S("{\"a\":false}") },
    { S("{\"a\":null}"), S("{\"a\":\"null\"}") },
    { S("{\"a\":\"\"}"), S("{\"a\":null}") },
    { S("true"), S("false") },
    { S("true"), S("\"true\"") },
    { S("null"), S("0") },
    { S("\"\""), S("0") },
    { S("{\"a\":\"b\"}"), S("[\"a\",\"b\"]") },
    { S("{\"a\":\"b\"}"), S("{\"b\":\"a\"}") },
    { S("{\"a\":\"b\",\"c\":\"d\"}"), S("{\"a\":\"d\",\"c\":\"b\"}") },
    { S("{\"a\":{\"b\":1}}"), S("{\"a\":{},\"b\":1}") },
    { S("{\"a\":1}"), S("{\"A\":1}") },
    { S("{\"a\":1}"), S("{\"a \":1}") },
    { S("\"a\\u0000b\""), S("\"a\\u0000c\"") },
    { S("\"a\\u0000\""), S("\"a\"") },
    { S("\"\\u0000\""), S("\"\"") },
    { S("{\"\\u0000\":1}"), S("{\"\":1}") },
    { S("\"?\""), S("\"\\u003f\\u003f\"") },
    { S("\"\\u00e9\""), S("\"e\\u0301\"") },

    /* a string that spells what a container is encoded as */

    { S("[\"a\"]"), S("\"s\\u0001a\"") },
    { S("[[\"a\"]]"), S("[\"a\\u0003s\\u0001a\"]") },

    /* either side of what is encoded inline */

    { S("\"0123456789012345678901234567890\""),
      S("\"01234567890123456789012345678901\"") },
    { S("\"01234567890123456789012345678901\""),
      S("\"012345678901234567890123456789012\"") },
    { S("\"012345678901234567890123456789012\""),
      S("\"012345678901234567890123456789013\"") },
    { S("[1,2,3,4,5,6,7,8,9,0,1]"), S("[1,2,3,4,5,6,7,8,9,0,2]") }
};


static text_t  declined[] = {
    { S(""), "nothing" },
    { S(" \t\r\n"), "white space only" },
    { S("1 2"), "two documents" },
    { S("{}{}"), "two documents, without a space" },
    { S("{} x"), "garbage behind" },
    { S("{}\""), "a quote behind" },
    { S("{\"a\":1}\"x"), "a string behind, without its end" },
    { S("[] \"\\\""), "a string behind, with an escaped end" },
    { S("1\"x"), "a string behind a number" },
    { S("{} tru"), "a literal behind, cut short" },
    { S("{} -"), "a minus behind" },
    { S("{} 1."), "half a number behind" },
    { S("[1]]"), "a bracket too many" },
    { S("[1"), "a bracket too few" },
    { S("[1}"), "the wrong bracket" },
    { S("[1,]"), "a comma too many" },
    { S("[,1]"), "a comma first" },
    { S("{\"a\":1,}"), "a comma too many in an object" },
    { S("{\"a\"}"), "a name alone" },
    { S("{a:1}"), "a bare name" },
    { S("{1:1}"), "a number for a name" },
    { S("{'a':1}"), "single quotes" },
    { S("\xef\xbb\xbf{}"), "a byte order mark" },
    { S("{} /* */"), "a comment" },
    { S("// x\n{}"), "a comment to the end of line" },
    { S("01"), "a leading zero" },
    { S("-"), "a minus alone" },
    { S("+1"), "a plus" },
    { S(".5"), "no digit before the point" },
    { S("1."), "no digit behind the point" },
    { S("1e"), "no exponent" },
    { S("0x10"), "hexadecimal" },
    { S("NaN"), "NaN" },
    { S("Infinity"), "Infinity" },
    { S("tru"), "a literal cut short" },
    { S("True"), "a literal in the wrong case" },
    { S("nullx"), "a literal with a tail" },
    { S("\"a"), "a string without its end" },
    { S("\"a\nb\""), "a line feed in a string" },
    { S("\"a\tb\""), "a tab in a string" },
    { S("\"a\0b\""), "a NUL in a string" },
    { S("{}\0"), "a NUL behind" },
    { S("[1,\v2]"), "vertical tab as white space" },
    { S("[1,\f2]"), "form feed as white space" },
    { S("\"\\x41\""), "an escape that is none" },
    { S("\"\\u12\""), "an escape cut short" },
    { S("\"\\u12g4\""), "an escape with a bad digit" },
    { S("\"\\ud800\""), "a high surrogate alone" },
    { S("\"\\uD800\""), "a high surrogate alone, capital" },
    { S("\"\\ud800A\""), "a high surrogate and a letter" },
    { S("\"\\ud800\\n\""), "a high surrogate and an escape" },
    { S("\"\\ud800\\u0041\""), "a high surrogate and an escaped letter" },
    { S("\"\\ud800\\ud800\""), "two high surrogates" },
    { S("\"\\udc00\""), "a low surrogate alone" },
    { S("\"\\udc00\\ud800\""), "surrogates the wrong way round" },
    { S("\"\\ud800\\udc00\\udc00\""), "a low surrogate too many" },
    { S("{\"\\ud800\":1}"), "a high surrogate in a name" },
    { S("\"\\ud800\\"), "a high surrogate, and the end (CVE-2017-16516)" },
    { S("\"\x80\""), "UTF-8: a continuation alone" },
    { S("\"\xc3\""), "UTF-8: cut short" },
    { S("\"\xc3(\""), "UTF-8: no continuation" },
    { S("\"\xc0\xaf\""), "UTF-8: an overlong slash" },
    { S("\"\xe0\x80\xaf\""), "UTF-8: an overlong slash of three" },
    { S("\"\xf0\x80\x80\xaf\""), "UTF-8: an overlong slash of four" },
    { S("\"\xed\xa0\x80\""), "UTF-8: a surrogate" },
    { S("\"\xf4\x90\x80\x80\""), "UTF-8: beyond U+10FFFF" },
    { S("\"\xf8\x88\x80\x80\x80\""), "UTF-8: five bytes" },
    { S("\"\xff\""), "UTF-8: 0xff" }
};


static text_t  accepted[] = {
    { S("0"), "a number" },
    { S(" \"\" "), "a string, in spaces" },
    { S("\"\\\\ud800\""), "a backslash, and no surrogate" },
    { S("\"\\\\\\\\\""), "backslashes" },
    { S("\"\\ud83d\\ude00\\ud83d\\ude00\""), "two pairs" },
    { S("\"\\ud7ff\\ue000\""), "either side of the surrogates" },
    { S("\"\xed\x9f\xbf\xee\x80\x80\""), "the same, not escaped" },
    { S("\"\xe0\xa0\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\xc2\x80\""),
      "the first and last of each length" },
    { S("\"\x7f\""), "delete" },
    { S("-0.0e-0"), "an odd zero" },
    { S("{\"\":{\"\":{}}}"), "empty names" }
};


static void
test_pairs(void)
{
    ngx_uint_t                    i;
    ngx_http_idem_json_options_t  options;

    options_init(&options);

    for (i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        is(compare(run, &options, &same[i]), 1, same[i].one);
    }

    for (i = 0; i < sizeof(different) / sizeof(different[0]); i++) {
        ok(compare(run, &options, &different[i]) == 0, "%s is not %s",
           different[i].one, different[i].two);
    }
}


static void
test_texts(void)
{
    int                           piece;
    u_char                        digest[DIGEST_LEN];
    ngx_uint_t                    i, bad;
    ngx_http_idem_json_options_t  options;

    options_init(&options);

    for (i = 0; i < sizeof(declined) / sizeof(declined[0]); i++) {

        for (bad = 0, piece = 0; piece < 8; piece++) {
            bad += (run(&options, declined[i].text, declined[i].len, piece,
                        digest)
                    != NGX_DECLINED);
        }

        ok(bad == 0, "no JSON: %s", declined[i].name);
    }

    for (i = 0; i < sizeof(accepted) / sizeof(accepted[0]); i++) {

        for (bad = 0, piece = 0; piece < 8; piece++) {
            bad += (run(&options, accepted[i].text, accepted[i].len, piece,
                        digest)
                    != NGX_OK);
        }

        ok(bad == 0, "JSON: %s", accepted[i].name);
    }
}


static pair_t  excluded_same[] = {
    { S("{\"a\":1,\"ts\":1}"), S("{\"a\":1,\"ts\":2}") },
    { S("{\"a\":1,\"ts\":{\"x\":[1,{\"ts\":0}]}}"), S("{\"a\":1}") },
    { S("[{\"b\":{\"trace id\":[]}}]"), S("[{\"b\":{}}]") },
    { S("{\"\\u0074s\":1}"), S("{}") },
    { S("{\"\\u00e9\":1,\"ts\":2,\"a\":3}"), S("{\"a\":3}") },
    { S("{\"ts\":1,\"ts\":2}"), S("{\"ts\":3}") }
};


static pair_t  excluded_different[] = {
    { S("{\"a\":\"ts\"}"), S("{\"a\":\"tt\"}") },
    { S("[\"ts\"]"), S("[]") },
    { S("{\"tS\":1}"), S("{\"tS\":2}") },
    { S("{\"ts \":1}"), S("{\"ts \":2}") },
    { S("{\"ts\":1,\"a\":1}"), S("{\"ts\":1,\"a\":2}") },
    { S("{\"ts\":{\"a\":1},\"b\":1}"), S("{\"ts\":{\"a\":1}}") },
    { S("{\"ts\":1}"), S("[]") }
};


/* by pointer: "/meta/at", the second of "/list", "/a~1b" */

static ngx_str_t  excluded_pointers[] = {
    ngx_string("/meta/at"), ngx_string("/list/1"), ngx_string("/a~1b")
};


static pair_t  pointed_same[] = {
    { S("{\"meta\":{\"at\":1,\"b\":2}}"), S("{\"meta\":{\"b\":2}}") },
    { S("{\"meta\":{\"b\":2,\"at\":{\"at\":[1,2]}}}"),
      S("{\"meta\":{\"at\":0,\"b\":2}}") },
    { S("{\"list\":[1,2,3]}"), S("{\"list\":[1,{\"x\":[]},3]}") },
    { S("{\"list\":[1,2]}"), S("{\"list\":[1]}") },
    { S("{\"a/b\":1}"), S("{}") }
};


static pair_t  pointed_different[] = {
    { S("{\"at\":1}"), S("{\"at\":2}") },
    { S("{\"x\":{\"meta\":{\"at\":1}}}"),
      S("{\"x\":{\"meta\":{\"at\":2}}}") },
    { S("{\"meta\":1}"), S("{\"meta\":2}") },
    { S("{\"list\":[1,2,3]}"), S("{\"list\":[1,2,4]}") },
    { S("{\"list\":[1,2,3]}"), S("{\"list\":[0,2,3]}") },
    { S("{\"/meta/at\":1}"), S("{\"/meta/at\":2}") },
    { S("{\"a\":{\"b\":1}}"), S("{\"a\":{\"b\":2}}") }
};


/* only "/amount", "/to/id" and the names of the first two "/items" count */

static ngx_str_t  included[] = {
    ngx_string("/amount"), ngx_string("/to/id"),
    ngx_string("/items/0/name"), ngx_string("/items/1/name")
};


static pair_t  included_same[] = {
    { S("{\"amount\":1,\"note\":\"a\"}"), S("{\"note\":[],\"amount\":1}") },
    { S("{\"to\":{\"id\":{\"a\":1,\"b\":2},\"x\":0}}"),
      S("{\"to\":{\"id\":{\"b\":2,\"a\":1}},\"x\":1}") },
    { S("{\"amount\":1,\"to\":{}}"), S("{\"amount\":1,\"to\":7}") },
    { S("{\"amount\":1,\"items\":[{\"name\":1,\"n\":2}]}"),
      S("{\"amount\":1,\"items\":[{\"name\":1,\"n\":3}, 4]}") }
};


static pair_t  included_different[] = {
    { S("{\"amount\":1}"), S("{\"amount\":2}") },
    { S("{\"amount\":1}"), S("{\"to\":{\"id\":1}}") },
    { S("{\"amount\":1}"), S("{\"amount\":\"1\"}") },
    { S("{\"amount\":1}"), S("{\"amount\":1,\"to\":{\"id\":null}}") },
    { S("{\"items\":[{\"name\":5},{}]}"), S("{\"items\":[{},{\"name\":5}]}") },
    /* none of it is there, or one of it is twice: all counts */
    { S("{\"note\":1}"), S("{\"note\":2}") },
    { S("[1]"), S("[2]") },
    { S("{\"amount\":1,\"amount\":2}"), S("{\"amount\":1,\"amount\":3}") }
};


static pair_t  unordered_same[] = {
    { S("[1,2,3]"), S("[3,1,2]") },
    { S("[[1,2],[3,4]]"), S("[[4,3],[2,1]]") },
    { S("{\"a\":[{\"x\":1,\"y\":2},\"b\"]}"),
      S("{\"a\":[\"b\",{\"y\":2,\"x\":1}]}") }
};


static pair_t  unordered_different[] = {
    { S("[1,2]"), S("[1,2,2]") },
    { S("[1,1,2]"), S("[1,2,2]") },
    { S("[[1,2],[3]]"), S("[[1],[2,3]]") },
    { S("[1,[2]]"), S("[[1],2]") },
    { S("{\"a\":1,\"a\":2}"), S("{\"a\":2,\"a\":1}") },
    { S("[{\"a\":1},{\"b\":1}]"), S("[{\"a\":1,\"b\":1}]") }
};


#define check_pairs(options, pairs, expected)                                 \
    for (i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {                  \
        ok(compare(run, options, &pairs[i]) == expected, #pairs ": %s, %s",   \
           pairs[i].one, pairs[i].two);                                       \
    }


static void
test_options(void)
{
    ngx_uint_t                    i;
    ngx_http_idem_json_options_t  options;

    options_init(&options);
    options.excluded = excluded;
    options.nexcluded = sizeof(excluded) / sizeof(excluded[0]);

    check_pairs(&options, excluded_same, 1)
    check_pairs(&options, excluded_different, 0)

    options_init(&options);
    options.excluded = excluded_pointers;
    options.nexcluded = sizeof(excluded_pointers)
                        / sizeof(excluded_pointers[0]);

    check_pairs(&options, pointed_same, 1)
    check_pairs(&options, pointed_different, 0)

    options_init(&options);
    options.included = included;
    options.nincluded = sizeof(included) / sizeof(included[0]);

    check_pairs(&options, included_same, 1)
    check_pairs(&options, included_different, 0)

    options_init(&options);
    options.unordered = 1;

    check_pairs(&options, unordered_same, 1)
    check_pairs(&options, unordered_different, 0)
}


static ngx_http_idem_json_t *
members_of(ngx_http_idem_json_options_t *options, const char *text)
{
    u_char                 digest[DIGEST_LEN];
    ngx_http_idem_json_t  *j;

    j = ngx_http_idem_json_create(options);

    if (j == NULL
        || feed(feed_json, j, text, strlen(text), -1) != NGX_OK
        || ngx_http_idem_json_done(j, digest) != NGX_OK)
    {
        abort();
    }

    return j;
}


static void
member_is(ngx_http_idem_json_t *j, ngx_uint_t i,
    ngx_http_idem_json_kind_e kind, ngx_uint_t count, const char *value,
    size_t len, const char *name)
{
    const ngx_http_idem_json_member_t  *m;

    m = ngx_http_idem_json_member(j, i);

    ok(m->kind == kind && m->count == count
       && unit_equal(m->value.data, m->value.len, (u_char *) value, len),
       "member: %s", name);
}


static void
test_members(void)
{
    u_char                        digest[DIGEST_LEN];
    ngx_http_idem_json_t         *j;
    ngx_http_idem_json_options_t  options;

    static ngx_str_t  wanted[] = {
        ngx_string("k"), ngx_string("url"), ngx_string("ts"),
        ngx_string("none"), ngx_string("k")
    };

    options_init(&options);
    options.excluded = excluded;
    options.nexcluded = 1;
    options.wanted = wanted;
    options.nwanted = sizeof(wanted) / sizeof(wanted[0]);

    j = members_of(&options, "{\"x\":{\"k\":0},\"\\u006b\":\"a\\u0000\\n\","
                             "\"ts\":-1e2,\"url\":[1,{\"k\":3}]}");

    member_is(j, 0, NGX_HTTP_IDEM_JSON_STRING, 1, S("a\0\n"),
              "a string, its characters; not the one that lies deeper");
    member_is(j, 1, NGX_HTTP_IDEM_JSON_ARRAY, 1, S(""), "an array");
    member_is(j, 2, NGX_HTTP_IDEM_JSON_NUMBER, 1, S("-1e2"),
              "a number, its text; though it is excluded");
    member_is(j, 3, NGX_HTTP_IDEM_JSON_NONE, 0, S(""), "not there");
    member_is(j, 4, NGX_HTTP_IDEM_JSON_STRING, 1, S("a\0\n"),
              "wanted twice");

    ngx_memcpy(digest, ngx_http_idem_json_member(j, 1)->digest, DIGEST_LEN);
    ngx_http_idem_json_destroy(j);

    j = members_of(&options, "{\"url\":[1, {\"k\":3,\"ts\":1}],\"k\":null,"
                             "\"ts\":1,\"ts\":2,\"none\":true}");

    member_is(j, 0, NGX_HTTP_IDEM_JSON_NULL, 1, S("null"), "null");
    ok(memcmp(ngx_http_idem_json_member(j, 1)->digest, digest,
              DIGEST_LEN) == 0,
       "member: an array that is the same has the same digest");
    ok(ngx_http_idem_json_member(j, 2)->count == 2,
       "member: twice is ambiguous");
    member_is(j, 3, NGX_HTTP_IDEM_JSON_TRUE, 1, S("true"), "true");

    ngx_http_idem_json_destroy(j);

    j = members_of(&options, "{\"k\":1,\"url\":\"1\",\"ts\":{},"
                             "\"none\":false}");

    ok(memcmp(ngx_http_idem_json_member(j, 0)->digest,
              ngx_http_idem_json_member(j, 1)->digest, DIGEST_LEN) != 0,
       "member: 1 and \"1\" have different digests");
    member_is(j, 2, NGX_HTTP_IDEM_JSON_OBJECT, 1, S(""), "an object");
    member_is(j, 3, NGX_HTTP_IDEM_JSON_FALSE, 1, S("false"), "false");

    ngx_http_idem_json_destroy(j);

    j = members_of(&options, "[{\"k\":1},\"k\",2]");
    member_is(j, 0, NGX_HTTP_IDEM_JSON_NONE, 0, S(""),
              "none of an array");
    ngx_http_idem_json_destroy(j);
}


static void
test_pointers(void)
{
    ngx_http_idem_json_t         *j;
    ngx_http_idem_json_options_t  options;

    static ngx_str_t  wanted[] = {
        ngx_string("/a/b"), ngx_string("/a"), ngx_string("/l/1/k"),
        ngx_string("/x~1y/~0"), ngx_string("/"), ngx_string("b"),
        ngx_string("/a.b"), ngx_string("/ts/k"), ngx_string("/l/01/k")
    };

    options_init(&options);
    options.excluded = excluded;
    options.nexcluded = 1;
    options.wanted = wanted;
    options.nwanted = sizeof(wanted) / sizeof(wanted[0]);

    j = members_of(&options, "{\"z\":{\"b\":9,\"a\":{\"b\":8}},"
                             "\"a\":{\"a\":{\"b\":7},\"b\":\"deep\",\"c\":{}},"
                             "\"l\":[{\"k\":0},{\"n\":[{\"k\":5}],\"k\":1},"
                             "{\"k\":2}],"
                             "\"x/y\":{\"~\":true,\"~0\":false},"
                             "\"\":\"empty\",\"b\":\"top\",\"a.b\":\"dot\","
                             "\"ts\":{\"k\":\"hidden\"}}");

    member_is(j, 0, NGX_HTTP_IDEM_JSON_STRING, 1, S("deep"),
              "pointer: a member of a member, and of no other");
    member_is(j, 1, NGX_HTTP_IDEM_JSON_OBJECT, 1, S(""),
              "pointer: what is around it");
    member_is(j, 2, NGX_HTTP_IDEM_JSON_NUMBER, 1, S("1"),
              "pointer: an element by its place");
    member_is(j, 3, NGX_HTTP_IDEM_JSON_TRUE, 1, S("true"),
              "pointer: names with / and ~");
    member_is(j, 4, NGX_HTTP_IDEM_JSON_STRING, 1, S("empty"),
              "pointer: the empty name");
    member_is(j, 5, NGX_HTTP_IDEM_JSON_STRING, 1, S("top"),
              "pointer: a name beside them is a top-level one");
    member_is(j, 6, NGX_HTTP_IDEM_JSON_STRING, 1, S("dot"),
              "pointer: a name with a dot");
    member_is(j, 7, NGX_HTTP_IDEM_JSON_STRING, 1, S("hidden"),
              "pointer: below what is excluded");
    member_is(j, 8, NGX_HTTP_IDEM_JSON_NONE, 0, S(""),
              "pointer: a place has no zeros before it");
    ngx_http_idem_json_destroy(j);

    j = members_of(&options, "{\"a\":{\"b\":1},\"a\":{\"b\":2},\"l\":{\"1\":"
                             "{\"k\":\"named\"}}}");

    ok(ngx_http_idem_json_member(j, 0)->count == 2,
       "pointer: by two ways is ambiguous");
    member_is(j, 2, NGX_HTTP_IDEM_JSON_STRING, 1, S("named"),
              "pointer: a name that looks like a place");
    ngx_http_idem_json_destroy(j);

    j = members_of(&options, "[{\"a\":{\"b\":1}}]");
    member_is(j, 0, NGX_HTTP_IDEM_JSON_NONE, 0, S(""),
              "pointer: none in an array");
    ngx_http_idem_json_destroy(j);
}


static void
test_memory(void)
{
    long                          n;
    u_char                        digest[DIGEST_LEN];
    size_t                        i, len;
    ngx_int_t                     rc;
    ngx_uint_t                    bad;
    char                         *text, *p;
    ngx_http_idem_json_options_t  options;

    static ngx_str_t  wanted[] = { ngx_string("k"), ngx_string("l") };

    options_init(&options);
    options.wanted = wanted;
    options.nwanted = 2;
    options.detail = NGX_HTTP_IDEM_JSON_DETAIL_VALUES;

    /* all buffers grow at least twice, the parser's too */

    text = malloc(65536);
    p = text + sprintf(text, "{\"k\":\"key\",\"l\":[");

    for (i = 0; i < 200; i++) {
        p += sprintf(p, "%zu,{\"%zu\":\"x\",\"y\":{}},", i, i);
    }

    p += sprintf(p, "\"");

    for (i = 0; i < 5000; i++) {
        *p++ = 'x';
    }

    p += sprintf(p, "\\n\"]}");
    len = p - text;

    bad = 0;

    for (n = 0; ; n++) {
        memory.left = n;
        rc = run(&options, text, len, 700, digest);

        if (rc == NGX_OK) {
            break;
        }

        bad += (rc != NGX_ERROR || memory.blocks != 0);
    }

    memory.left = -1;

    ok(bad == 0 && n > 20, "each of %ld allocations failed once, cleanly", n);

    free(text);
}


int
main(void)
{
    plan((int) (sizeof(same) / sizeof(same[0])
                + sizeof(different) / sizeof(different[0])
                + sizeof(declined) / sizeof(declined[0])
                + sizeof(accepted) / sizeof(accepted[0])
                + sizeof(excluded_same) / sizeof(excluded_same[0])
                + sizeof(excluded_different) / sizeof(excluded_different[0])
                + sizeof(pointed_same) / sizeof(pointed_same[0])
                + sizeof(pointed_different) / sizeof(pointed_different[0])
                + sizeof(included_same) / sizeof(included_same[0])
                + sizeof(included_different) / sizeof(included_different[0])
                + sizeof(unordered_same) / sizeof(unordered_same[0])
                + sizeof(unordered_different) / sizeof(unordered_different[0])
                + 13 + 12 + 1 + 1));
    unit_seed();

    test_pairs();
    test_texts();
    test_options();
    test_members();
    test_pointers();
    test_memory();

    ok(memory.blocks == 0, "all memory was given back");


    return done();
}
