
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_json.c src/canonical/ngx_http_idem_json_walk.c src/canonical/ngx_http_idem_json_pointer.c src/canonical/ngx_http_idem_json_members.c src/canonical/ngx_http_idem_json_@json@.c src/canonical/ngx_http_idem_json_paths.c src/canonical/ngx_http_idem_json_diff.c src/canonical/ngx_http_idem_canon.c src/canonical/ngx_http_idem_canon_close.c ; libs: -l@json@ -lcrypto */

/*
 * What differs between two JSON documents: the paths that are told, their
 * values, the limits, and lists that are not what a walker wrote.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "json.h"


#define TOLD_MAX      4096
#define LIST_MAX      65536
#define RANDOM_LISTS  200000


typedef struct {
    const char  *one;
    const char  *two;
    const char  *values;               /* as tell() writes them */
    const char  *paths;
} vector_t;


/*
 * "~ path old new" changed, "+ path new" added, "- path old" removed; each
 * ends in ";"; a text that is cut ends in "..", one not kept is "?"
 */

static vector_t  vectors[] = {

    { "{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}", "", "" },
    { "{\"a\":1,\"b\":2}", "{\"a\":1,\"b\":3}", "~ /b 2 3;", "~ /b ? ?;" },
    { "{\"a\":1}", "{\"a\":1.0}", "~ /a 1 1.0;", "~ /a ? ?;" },
    { "{\"a\":1}", "{\"a\":1,\"b\":\"x\"}", "+ /b \"x\";", "+ /b ?;" },
    { "{\"a\":1,\"b\":\"x\"}", "{\"a\":1}", "- /b \"x\";", "- /b ?;" },
    { "{\"items\":[{\"price\":1},{\"price\":2}]}",
      "{\"items\":[{\"price\":5},{\"price\":2}]}",
      "~ /items/0/price 1 5;", "~ /items/0/price ? ?;" },
    { "{\"a\":1}", "{\"a\":\"1\"}", "~ /a 1 \"1\";", "~ /a ? ?;" },
    { "{\"a\":null}", "{}", "+  {};- /a null;", "+  ?;- /a ?;" },
    { "{\"a\":{}}", "{\"a\":[]}", "~ /a {} [];", "~ /a ? ?;" },
    { "{\"a\":{\"b\":1}}", "{\"a\":1}", "+ /a 1;- /a/b 1;",
      "+ /a ?;- /a/b ?;" },
    { "1", "2", "~  1 2;", "~  ? ?;" },
    { "{\"a/b\":1,\"c~d\":1,\"\":1}", "{\"a/b\":2,\"c~d\":2,\"\":2}",
      "~ / 1 2;~ /a~1b 1 2;~ /c~0d 1 2;", "~ / ? ?;~ /a~1b ? ?;~ /c~0d ? ?;" },
    { "{\"a\":\"\\u00e9\\n\\\"\\\\\"}", "{\"a\":\"\"}",
      "~ /a \"\xc3\xa9\\u000a\\\"\\\\\" \"\";", "~ /a ? ?;" },
    { "{\"a\":1,\"a\":2}", "{\"a\":1,\"a\":3}", "~ /a 2 3;", "~ /a ? ?;" },
    { "{\"a\":1,\"a\":2}", "{\"a\":1}", "- /a 2;", "- /a ?;" },
    { "[1,2,3]", "[1,2]", "- /2 3;", "- /2 ?;" },
    { "{\"ts\":1,\"a\":{\"ts\":{\"x\":1}}}", "{\"ts\":2,\"a\":{\"ts\":[]}}",
      "", "" },
    { "{\"a\":{\"ts\":1,\"b\":1}}", "{\"a\":{\"ts\":1}}",
      "+ /a {};- /a/b 1;", "+ /a ?;- /a/b ?;" },
    { "{\"ts\":[{\"b\":1}],\"b\":[{\"c\":1}]}",
      "{\"b\":[{\"c\":2}],\"ts\":1}", "~ /b/0/c 1 2;", "~ /b/0/c ? ?;" }
};


