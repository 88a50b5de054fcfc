
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The syntax of a key.
 *
 * Admission calls ngx_http_idem_key_parse() with what the client sent
 * and the format of the location.  It strips white space, takes the quotes
 * off where the value is an RFC 8941 Item, and then looks at the characters
 * and the length, the same way for both forms: so a bare and a quoted key of
 * the same characters come out as the same bytes.  A JSON string has an end
 * of its own: it is the key as it is, unless it is an Item as a whole.  The
 * parser calls nothing outside of this file but for the value of a digit,
 * allocates nothing, and never reads behind the value, which need not end
 * with a NUL.
 *
 * The numbers in the comments are sections of RFC 8941.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "canonical/ngx_http_idem_canon.h"
#include "canonical/ngx_http_idem_key.h"


/* digits of a number in a parameter, 3.3.1 and 3.3.2 */
#define NGX_HTTP_IDEM_KEY_INTEGER_DIGITS   15
#define NGX_HTTP_IDEM_KEY_DECIMAL_DIGITS   12
#define NGX_HTTP_IDEM_KEY_FRACTION_DIGITS  3

#define NGX_HTTP_IDEM_KEY_UUID_VERSION     14            /* position */
#define NGX_HTTP_IDEM_KEY_UUID_VARIANT     19


static const char *ngx_http_idem_key_unquote(u_char *p, u_char *last,
    u_char *buf, ngx_str_t *key);
static u_char *ngx_http_idem_key_skip_string(u_char *p, u_char *last,
    ngx_uint_t *escapes);
static u_char *ngx_http_idem_key_skip_parameter(u_char *p, u_char *last);
static u_char *ngx_http_idem_key_skip_bare_item(u_char *p, u_char *last);
static u_char *ngx_http_idem_key_skip_number(u_char *p, u_char *last);
static u_char *ngx_http_idem_key_skip_token(u_char *p, u_char *last);
static u_char *ngx_http_idem_key_skip_bytes(u_char *p, u_char *last);
static const char *ngx_http_idem_key_check(
    const ngx_http_idem_key_format_t *format, const ngx_str_t *key,
    ngx_uint_t quoted);
static const char *ngx_http_idem_key_check_uuid(const ngx_str_t *key,
    ngx_uint_t v4);


/* the characters of a token: "A-Z a-z 0-9 _ . -" */

static const uint32_t  ngx_http_idem_key_token[] = {
    0x00000000, /* 0000 0000 0000 0000  0000 0000 0000 0000 */

                /* ?>=< ;:98 7654 3210  /.-, +*)( '&%$ #"!  */
    0x03ff6000, /* 0000 0011 1111 1111  0110 0000 0000 0000 */

                /* _^]\ [ZYX WVUT SRQP  ONML KJIH GFED CBA@ */
    0x87fffffe, /* 1000 0111 1111 1111  1111 1111 1111 1110 */

                /*  ~}| {zyx wvut srqp  onml kjih gfed cba` */
    0x07fffffe, /* 0000 0111 1111 1111  1111 1111 1111 1110 */

    0x00000000, 0x00000000, 0x00000000, 0x00000000
};


static ngx_inline ngx_uint_t
ngx_http_idem_key_is_digit(u_char c)
{
    return c >= '0' && c <= '9';
}


static ngx_inline ngx_uint_t
ngx_http_idem_key_is_lcalpha(u_char c)
{
    return c >= 'a' && c <= 'z';
}


static ngx_inline ngx_uint_t
ngx_http_idem_key_is_alpha(u_char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}


ngx_int_t
ngx_http_idem_key_parse(const ngx_http_idem_key_format_t *format,
    const ngx_str_t *raw, ngx_uint_t text, u_char *buf, ngx_str_t *key,
    const char **reason)
{
    u_char      *p, *last;
    ngx_str_t    found;
    ngx_uint_t   quoted;

    p = raw->data;
    last = raw->data + raw->len;

    while (!text && p < last && (*p == ' ' || *p == '\t')) {
        p++;
    }

    while (!text && p < last && (last[-1] == ' ' || last[-1] == '\t')) {
        last--;
    }

    found.data = p;
    found.len = last - p;

    quoted = (found.len && *p == '"');

    *reason = quoted ? ngx_http_idem_key_unquote(p, last, buf, &found)
              : (found.len && format->quoted_required && !text)
              ? "is not quoted" : NULL;

    if (*reason && text) {

        /* no Item, so the quotes are part of the key */

        found.data = p;
        found.len = last - p;
        *reason = NULL;
    }

    if (*reason == NULL) {
        *reason = ngx_http_idem_key_check(format, &found, quoted || text);
    }

    if (*reason) {
        return NGX_DECLINED;
    }

    *key = found;

    return NGX_OK;
}


