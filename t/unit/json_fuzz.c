
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_json.c src/canonical/ngx_http_idem_json_walk.c src/canonical/ngx_http_idem_json_pointer.c src/canonical/ngx_http_idem_json_members.c src/canonical/ngx_http_idem_json_@json@.c src/canonical/ngx_http_idem_json_paths.c src/canonical/ngx_http_idem_json_diff.c src/canonical/ngx_http_idem_canon.c src/canonical/ngx_http_idem_canon_close.c ; libs: -l@json@ -lcrypto */

/*
 * Random pairs of JSON documents: their digests are equal exactly when the
 * documents are, by a rule of its own.  A tree is made, and a copy of it is
 * shuffled or changed a little; the rule compares the two trees, which never
 * went through the walker; both are written as text, in many ways, and fed in
 * random pieces.  For some, the same of the paths that differ.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "json_tree.h"


#define PAIRS      50000
#define DIFFS      10000
#define TAILS      10000


static u_char     texts[2][TEXT_MAX];
static ngx_str_t  excluded[] = { ngx_string("ts"), ngx_string("\xc3\xa9") };


/* a pair of trees, and their texts */

static void
make_pair(ngx_uint_t arrays, node_t **a, node_t **b, size_t *len)
{
    ngx_uint_t  k;

    nnodes = 0;
    *a = make(DEPTH);
    *b = copy(*a);

    k = unit_below(4);

    if (k < 2) {
        shuffle(*b, arrays);
    }

    if (k > 0) {
        for (k = unit_below(2); k < 2; k++) {
            mutate(*b);
        }
    }

    len[0] = write_text(texts[0], *a);
    len[1] = write_text(texts[1], *b);
}


static void
complain(const char *what, const size_t *len)
{
    printf("# %s\n", what);
    unit_dump("one: ", texts[0], len[0]);
    unit_dump("two: ", texts[1], len[1]);
}


static void
test_pairs(ngx_http_idem_json_options_t *options, const char *name)
{
    node_t      *a, *b;
    u_char       one[DIGEST_LEN], two[DIGEST_LEN];
    size_t       len[2], bytes;
    ngx_uint_t   i, same, nsame, wrong;

    nsame = 0;
    wrong = 0;
    bytes = 0;

    for (i = 0; i < PAIRS; i++) {

        make_pair(options->unordered, &a, &b, len);
        bytes += len[0] + len[1];

        same = equal(a, b, options);
        nsame += same;

        if (run(options, texts[0], len[0], -1, one) != NGX_OK
            || run(options, texts[1], len[1], -1, two) != NGX_OK
            || same != (memcmp(one, two, DIGEST_LEN) == 0))
        {
            if (wrong++ < 3) {
                complain(same ? "the same" : "different", len);
            }
        }
    }

    ok(wrong == 0, "%s: %d pairs, %lu the same, %zu bytes each", name, PAIRS,
       (unsigned long) nsame, bytes / PAIRS / 2);
    ok(nsame > PAIRS / 5 && nsame < PAIRS * 4 / 5, "%s: a fair part of either",
       name);
}


static ngx_uint_t
name_twice(const node_t *n)
{
    ngx_uint_t  i, k;

    for (i = 0; i < n->n; i++) {

        if (name_twice(n->children[i])) {
            return 1;
        }

        for (k = 0; n->type == OBJECT && k < i; k++) {
            if (equal_strings(n->names[i], n->names[k])) {
                return 1;
            }
        }
    }

    return 0;
}


static void
count(void *data, const ngx_http_idem_json_diff_t *diff)
{
    ngx_uint_t *n = data;

    (*n)++;
}


/* of documents that are the same no path differs, of others one does */

static void
test_diffs(ngx_http_idem_json_options_t *options, const char *name)
{
    node_t                *a, *b;
    u_char                 digest[DIGEST_LEN];
    size_t                 len[2];
    ngx_int_t              rc;
    ngx_str_t              list[2];
    ngx_uint_t             i, k, n, more, same, wrong;
    ngx_http_idem_json_t  *j[2];

    options->detail = NGX_HTTP_IDEM_JSON_DETAIL_VALUES;
    wrong = 0;

    for (i = 0; i < DIFFS; i++) {

        make_pair(options->unordered, &a, &b, len);
        same = equal(a, b, options);

        for (k = 0; k < 2; k++) {
            j[k] = ngx_http_idem_json_create(options);

            (void) feed(feed_json, j[k], texts[k], len[k], -1);
            (void) ngx_http_idem_json_done(j[k], digest);

            ngx_http_idem_json_paths(j[k], &list[k]);
        }

        n = 0;
        rc = ngx_http_idem_json_diff(&list[0], &list[1], 1000, count,
                                     &n, &more);

        if (rc != NGX_OK || more || (same && n)
            || (!same && n == 0 && !name_twice(a) && !name_twice(b)))
        {
            if (wrong++ < 3) {
                complain(same ? "a path differs" : "no path differs", len);
            }
        }

        ngx_http_idem_json_destroy(j[0]);
        ngx_http_idem_json_destroy(j[1]);
    }

    ok(wrong == 0, "%s: the paths of %d pairs differ, or not, as they do",
       name, DIFFS);

    options->detail = NGX_HTTP_IDEM_JSON_DETAIL_OFF;
}


/*
 * A container ends with its last bracket: less is no JSON, and nor is more,
 * unless it is white space.
 */

static void
test_tails(ngx_http_idem_json_options_t *options)
{
    node_t      *n;
    u_char       digest[DIGEST_LEN], *p;
    size_t       len, tail;
    ngx_uint_t   i, space, wrong[3];

    static u_char  bytes[] = " \t\r\n \"\"\\/{}[]:,-+.eE01tfnu\0\v\xc3\xa9";

    ngx_memzero(wrong, sizeof(wrong));

    for (i = 0; i < TAILS; i++) {

        do {
            nnodes = 0;
            n = make(DEPTH);
        } while (n->type != ARRAY && n->type != OBJECT);

        p = texts[0];
        len = write_text(p, n);

        while (p[len - 1] != ']' && p[len - 1] != '}') {
            len--;
        }

        wrong[0] += (run(options, p, unit_below(len), -1, digest)
                     != NGX_DECLINED);

        space = 1;

        for (tail = 1 + unit_below(3); tail; tail--) {
            p[len] = bytes[unit_below(sizeof(bytes) - 1)];
            space &= (strchr(" \t\r\n", p[len]) != NULL && p[len]);
            len++;
        }

        wrong[space ? 2 : 1] += (run(options, p, len, -1, digest)
                                 != (space ? NGX_OK : NGX_DECLINED));
    }

    ok(wrong[0] == 0, "%d documents cut short are no JSON", TAILS);
    ok(wrong[1] == 0, "nor are they with something behind");
    ok(wrong[2] == 0, "but with white space behind they are");
}


int
main(void)
{
    ngx_http_idem_json_options_t  options;

    plan(16);
    unit_seed();

    options_init(&options);
    test_pairs(&options, "plain");
    test_diffs(&options, "plain");
    test_tails(&options);

    options.unordered = 1;
    test_pairs(&options, "arrays unordered");
    test_diffs(&options, "arrays unordered");

    options.excluded = excluded;
    options.nexcluded = 2;
    test_pairs(&options, "arrays unordered, members excluded");
    test_diffs(&options, "arrays unordered, members excluded");

    options.unordered = 0;
    test_pairs(&options, "members excluded");
    test_diffs(&options, "members excluded");

    ok(memory.blocks == 0, "all memory was given back");


    return done();
}