static vector_t  unordered[] = {

    { "{\"a\":[1,2]}", "{\"a\":[2,1]}", "", "" },
    { "{\"a\":[1,{\"x\":1,\"ts\":5,\"y\":[ ]}],\"b\":{\"c\":1}}",
      "{\"a\":[[true,\"\\n\"],1,{\"x\":2}],\"b\":{\"c\":2}}",
      "~ /a [1,{\"x\":1,\"y\":[]}] [[true,\"\\u000a\"],1,{\"x\":2}];"
      "~ /b/c 1 2;",
      "~ /a ? ?;~ /b/c ? ?;" },
    { "[]", "[1]", "~  [] [1];", "~  ? ?;" },
    { "[[1],[2]]", "[[2],[3]]", "~  [[1],[2]] [[2],[3]];", "~  ? ?;" }
};


static ngx_str_t  excluded[] = { ngx_string("ts") };
static char       told[TOLD_MAX];
static size_t     told_len;
static u_char     lists[2][LIST_MAX];


static void
tell_text(const ngx_str_t *text, ngx_uint_t cut)
{
    if (text->data == NULL) {
        told_len += sprintf(told + told_len, " ?");
        return;
    }

    told_len += sprintf(told + told_len, " %.*s%s", (int) text->len,
                        text->data, cut ? ".." : "");
}


static void
tell(void *data, const ngx_http_idem_json_diff_t *diff)
{
    told_len += sprintf(told + told_len, "%c %.*s", "~+-"[diff->change],
                        (int) diff->path.len, diff->path.data);

    if (diff->change != NGX_HTTP_IDEM_JSON_ADDED) {
        tell_text(&diff->old_text, diff->old_cut);
    }

    if (diff->change != NGX_HTTP_IDEM_JSON_REMOVED) {
        tell_text(&diff->new_text, diff->new_cut);
    }

    told_len += sprintf(told + told_len, ";");
}


/* reads all that it is given, for the address sanitizer */

static void
touch(void *data, const ngx_http_idem_json_diff_t *diff)
{
    size_t     i;
    ngx_str_t  part[3];
    unsigned  *sum = data;

    part[0] = diff->path;
    part[1] = diff->old_text;
    part[2] = diff->new_text;

    for (i = 0; i < 3; i++) {
        while (part[i].len--) {
            *sum += *part[i].data++;
        }
    }
}


static ngx_str_t
list_of(const ngx_http_idem_json_options_t *options, ngx_uint_t i,
    const char *text, size_t len)
{
    u_char                 digest[DIGEST_LEN];
    ngx_str_t              list;
    ngx_http_idem_json_t  *j;

    j = ngx_http_idem_json_create(options);

    if (j == NULL
        || feed(feed_json, j, text, len, -1) != NGX_OK
        || ngx_http_idem_json_done(j, digest) != NGX_OK)
    {
        abort();
    }

    ngx_http_idem_json_paths(j, &list);

    if (list.len > LIST_MAX) {
        abort();
    }

    ngx_memcpy(lists[i], list.data, list.len);
    list.data = lists[i];

    ngx_http_idem_json_destroy(j);

    return list;
}


static ngx_int_t
diff(const ngx_http_idem_json_options_t *options, const char *one,
    const char *two, ngx_uint_t max, ngx_uint_t *more)
{
    ngx_str_t  list1, list2;

    list1 = list_of(options, 0, one, strlen(one));
    list2 = list_of(options, 1, two, strlen(two));

    told_len = 0;
    told[0] = '\0';

    return ngx_http_idem_json_diff(&list1, &list2, max, tell, NULL, more);
}


static void
test_vectors(ngx_http_idem_json_options_t *options,
    const vector_t *vector, ngx_uint_t n)
{
    ngx_uint_t  i, more;

    for (i = 0; i < n; i++) {
        options->detail = NGX_HTTP_IDEM_JSON_DETAIL_VALUES;

        if (!ok(diff(options, vector[i].one, vector[i].two, 100, &more)
                == NGX_OK && strcmp(told, vector[i].values) == 0 && !more,
                "%s, %s", vector[i].one, vector[i].two))
        {
            printf("# got: %s\n", told);
        }

        options->detail = NGX_HTTP_IDEM_JSON_DETAIL_PATHS;

        if (!ok(diff(options, vector[i].one, vector[i].two, 100, &more)
                == NGX_OK && strcmp(told, vector[i].paths) == 0 && !more,
                "paths only"))
        {
            printf("# got: %s\n", told);
        }
    }
}