/*
 * The functions that check a key return what is wrong with it, or NULL.
 *
 * An Item (3.3) that is a String, with its parameters.  The parameters mean
 * nothing to us, but they are parsed in full: a field that is not an Item is
 * to be refused as a whole (4.2), and two keys in a List must not pass for
 * one.
 */

static const char *
ngx_http_idem_key_unquote(u_char *p, u_char *last, u_char *buf,
    ngx_str_t *key)
{
    u_char      *start, *end, *dst;
    ngx_uint_t   escapes;

    start = p + 1;

    p = ngx_http_idem_key_skip_string(p, last, &escapes);
    if (p == NULL) {
        return "is not a valid quoted string";
    }

    end = p - 1;

    while (p < last) {
        p = ngx_http_idem_key_skip_parameter(p, last);
        if (p == NULL) {
            return "is followed by something that is not a parameter";
        }
    }

    if (escapes == 0) {
        key->data = start;
        key->len = end - start;
        return NULL;
    }

    dst = buf;

    for (p = start; p < end; p++) {
        if (*p == '\\') {
            p++;
        }

        *dst++ = *p;
    }

    key->data = buf;
    key->len = dst - buf;

    return NULL;
}


/*
 * The functions below take the start of an element, and return its end, or
 * NULL where there is no such element.
 */

/* sf-string, 3.3.3: "p" is at its first quote */

static u_char *
ngx_http_idem_key_skip_string(u_char *p, u_char *last, ngx_uint_t *escapes)
{
    *escapes = 0;

    for (p++; p < last; p++) {

        if (*p == '"') {
            return p + 1;
        }

        if (*p == '\\') {
            p++;

            if (p == last || (*p != '"' && *p != '\\')) {
                return NULL;
            }

            (*escapes)++;
            continue;
        }

        if (*p < 0x20 || *p > 0x7e) {
            return NULL;
        }
    }

    return NULL;
}


/* ";" *SP key [ "=" bare-item ], 3.1.2; HTAB is not white space here */

static u_char *
ngx_http_idem_key_skip_parameter(u_char *p, u_char *last)
{
    if (*p++ != ';') {
        return NULL;
    }

    while (p < last && *p == ' ') {
        p++;
    }

    if (p == last || !(ngx_http_idem_key_is_lcalpha(*p) || *p == '*')) {
        return NULL;
    }

    while (p < last
           && (ngx_http_idem_key_is_lcalpha(*p)
               || ngx_http_idem_key_is_digit(*p)
               || *p == '_' || *p == '-' || *p == '.' || *p == '*'))
    {
        p++;
    }

    if (p == last || *p != '=') {
        return p;
    }

    return ngx_http_idem_key_skip_bare_item(p + 1, last);
}


static u_char *
ngx_http_idem_key_skip_bare_item(u_char *p, u_char *last)
{
    ngx_uint_t  escapes;

    if (p == last) {
        return NULL;
    }

    switch (*p) {

    case '"':
        return ngx_http_idem_key_skip_string(p, last, &escapes);

    case ':':
        return ngx_http_idem_key_skip_bytes(p, last);

    case '?':
        if (last - p < 2 || (p[1] != '0' && p[1] != '1')) {
            return NULL;
        }

        return p + 2;

    default:
        if (*p == '-' || ngx_http_idem_key_is_digit(*p)) {
            return ngx_http_idem_key_skip_number(p, last);
        }

        return ngx_http_idem_key_skip_token(p, last);
    }
}


/* sf-integer or sf-decimal */

static u_char *
ngx_http_idem_key_skip_number(u_char *p, u_char *last)
{
    u_char  *start;

    if (*p == '-') {
        p++;
    }

    for (start = p; p < last && ngx_http_idem_key_is_digit(*p); p++) {
        /* void */
    }

    if (p == start || p - start > NGX_HTTP_IDEM_KEY_INTEGER_DIGITS) {
        return NULL;
    }

    if (p == last || *p != '.') {
        return p;
    }

    if (p - start > NGX_HTTP_IDEM_KEY_DECIMAL_DIGITS) {
        return NULL;
    }

    p++;

    for (start = p; p < last && ngx_http_idem_key_is_digit(*p); p++) {
        /* void */
    }

    if (p == start || p - start > NGX_HTTP_IDEM_KEY_FRACTION_DIGITS) {
        return NULL;
    }

    return p;
}


