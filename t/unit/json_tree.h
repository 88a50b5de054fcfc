
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Random JSON documents as trees: made, copied, shuffled and changed a
 * little; compared by a rule of its own, which knows nothing of the walker;
 * and written as text, with random white space and escapes.
 *
 * Names, strings and numbers come from few, so that a change often makes
 * something equal again, or equal but for the order.
 */


#ifndef _JSON_TREE_H_INCLUDED_
#define _JSON_TREE_H_INCLUDED_


#include "json.h"


#define DEPTH      4
#define TEXT_MAX   (256 * 1024)
#define NODES_MAX  65536


typedef enum {
    SCALAR = 0,                        /* by its text                      */
    STRING,                            /* by its characters                */
    ARRAY,
    OBJECT
} type_e;


typedef struct node_s  node_t;

struct node_s {
    type_e        type;
    const char   *text;                /* of a scalar                      */
    ngx_uint_t    chars[8];            /* of a string: code points         */
    ngx_uint_t    nchars;
    node_t       *names[8];            /* of members: strings              */
    node_t       *children[8];
    ngx_uint_t    n;
};


typedef struct {
    u_char       *p;
    u_char       *last;
} text_t;


static node_t      nodes[NODES_MAX];
static ngx_uint_t  nnodes;

static const char  *scalars[] = {
    "0", "-0", "1", "1.0", "1e0", "1E0", "10", "9007199254740993",
    "9007199254740992", "1e400", "1e401", "true", "false", "null",
    "1234567890123456789012345678901234567890",
    "1234567890123456789012345678901234567891"
};

static ngx_uint_t  points[] = {
    'a', 'b', 't', 's', '"', '\\', '/', '\n', 0, 0x1f, 0x7f, 0xe9, 0x7ff,
    0x20ac, 0xd7ff, 0xe000, 0xffff, 0x10000, 0x1f600, 0x10ffff
};


static ngx_inline node_t *
node(type_e type)
{
    node_t  *n;

    if (nnodes == NODES_MAX) {
        abort();
    }

    n = &nodes[nnodes++];
    ngx_memzero(n, sizeof(node_t));
    n->type = type;

    return n;
}


static ngx_inline node_t *
make_string(ngx_uint_t max)
{
    node_t  *n;

    n = node(STRING);

    for (n->nchars = unit_below(max + 1); max; max--) {
        n->chars[max - 1] = points[unit_below(unit_below(3) ? 4 : 20)];
    }

    return n;
}


static ngx_inline node_t *
make(ngx_uint_t depth)
{
    node_t      *n;
    ngx_uint_t   i;

    i = unit_below(depth ? 4 : 2);

    if (depth == DEPTH && unit_below(16)) {
        i |= 2;                              /* mostly a container on top */
    }

    switch (i) {

    case 0:
        n = node(SCALAR);
        n->text = scalars[unit_below(16)];
        return n;

    case 1:
        return make_string(unit_below(4) ? 2 : 8);

    case 2:
        n = node(ARRAY);
        break;

    default:
        n = node(OBJECT);
    }

    n->n = unit_below((depth == DEPTH || unit_below(4) == 0) ? 8 : 4);

    for (i = 0; i < n->n; i++) {
        n->children[i] = make(depth - 1);

        if (n->type == OBJECT) {
            n->names[i] = make_string(2);
        }
    }

    return n;
}


static ngx_inline node_t *
copy(const node_t *from)
{
    node_t      *n;
    ngx_uint_t   i;

    n = node(from->type);
    *n = *from;

    for (i = 0; i < n->n; i++) {
        n->children[i] = copy(from->children[i]);

        if (n->type == OBJECT) {
            n->names[i] = copy(from->names[i]);
        }
    }

    return n;
}