static void
test_limits(ngx_http_idem_json_options_t *options)
{
    char        one[2048], two[2048];
    ngx_str_t   list1, list2;
    ngx_uint_t  more;

    /* the options keep it, for the tests that follow */

    static u_char  secret[NGX_HTTP_IDEM_JSON_SECRET_LEN];

    options->detail = NGX_HTTP_IDEM_JSON_DETAIL_VALUES;

    ok(diff(options, "[1,2,3]", "[4,5,6]", 2, &more) == NGX_OK && more
       && strcmp(told, "~ /0 1 4;~ /1 2 5;") == 0,
       "two paths are told, and that there are more");
    ok(diff(options, "[1,2,3]", "[4,5,3]", 2, &more) == NGX_OK && !more,
       "two paths are told, and there are no more");

    options->paths = 2;

    ok(diff(options, "{\"a\":1,\"b\":1,\"c\":1}",
            "{\"c\":1,\"a\":2,\"b\":1}", 100, &more)
       == NGX_OK && more && strcmp(told, "~ /a 1 2;") == 0,
       "of a list that is cut only what changed is told");
    ok(diff(options, "{\"a\":1}", "{\"c\":1,\"b\":2,\"a\":1}", 100, &more)
       == NGX_OK && more && strcmp(told, "+ /b 2;+ /c 1;") == 0,
       "what a whole list has not, was added");

    options->paths = NGX_HTTP_IDEM_JSON_PATHS;
    options->paths_size = 40;

    ok(diff(options, "{\"a\":1,\"b\":1,\"c\":1}",
            "{\"c\":1,\"a\":2,\"b\":1}", 100, &more)
       == NGX_OK && more && strcmp(told, "~ /a 1 2;") == 0,
       "a list is cut at its size");

    options->paths_size = NGX_HTTP_IDEM_JSON_PATHS_SIZE;

    /* 256 bytes of text: the quote, 254 x; then half of an e acute */

    sprintf(one, "{\"a\":\"%0254d\xc3\xa9\"}", 0);
    sprintf(two, "{\"a\":\"%0254d\xc3\xaa\"}", 0);

    ok(diff(options, one, two, 100, &more) == NGX_OK && !more
       && told_len == 2 + 2 + 2 * (1 + 255 + 2) + 1
       && strstr(told, "\xc3") == NULL,
       "a value is cut between characters; that it changed is still seen");

    sprintf(one, "{\"%0600d\":{\"x\":1},\"b\":{\"c\":1}}", 0);
    sprintf(two, "{\"%0600d\":{\"x\":2},\"b\":{\"c\":2}}", 0);

    ok(diff(options, one, two, 100, &more) == NGX_OK && more
       && strcmp(told, "~ /b/c 1 2;") == 0,
       "a path that is too long is left out, those behind it are not");

    list1 = list_of(options, 0, S("[1]"));

    ngx_memzero(secret, sizeof(secret));
    options->secret = secret;

    list2 = list_of(options, 1, S("[1]"));

    is(ngx_http_idem_json_diff(&list1, &list2, 9, tell, NULL, &more),
       NGX_DECLINED, "lists made with different secrets");
    ok(ngx_memcmp(list1.data + 12, list2.data + 12, 8) != 0,
       "the hash of a value depends on the secret");

    list1 = list_of(options, 0, S("[\"a\",\"a\"]"));
    ok(ngx_memcmp(list1.data + 8 + 4, list1.data + 8 + 4 + 8 + 6 + 4, 8) != 0,
       "the hash of a value depends on its path");
}


/* a list of one entry, with a path and a text of that length */

static ngx_int_t
long_entry(ngx_http_idem_json_options_t *options, size_t path, size_t text)
{
    u_char      *p;
    unsigned     sum;
    ngx_str_t    list, good;
    ngx_uint_t   more;

    sum = 0;
    options->detail = NGX_HTTP_IDEM_JSON_DETAIL_VALUES;
    good = list_of(options, 0, S("[1]"));

    p = ngx_cpymem(lists[1], good.data, NGX_HTTP_IDEM_JSON_PATHS_HEAD);

    *p++ = (u_char) (path >> 8);
    *p++ = (u_char) path;
    ngx_memset(p, '/', path);
    p += path;
    ngx_memset(p, 0, NGX_HTTP_IDEM_JSON_PATHS_HASH + 1);
    p += NGX_HTTP_IDEM_JSON_PATHS_HASH + 1;
    *p++ = (u_char) (text >> 8);
    *p++ = (u_char) text;
    ngx_memset(p, '1', text);

    list.data = lists[1];
    list.len = p + text - lists[1];

    return ngx_http_idem_json_diff(&list, &good, 9, touch, &sum, &more);
}


