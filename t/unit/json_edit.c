
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_json.c src/canonical/ngx_http_idem_json_walk.c src/canonical/ngx_http_idem_json_pointer.c src/canonical/ngx_http_idem_json_members.c src/canonical/ngx_http_idem_json_@json@.c src/canonical/ngx_http_idem_json_paths.c src/canonical/ngx_http_idem_json_edit.c src/canonical/ngx_http_idem_canon.c src/canonical/ngx_http_idem_canon_close.c ; libs: -l@json@ -lcrypto */
/* flags: -DNGX_HTTP_IDEM_YYJSON_PIECE=16 */

/*
 * Objects with members set: random trees are written as text in many ways, and
 * have to come out in the one form there is, which the tree itself is written
 * in here.  Then what is left alone, the limits, and memory that runs out.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "json_tree.h"
#include "canonical/ngx_http_idem_json_edit.h"


#define TREES  20000


static u_char  text[TEXT_MAX], expected[TEXT_MAX];

static const ngx_http_idem_json_set_t  set[] = {
    { ngx_string("a"), ngx_string("{\"x\": 1}") },
    { ngx_string("\n\""), ngx_string("17") }
};


/* into memory of the size that is asked for; "work" 0: random */

static ngx_int_t
edit(const void *data, size_t len, size_t work, ngx_str_t *out)
{
    u_char                     *buf, *in;
    size_t                      size;
    ngx_int_t                   rc;
    ngx_str_t                   whole;
    ngx_http_idem_json_edit_t   e;

    static u_char  result[TEXT_MAX];

    in = exact(data, len);
    whole.data = in;
    whole.len = len;

    size = ngx_http_idem_json_edit_size(&whole, set, 2);
    buf = exact(NULL, size);

    rc = ngx_http_idem_json_edit_init(&e, &whole, set, 2, buf);

    while (rc == NGX_OK || rc == NGX_AGAIN) {
        rc = ngx_http_idem_json_edit_step(&e, work ? work : 1 + unit_below(50),
                                          out);
        if (rc == NGX_OK) {
            ngx_memcpy(result, out->data, out->len);
            out->data = result;
            break;
        }
    }

    ngx_http_idem_json_edit_destroy(&e);

    exact_free(in, len);
    exact_free(buf, size);

    return rc;
}


static void
expect_string(text_t *t, const node_t *n)
{
    ngx_uint_t  i, c;

    put(t, "\"");

    for (i = 0; i < n->nchars; i++) {
        c = n->chars[i];

        if (c == '\n') {
            put(t, "\\n");

        } else if (c < 0x20) {
            put(t, "\\u%04lX", (unsigned long) c);

        } else if (c == '"' || c == '\\') {
            put(t, "\\%c", (int) c);

        } else {
            put_utf8(t, c);
        }
    }

    put(t, "\"");
}


static ngx_uint_t
is_set(const node_t *name)
{
    return (name->nchars == 1 && name->chars[0] == 'a')
           || (name->nchars == 2 && name->chars[0] == '\n'
               && name->chars[1] == '"');
}


static void
expect(text_t *t, const node_t *n, ngx_uint_t top)
{
    ngx_uint_t   i;
    const char  *comma;

    if (n->type == SCALAR) {
        put(t, "%s", n->text);
        return;
    }

    if (n->type == STRING) {
        expect_string(t, n);
        return;
    }

    put(t, n->type == OBJECT ? "{" : "[");
    comma = "";

    for (i = 0; i < n->n; i++) {

        if (top && is_set(n->names[i])) {
            continue;
        }

        put(t, "%s", comma);
        comma = ",";

        if (n->type == OBJECT) {
            expect_string(t, n->names[i]);
            put(t, ":");
        }

        expect(t, n->children[i], 0);
    }

    if (top) {
        put(t, "%s\"a\":{\"x\": 1},\"\\n\\\"\":17", comma);
    }

    put(t, n->type == OBJECT ? "}" : "]");
}


static void
test_trees(void)
{
    node_t      *n;
    size_t       len, want;
    text_t       t;
    ngx_str_t    out;
    ngx_uint_t   i, k, objects, wrong;

    objects = 0;
    wrong = 0;

    for (i = 0; i < TREES; i++) {
        nnodes = 0;
        n = make(DEPTH);
        len = write_text(text, n);

        t.p = expected;
        t.last = expected + TEXT_MAX;
        expect(&t, n, n->type == OBJECT);
        want = t.p - expected;

        objects += (n->type == OBJECT);

        for (k = 0; k < 2; k++) {

            if (edit(text, len, k ? 0 : NGX_MAX_SIZE_T_VALUE, &out)
                == (n->type == OBJECT ? NGX_OK : NGX_DECLINED)
                && (n->type != OBJECT
                    || unit_equal(out.data, out.len, expected, want)))
            {
                continue;
            }

            if (wrong++ < 3) {
                unit_dump("    text: ", text, len);
                unit_dump("     got: ", out.data, out.len);
                unit_dump("expected: ", expected, want);
            }
        }
    }

    ok(wrong == 0, "%d trees come out as they should", TREES);
    ok(objects > TREES / 3 && objects < TREES, "%lu of them are objects",
       (unsigned long) objects);
}