static ngx_inline void
swap(node_t *n, ngx_uint_t i, ngx_uint_t k)
{
    node_t  *t;

    t = n->children[i];
    n->children[i] = n->children[k];
    n->children[k] = t;

    t = n->names[i];
    n->names[i] = n->names[k];
    n->names[k] = t;
}


/* a random order; where names come twice this may make it another document */

static ngx_inline void
shuffle(node_t *n, ngx_uint_t arrays)
{
    ngx_uint_t  i;

    for (i = 0; i < n->n; i++) {
        shuffle(n->children[i], arrays);

        if (n->type == OBJECT || arrays) {
            swap(n, i, unit_below(i + 1));
        }
    }
}


/* one small change somewhere, which may well change nothing */

static ngx_inline void
mutate(node_t *n)
{
    ngx_uint_t  i;

    if (n->n && unit_below(3)) {
        mutate(n->children[unit_below(n->n)]);
        return;
    }

    switch (n->type) {

    case SCALAR:
        n->text = scalars[unit_below(16)];
        return;

    case STRING:
        if (unit_below(2) && n->nchars) {
            n->chars[unit_below(n->nchars)] = points[unit_below(20)];

        } else {
            n->nchars = unit_below(9);
        }

        return;

    default:
        break;
    }

    switch (unit_below(6)) {

    case 0:
        n->type = (n->type == ARRAY) ? OBJECT : ARRAY;

        for (i = 0; i < n->n; i++) {
            n->names[i] = make_string(2);
        }

        break;

    case 1:
        if (n->n) {
            n->n--;
        }

        break;

    case 2:
        if (n->n > 1) {
            swap(n, 0, n->n - 1);
        }

        break;

    case 3:
        if (n->n && n->type == OBJECT) {
            n->names[unit_below(n->n)] = make_string(2);
        }

        break;

    default:
        if (n->n < 8) {
            i = n->n++;
            n->names[i] = make_string(2);
            n->children[i] = (i && unit_below(2)) ? copy(n->children[0])
                                                  : make(1);
        }
    }
}


/* the rule: what is equal, said for trees */

static ngx_inline ngx_uint_t
equal_strings(const node_t *a, const node_t *b)
{
    return a->nchars == b->nchars
           && memcmp(a->chars, b->chars, a->nchars * sizeof(ngx_uint_t)) == 0;
}


static ngx_inline ngx_uint_t
left_out(const node_t *name)
{
    return (name->nchars == 2 && name->chars[0] == 't'
            && name->chars[1] == 's')
           || (name->nchars == 1 && name->chars[0] == 0xe9);
}


static ngx_inline ngx_uint_t  equal(const node_t *a, const node_t *b,
    const ngx_http_idem_json_options_t *o);


/*
 * Each child of a has its own among those of b that are still free: for a
 * member, the first with the same name; for an element, the next, or, if
 * unordered, any that is equal.
 */

static ngx_inline ngx_uint_t
equal_children(const node_t *a, const node_t *b,
    const ngx_http_idem_json_options_t *o)
{
    ngx_uint_t  i, k, skip, used[8];

    ngx_memzero(used, sizeof(used));

    for (k = 0; k < b->n; k++) {
        used[k] = (b->type == OBJECT && o->nexcluded
                   && left_out(b->names[k]));
    }

    for (i = 0; i < a->n; i++) {

        skip = (a->type == OBJECT && o->nexcluded && left_out(a->names[i]));

        for (k = 0; k < b->n && !skip; k++) {

            if (used[k]
                || (a->type == OBJECT
                    && !equal_strings(a->names[i], b->names[k])))
            {
                continue;
            }

            if (equal(a->children[i], b->children[k], o)) {
                break;
            }

            if (a->type == OBJECT || !o->unordered) {
                return 0;
            }
        }

        if (skip) {
            continue;
        }

        if (k == b->n) {
            return 0;
        }

        used[k] = 1;
    }

    for (k = 0; k < b->n; k++) {
        if (!used[k]) {
            return 0;
        }
    }

    return 1;
}