/* lists with random bytes changed, or cut short, in memory of their size */

static void
test_hostile(ngx_http_idem_json_options_t *options)
{
    u_char      *p;
    size_t       len;
    unsigned     sum;
    ngx_int_t    rc;
    ngx_str_t    list, good;
    ngx_uint_t   i, k, more, declined, other;

    static char  text[] = "{\"a\":1,\"b\":[1,2,{\"c\":null}],\"d\":\"x\"}";

    declined = 0;
    other = 0;
    sum = 0;
    ngx_str_null(&good);

    for (i = 0; i < RANDOM_LISTS; i++) {

        if (i % (RANDOM_LISTS / 2) == 0) {
            options->detail = i ? NGX_HTTP_IDEM_JSON_DETAIL_PATHS
                                : NGX_HTTP_IDEM_JSON_DETAIL_VALUES;

            good = list_of(options, 0, text, sizeof(text) - 1);
        }

        len = unit_below(4) ? good.len : unit_below(good.len + 1);
        p = exact(good.data, len);

        for (k = unit_below(4); k && len; k--) {
            p[unit_below(unit_below(2) ? len : ngx_min(len, 12))]
                = (u_char) (unit_below(2) ? unit_random() : unit_below(4));
        }

        list.data = p;
        list.len = len;

        rc = ngx_http_idem_json_diff(&list, &good, 3, touch, &sum, &more);

        declined += (rc == NGX_DECLINED);
        other += (rc != NGX_DECLINED && rc != NGX_OK);

        rc = ngx_http_idem_json_diff(&good, &list, 3, touch, &sum, &more);

        other += (rc != NGX_DECLINED && rc != NGX_OK);

        exact_free(p, len);
    }

    ok(other == 0 && declined > RANDOM_LISTS / 4
       && declined < RANDOM_LISTS,
       "%d broken lists, %lu declined", RANDOM_LISTS,
       (unsigned long) declined);

    /* each field that is checked, broken by hand */

    good = list_of(options, 0, S("[1,2]"));
    ngx_memcpy(lists[1], good.data, good.len);
    list.data = lists[1];

#define broken(at, byte, size, name)                                          \
    ngx_memcpy(lists[1], good.data, good.len);                                \
    lists[1][at] = byte;                                                      \
    list.len = size;                                                          \
    is(ngx_http_idem_json_diff(&list, &good, 9, touch, &sum, &more),          \
       NGX_DECLINED, name)

    broken(0, 2, good.len, "another version");
    broken(1, 0x80, good.len, "an unknown flag");
    broken(3, 3, good.len, "an entry too few");
    broken(3, 1, good.len, "an entry too many");
    broken(9, 200, good.len, "a path longer than the list");
    broken(22, 'x', good.len, "a path without its slash");
    broken(11, '9', good.len, "not in order");
    broken(0, 1, good.len - 1, "a byte short");
    broken(0, 1, 7, "not a head");

    list.len = good.len;
    is(ngx_http_idem_json_diff(&list, &good, 9, touch, &sum, &more),
       NGX_OK, "and the list itself");

    /* who answers has room for a path and two texts of the longest kind */

    is(long_entry(options, NGX_HTTP_IDEM_JSON_PATH_MAX,
                  NGX_HTTP_IDEM_JSON_TEXT_MAX),
       NGX_OK, "the longest path and text");
    is(long_entry(options, NGX_HTTP_IDEM_JSON_PATH_MAX + 1, 1),
       NGX_DECLINED, "a path that is longer");
    is(long_entry(options, 2, NGX_HTTP_IDEM_JSON_TEXT_MAX + 1),
       NGX_DECLINED, "a text that is longer");
}


int
main(void)
{
    ngx_http_idem_json_options_t  options;

    plan((int) (2 * sizeof(vectors) / sizeof(vectors[0])
                + 2 * sizeof(unordered) / sizeof(unordered[0]) + 10 + 14 + 1));
    unit_seed();

    options_init(&options);
    options.excluded = excluded;
    options.nexcluded = 1;

    test_vectors(&options, vectors, sizeof(vectors) / sizeof(vectors[0]));

    options.unordered = 1;
    test_vectors(&options, unordered,
                 sizeof(unordered) / sizeof(unordered[0]));
    options.unordered = 0;

    test_limits(&options);
    test_hostile(&options);

    ok(memory.blocks == 0, "all memory was given back");


    return done();
}
