
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Reads JSON into a tree.  The answers of the location are small and simple:
 * idempotencyctl needs no library for them, whichever one the module was built
 * with.  Numbers and UTF-8 are not checked.
 *
 * Called by what asks the location.
 */


#include <stdlib.h>
#include <string.h>

#include "ctl_json.h"


/* of nesting */
#define CTL_JSON_DEPTH  64


static ctl_json_t *ctl_json_value(char **p, int depth);


static void
ctl_json_blanks(char **p)
{
    *p += strspn(*p, " \t\r\n");
}


/* the character of four hexadecimal digits, or -1 */

static long
ctl_json_hex(const char *p)
{
    char  digits[5];

    if (strspn(p, "0123456789abcdefABCDEF") < 4) {
        return -1;
    }

    memcpy(digits, p, 4);
    digits[4] = '\0';

    return strtol(digits, NULL, 16);
}


static char *
ctl_json_utf8(char *to, unsigned long c)
{
    int  i, n;

    static const unsigned char  lead[] = { 0, 0, 0xc0, 0xe0, 0xf0 };

    n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (i = n - 1; i > 0; i--) {
        to[i] = (char) (0x80 | (c & 0x3f));
        c >>= 6;
    }

    to[0] = (char) (lead[n] | c);

    return to + n;
}


/* an escape, from behind its backslash on; NULL: it is none */

static char *
ctl_json_escape(char **p, char *to)
{
    long         c, low;
    const char  *at;

    static const char  names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";

    if (**p != 'u') {
        at = **p ? strchr(names, **p) : NULL;

        if (at == NULL) {
            return NULL;
        }

        (*p)++;
        *to++ = values[at - names];

        return to;
    }

    c = ctl_json_hex(*p + 1);

    if (c < 0 || (c >= 0xdc00 && c <= 0xdfff)) {
        return NULL;
    }

    *p += 5;

    if (c >= 0xd800 && c <= 0xdbff) {
        low = strncmp(*p, "\\u", 2) == 0 ? ctl_json_hex(*p + 2) : -1;

        if (low < 0xdc00 || low > 0xdfff) {
            return NULL;
        }

        *p += 6;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }

    return ctl_json_utf8(to, (unsigned long) c);
}


/* unescapes it where it is: an escape is longer than what it means */

static char *
ctl_json_string(char **p)
{
    char  *text, *to;

    if (**p != '"') {
        return NULL;
    }

    text = to = ++*p;

    while (**p != '"') {

        if ((unsigned char) **p < 0x20) {
            return NULL;
        }

        if (**p != '\\') {
            *to++ = *(*p)++;
            continue;
        }

        (*p)++;
        to = ctl_json_escape(p, to);

        if (to == NULL) {
            return NULL;
        }
    }

    (*p)++;
    *to = '\0';

    return text;
}


/* brackets that belong together are two characters apart */

static int
ctl_json_children(ctl_json_t *v, char **p, int depth)
{
    char         *name;
    ctl_json_t  **last;

    if (depth == CTL_JSON_DEPTH) {
        return 0;
    }

    (*p)++;
    ctl_json_blanks(p);

    if (**p == v->kind + 2) {
        (*p)++;
        return 1;
    }

    for (last = &v->child; /* void */ ; last = &(*last)->next) {

        name = NULL;

        if (v->kind == '{') {
            ctl_json_blanks(p);
            name = ctl_json_string(p);

            if (name == NULL) {
                return 0;
            }

            ctl_json_blanks(p);

            if (**p != ':') {
                return 0;
            }

            (*p)++;
        }

        *last = ctl_json_value(p, depth + 1);

        if (*last == NULL) {
            return 0;
        }

        (*last)->name = name;

        if (**p == v->kind + 2) {
            (*p)++;
            return 1;
        }

        if (**p != ',') {
            return 0;
        }

        (*p)++;
    }
}


static ctl_json_t *
ctl_json_value(char **p, int depth)
{
    int          ok;
    ctl_json_t  *v;
    const char  *word;

    v = calloc(1, sizeof(ctl_json_t));

    if (v == NULL) {
        return NULL;
    }

    ctl_json_blanks(p);

    v->kind = **p;

    switch (v->kind) {

    case '{':
    case '[':
        ok = ctl_json_children(v, p, depth);
        break;

    case '"':
        v->text = ctl_json_string(p);
        ok = (v->text != NULL);
        break;

    case 'n':
    case 't':
    case 'f':
        word = v->kind == 'n' ? "null" : v->kind == 't' ? "true" : "false";
        ok = (strncmp(*p, word, strlen(word)) == 0);
        *p += ok ? strlen(word) : 0;
        break;

    default:
        /* a copy: there is no room for a NUL behind it */

        v->kind = '0';
        v->text = strndup(*p, strspn(*p, "0123456789+-.eE"));
        ok = (v->text && *v->text);
        *p += ok ? strlen(v->text) : 0;
    }

    ctl_json_blanks(p);

    if (!ok) {
        ctl_json_free(v);
        return NULL;
    }

    return v;
}


ctl_json_t *
ctl_json_parse(const char *text)
{
    char        *p, *buf;
    ctl_json_t  *v;

    buf = strdup(text);

    if (buf == NULL) {
        return NULL;
    }

    p = buf;
    v = ctl_json_value(&p, 0);

    if (v == NULL) {
        free(buf);
        return NULL;
    }

    v->buf = buf;

    if (*p != '\0') {
        ctl_json_free(v);
        return NULL;
    }

    return v;
}


void
ctl_json_free(ctl_json_t *v)
{
    ctl_json_t  *next;

    if (v == NULL) {
        return;
    }

    for ( /* void */ ; v->child; v->child = next) {
        next = v->child->next;
        ctl_json_free(v->child);
    }

    if (v->kind == '0') {
        free(v->text);
    }

    free(v->buf);
    free(v);
}


ctl_json_t *
ctl_json_get(ctl_json_t *v, const char *name)
{
    if (!ctl_json_is(v, '{')) {
        return NULL;
    }

    for (v = v->child; v; v = v->next) {
        if (strcmp(v->name, name) == 0) {
            return v;
        }
    }

    return NULL;
}