static ngx_inline ngx_uint_t
equal(const node_t *a, const node_t *b, const ngx_http_idem_json_options_t *o)
{
    if (a->type != b->type) {
        return 0;
    }

    switch (a->type) {

    case SCALAR:
        return strcmp(a->text, b->text) == 0;

    case STRING:
        return equal_strings(a, b);

    default:
        return equal_children(a, b, o);
    }
}


static ngx_inline void
put(text_t *t, const char *fmt, ...)
{
    va_list  args;

    va_start(args, fmt);
    t->p += vsnprintf((char *) t->p, t->last - t->p, fmt, args);
    va_end(args);

    if (t->p >= t->last) {
        abort();
    }
}


static ngx_inline void
put_space(text_t *t)
{
    while (unit_below(4) == 0) {
        *t->p++ = " \t\r\n"[unit_below(4)];
    }
}


static ngx_inline void
put_utf8(text_t *t, ngx_uint_t c)
{
    if (c < 0x80) {
        *t->p++ = (u_char) c;

    } else if (c < 0x800) {
        *t->p++ = (u_char) (0xc0 | c >> 6);
        *t->p++ = (u_char) (0x80 | (c & 0x3f));

    } else if (c < 0x10000) {
        *t->p++ = (u_char) (0xe0 | c >> 12);
        *t->p++ = (u_char) (0x80 | (c >> 6 & 0x3f));
        *t->p++ = (u_char) (0x80 | (c & 0x3f));

    } else {
        *t->p++ = (u_char) (0xf0 | c >> 18);
        *t->p++ = (u_char) (0x80 | (c >> 12 & 0x3f));
        *t->p++ = (u_char) (0x80 | (c >> 6 & 0x3f));
        *t->p++ = (u_char) (0x80 | (c & 0x3f));
    }
}


static ngx_inline void
put_char(text_t *t, ngx_uint_t c)
{
    const char  *upper;

    upper = unit_below(2) ? "\\u%04X" : "\\u%04x";

    if (c == '/' && unit_below(2)) {
        put(t, "\\/");

    } else if ((c == '"' || c == '\\') && unit_below(2)) {
        put(t, "\\%c", (int) c);

    } else if (c == '\n' && unit_below(2)) {
        put(t, "\\n");

    } else if (c >= 0x10000 && unit_below(2)) {
        put(t, upper, (unsigned) (0xd800 + ((c - 0x10000) >> 10)));
        put(t, upper, (unsigned) (0xdc00 + ((c - 0x10000) & 0x3ff)));

    } else if (c < 0x20 || c == '"' || c == '\\'
               || (c < 0x10000 && unit_below(4) == 0))
    {
        put(t, upper, (unsigned) c);

    } else {
        put_utf8(t, c);
    }
}


static ngx_inline void
put_node(text_t *t, const node_t *n)
{
    ngx_uint_t  i;

    put_space(t);

    switch (n->type) {

    case SCALAR:
        put(t, "%s", n->text);
        break;

    case STRING:
        put(t, "\"");

        for (i = 0; i < n->nchars; i++) {
            put_char(t, n->chars[i]);
        }

        put(t, "\"");
        break;

    default:
        put(t, (n->type == ARRAY) ? "[" : "{");
        put_space(t);

        for (i = 0; i < n->n; i++) {
            if (i) {
                put(t, ",");
            }

            if (n->type == OBJECT) {
                put_node(t, n->names[i]);
                put(t, ":");
            }

            put_node(t, n->children[i]);
        }

        put(t, (n->type == ARRAY) ? "]" : "}");
    }

    put_space(t);
}


static ngx_inline size_t
write_text(u_char *buf, const node_t *n)
{
    text_t  t;

    t.p = buf;
    t.last = buf + TEXT_MAX - 64;

    put_node(&t, n);

    return t.p - buf;
}


#endif /* _JSON_TREE_H_INCLUDED_ */