/* sf-token, 3.3.4: ( ALPHA / "*" ) *( tchar / ":" / "/" ) */

static u_char *
ngx_http_idem_key_skip_token(u_char *p, u_char *last)
{
    if (!ngx_http_idem_key_is_alpha(*p) && *p != '*') {
        return NULL;
    }

    for (p++; p < last; p++) {

        if (!ngx_http_idem_key_is_alpha(*p)
            && !ngx_http_idem_key_is_digit(*p)
            && (*p == '\0' || ngx_strchr("!#$%&'*+-.^_`|~:/", *p) == NULL))
        {
            break;
        }
    }

    return p;
}


/*
 * sf-binary, 3.3.5.  The alphabet alone is looked at: 4.2.7 asks parsers not
 * to fail on padding, and nobody reads the content.
 */

static u_char *
ngx_http_idem_key_skip_bytes(u_char *p, u_char *last)
{
    for (p++; p < last; p++) {

        if (*p == ':') {
            return p + 1;
        }

        if (!ngx_http_idem_key_is_alpha(*p)
            && !ngx_http_idem_key_is_digit(*p)
            && *p != '+' && *p != '/' && *p != '=')
        {
            return NULL;
        }
    }

    return NULL;
}


static const char *
ngx_http_idem_key_check(const ngx_http_idem_key_format_t *format,
    const ngx_str_t *key, ngx_uint_t quoted)
{
    u_char  *p, *last;

    /* "" is no key, whatever the minimum: it would name every operation */

    if (key->len == 0) {
        return "is empty";
    }

    if (key->len < format->min) {
        return "is too short";
    }

    if (key->len > format->max) {
        return "is too long";
    }

    last = key->data + key->len;

    switch (format->kind) {

    case NGX_HTTP_IDEM_KEY_UUID:
        return ngx_http_idem_key_check_uuid(key, 0);

    case NGX_HTTP_IDEM_KEY_UUID4:
        return ngx_http_idem_key_check_uuid(key, 1);

    case NGX_HTTP_IDEM_KEY_STRING:
        /* characters of an Item or a List have to be quoted */

        for (p = key->data; p < last; p++) {
            if (*p < 0x20 || *p > 0x7e
                || (!quoted && (*p == ' ' || *p == '"' || *p == '\\'
                                || *p == ',')))
            {
                return "contains a character that is not allowed";
            }
        }

        return NULL;

    default: /* NGX_HTTP_IDEM_KEY_TOKEN */
        for (p = key->data; p < last; p++) {
            if (!(ngx_http_idem_key_token[*p >> 5] & (1U << (*p & 0x1f)))) {
                return "contains a character that is not allowed";
            }
        }

        return NULL;
    }
}


/*
 * A UUID in capitals is the same UUID, yet the bytes stay as they were sent:
 * a retry repeats its key and does not rewrite it, and a key must mean the
 * same under each format, or a change of format would lose track of records.
 */

static const char *
ngx_http_idem_key_check_uuid(const ngx_str_t *key, ngx_uint_t v4)
{
    u_char       c;
    ngx_uint_t   i;

    if (key->len != NGX_HTTP_IDEM_KEY_UUID_LEN) {
        return "is not a UUID";
    }

    for (i = 0; i < NGX_HTTP_IDEM_KEY_UUID_LEN; i++) {
        c = key->data[i];

        if ((i == 8 || i == 13 || i == 18 || i == 23)
            ? c != '-' : ngx_http_idem_canon_hex(c) < 0)
        {
            return "is not a UUID";
        }
    }

    /* '8' and '9' have the bit already */

    c = key->data[NGX_HTTP_IDEM_KEY_UUID_VARIANT] | 0x20;

    if (v4
        && (key->data[NGX_HTTP_IDEM_KEY_UUID_VERSION] != '4'
            || (c != '8' && c != '9' && c != 'a' && c != 'b')))
    {
        return "is not a version 4 UUID";
    }

    return NULL;
}