static void
test_declined(void)
{
    ngx_str_t   out;
    ngx_uint_t  i;

    static const char  *texts[] = {
        "[{\"a\":1}]", "\"a\"", "17", "true", "some text", "", " ",
        "{\"b\":[1,2,3,4,5,6,7,8,9,10", "{\"b\":[1,2,3,4,5,6,7,8,9,10}",
        "{\"b\":1}{\"c\":2}", "{\"b\":[1,2,3,4,5,6,7]} x", "{\"a\":1} // x",
        "{\"b\":[1,2,3,4,5,6,7,,8]}", "{\"b\":[1,2,3,4,5,6,7,8,]}",
        "{\"b\":[,1,2,3,4,5,6,7,8]}", "{\"b\":[[1,2,3,4,5,6,7] 8]}",
        "{\"b\":{\"c\":[1,2,3,4,5,6,7],}}", "{\"b\":[[1,2,3,4,5,6,7]]]}",
        "{\"b\" {\"c\":[1,2,3,4,5,6,7]}}", "{{\"c\":[1,2,3,4,5,6,7]}}",
        "{\"b\":[1,\"2,3,4,5,6,7,8,9,10,11,12]}", "{\"b\":\"\xe9\"}",
        "{\"b\":\"\\ud800\"}", "{\"b\":[1,2,3,4,5,6,7,8]\f}",
        "{\"b\":[{\"c\":[1,2,3,4,5,6}}]}"
    };

    for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        out.data = text;
        out.len = 17;

        ok(edit(texts[i], strlen(texts[i]), 0, &out) == NGX_DECLINED
           && out.data == text && out.len == 17,
           "left alone: %lu", (unsigned long) i);
    }
}


static ngx_int_t
nested(ngx_uint_t depth)
{
    text_t      t;
    ngx_str_t   out;
    ngx_uint_t  i;

    t.p = text;
    t.last = text + TEXT_MAX;

    put(&t, "{\"b\":");

    for (i = 1; i < depth; i++) {
        put(&t, "[");
    }

    for (i = 1; i < depth; i++) {
        put(&t, "]");
    }

    put(&t, "}");

    return edit(text, t.p - text, 0, &out);
}


/* without memory it says so, wherever that happens, and keeps nothing */

static void
test_memory(void)
{
    long        i;
    ngx_int_t   rc;
    ngx_str_t   out;

    static const char  json[] =
        "{\"b\":{\"c\":[1,2,3,4,5,6,7]},\"d\":\"\\u00e9 and so on and so on\"}";

    for (i = 0; i < 1000; i++) {
        memory.left = i;
        rc = edit(json, sizeof(json) - 1, 5, &out);

        if (rc != NGX_ERROR) {
            break;
        }
    }

    memory.left = -1;

    ok(i > 1 && rc == NGX_OK, "%ld allocations failed", i);
    ok(memory.blocks == 0, "nothing is left");
}


int
main(void)
{
    ngx_str_t  s;

    plan(2 + 25 + 2 + 2 + 7);
    unit_seed();

    test_trees();
    test_declined();

    is(nested(127), NGX_OK, "127 levels");
    is(nested(128), NGX_DECLINED, "128 levels");

    test_memory();

    ngx_str_set(&s, "{\"a\":[1, 2]} ");
    is(ngx_http_idem_json_valid(&s), NGX_OK, "JSON");
    ngx_str_set(&s, "0");
    is(ngx_http_idem_json_valid(&s), NGX_OK, "a number");
    ngx_str_set(&s, "{\"a\":");
    is(ngx_http_idem_json_valid(&s), NGX_DECLINED, "no JSON");
    ngx_str_set(&s, "\"\xc0\xaf\"");
    is(ngx_http_idem_json_valid(&s), NGX_DECLINED, "no UTF-8");

    memset(text, '[', 1000);
    memset(text + 1000, ']', 1000);
    s.data = text;
    s.len = 2000;
    is(ngx_http_idem_json_valid(&s), NGX_OK, "1,000 levels");

    s.len = 1999;
    is(ngx_http_idem_json_valid(&s), NGX_DECLINED, "one that is open");

    ok(memory.blocks == 0, "nothing is left of that");

    return done();
}
