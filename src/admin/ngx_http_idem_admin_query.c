
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Arguments of requests that select records.
 *
 * Called by the admin handler for a request, and for each record of a slice.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_admin.h"
#include "canonical/ngx_http_idem_digest.h"
#include "canonical/ngx_http_idem_key.h"


#define NGX_HTTP_IDEM_ADMIN_LIMIT      100
#define NGX_HTTP_IDEM_ADMIN_LIMIT_MAX  1000


static ngx_int_t ngx_http_idem_admin_filters(ngx_http_request_t *r,
    ngx_http_idem_admin_query_t *q, ngx_int_t *rc);
static ngx_uint_t ngx_http_idem_admin_has(const char **names,
    ngx_str_t *name);
static ngx_int_t ngx_http_idem_admin_cursor(ngx_http_request_t *r,
    ngx_http_idem_admin_query_t *q, ngx_int_t *rc);
static ngx_uint_t ngx_http_idem_admin_same(ngx_str_t *a, ngx_str_t *b);


/* "q" may already have an id */

ngx_int_t
ngx_http_idem_admin_query(ngx_http_request_t *r,
    ngx_http_idem_admin_query_t *q, ngx_int_t *rc)
{
    ngx_int_t   n;
    ngx_str_t   value, scope;
    ngx_uint_t  dry_run;

    static const char  *names[] = { "key", "scope", "state", "older", "group",
                                    "tenant", "actor", "limit", "cursor",
                                    "dry_run", NULL };

    if (r->method == NGX_HTTP_DELETE
        && ngx_http_idem_admin_deletion(r, names, rc) != NGX_OK)
    {
        return NGX_DECLINED;
    }

    /* an argument that is lost for want of memory is one that was given */

    *rc = NGX_HTTP_INTERNAL_SERVER_ERROR;

    if (ngx_http_idem_admin_dry_run(r, &dry_run) != NGX_OK) {
        return NGX_DECLINED;
    }

    q->dry_run = dry_run;

    if (q->one) {
        return NGX_OK;
    }

    switch (ngx_http_idem_admin_key(r, q->id, NULL, &scope)) {

    case NGX_OK:
        q->one = 1;
        return NGX_OK;

    case NGX_ERROR:
        return NGX_DECLINED;

    default: /* NGX_DECLINED */
        break;
    }

    if (ngx_http_idem_admin_filters(r, q, rc) != NGX_OK) {
        return NGX_DECLINED;
    }

    q->limit = NGX_HTTP_IDEM_ADMIN_LIMIT;

    if (ngx_http_idem_admin_arg(r, "limit", &value) == NGX_ERROR) {
        return NGX_DECLINED;
    }

    if (value.data) {
        n = ngx_atoi(value.data, value.len);

        if (n == NGX_ERROR || n == 0 || n > NGX_HTTP_IDEM_ADMIN_LIMIT_MAX) {
            *rc = ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                             "LIMIT_INVALID",
                             "\"limit\" is a number from 1 to 1000.");
            return NGX_DECLINED;
        }

        q->limit = n;
    }

    return ngx_http_idem_admin_cursor(r, q, rc);
}


/*
 * A deletion must not take more than was meant.  An argument that is not known
 * is a filter or a "dry_run" that is misspelt; one that is empty probably comes
 * from a script with an empty variable.
 */

ngx_int_t
ngx_http_idem_admin_deletion(ngx_http_request_t *r, const char **names,
    ngx_int_t *rc)
{
    u_char     *p, *end, *last, *value;
    ngx_str_t   name;

    static const char  *empty[] = { "scope", "cursor", NULL };

    last = r->args.data + r->args.len;

    for (p = r->args.data; p < last; p = end + 1) {
        end = ngx_strlchr(p, last, '&');
        end = end ? end : last;

        if (end == p) {
            continue;
        }

        value = ngx_strlchr(p, end, '=');

        name.data = p;
        name.len = (value ? value : end) - p;

        if (!ngx_http_idem_admin_has(names, &name)) {
            *rc = ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                             "ARGUMENT_UNKNOWN", "Nothing was deleted: "
                             "\"%V\" is no argument of this deletion.", &name);
            return NGX_DECLINED;
        }

        if (value == NULL
            || (value + 1 == end && !ngx_http_idem_admin_has(empty, &name)))
        {
            *rc = ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                             "FILTER_EMPTY", "Nothing was deleted: \"%V\" is "
                             "empty.", &name);
            return NGX_DECLINED;
        }
    }

    return NGX_OK;
}


/* as ngx_http_arg() compares them */

static ngx_uint_t
ngx_http_idem_admin_has(const char **names, ngx_str_t *name)
{
    for ( /* void */ ; *names; names++) {

        if (ngx_strlen(*names) == name->len
            && ngx_strncasecmp((u_char *) *names, name->data, name->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


static ngx_int_t
ngx_http_idem_admin_filters(ngx_http_request_t *r,
    ngx_http_idem_admin_query_t *q, ngx_int_t *rc)
{
    u_char      hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_int_t   ms;
    ngx_str_t   value, *label;
    ngx_uint_t  i;

    if (ngx_http_idem_admin_arg(r, "state", &value) == NGX_ERROR) {
        return NGX_DECLINED;
    }

    if (value.data) {

        for (i = NGX_HTTP_IDEM_IN_PROGRESS; i <= NGX_HTTP_IDEM_UNUSABLE; i++)
        {
            if (value.len == ngx_strlen(ngx_http_idem_state_names[i])
                && ngx_strncmp(value.data, ngx_http_idem_state_names[i],
                               value.len)
                   == 0)
            {
                q->state = i;
            }
        }

        if (q->state == 0) {
            *rc = ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                             "STATE_INVALID", "\"state\" is in_progress, "
                             "completed or unusable.");
            return NGX_DECLINED;
        }

        q->some = 1;
    }

    if (ngx_http_idem_admin_arg(r, "older", &value) == NGX_ERROR) {
        return NGX_DECLINED;
    }

    if (value.data) {
        ms = ngx_parse_time(&value, 0);

        if (ms == NGX_ERROR) {
            *rc = ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                             "OLDER_INVALID",
                             "\"older\" is a time as in nginx.conf: 30s, 1h, "
                             "7d.");
            return NGX_DECLINED;
        }

        q->older = (ngx_msec_t) ms;
        q->some = 1;
    }

    for (i = 0; i < NGX_HTTP_IDEM_LABEL_HOST; i++) {
        label = &q->labels[i];

        if (ngx_http_idem_admin_arg(r, ngx_http_idem_label_names[i], label)
            == NGX_ERROR)
        {
            return NGX_DECLINED;
        }

        if (label->len) {
            q->some = 1;
        }
    }

    /* an actor is stored as a hash, and selected by the hash or by name */

    label = &q->labels[NGX_HTTP_IDEM_LABEL_ACTOR];

    if (label->data) {
        ngx_http_idem_digest_plain(hash, label->data, label->len);
        (void) ngx_hex_dump(q->actor_hash, hash, sizeof(hash));
    }

    return NGX_OK;
}


/* "<store cursor>" or "<store cursor>~<id>", in base64url */

static ngx_int_t
ngx_http_idem_admin_cursor(ngx_http_request_t *r,
    ngx_http_idem_admin_query_t *q, ngx_int_t *rc)
{
    u_char     *p;
    ngx_str_t   value, id, cursor;

    if (ngx_http_idem_admin_arg(r, "cursor", &value) == NGX_ERROR) {
        return NGX_DECLINED;
    }

    if (value.len == 0) {
        return NGX_OK;
    }

    cursor.data = ngx_pnalloc(r->pool, ngx_base64_decoded_length(value.len));

    if (cursor.data == NULL) {
        return NGX_DECLINED;
    }

    if (ngx_decode_base64url(&cursor, &value) != NGX_OK
        || cursor.len >= NGX_HTTP_IDEM_CURSOR_MAX)
    {
        goto invalid;
    }

    p = ngx_strlchr(cursor.data, cursor.data + cursor.len, '~');

    if (p) {
        id.data = p + 1;
        id.len = cursor.data + cursor.len - id.data;

        if (ngx_http_idem_admin_id(&id, q->after) != NGX_OK) {
            goto invalid;
        }

        q->resumed = 1;
        cursor.len = p - cursor.data;
    }

    q->cursor = cursor;

    return NGX_OK;

invalid:

    *rc = ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                             "CURSOR_INVALID", "\"cursor\" is what the page "
                             "before said, as it is.");

    return NGX_DECLINED;
}


ngx_int_t
ngx_http_idem_admin_dry_run(ngx_http_request_t *r, ngx_uint_t *dry_run)
{
    ngx_str_t  value;

    if (ngx_http_idem_admin_arg(r, "dry_run", &value) == NGX_ERROR) {
        return NGX_ERROR;
    }

    *dry_run = !(value.len == 0 || (value.len == 1 && value.data[0] == '0'));

    return NGX_OK;
}


/* a decoded argument; NGX_DECLINED: not given, and value->data is NULL */

ngx_int_t
ngx_http_idem_admin_arg(ngx_http_request_t *r, const char *name,
    ngx_str_t *value)
{
    u_char     *dst, *src;
    ngx_str_t   arg;

    ngx_str_null(value);

    if (ngx_http_arg(r, (u_char *) name, ngx_strlen(name), &arg) != NGX_OK) {
        return NGX_DECLINED;
    }

    dst = ngx_pnalloc(r->pool, arg.len ? arg.len : 1);
    if (dst == NULL) {
        return NGX_ERROR;
    }

    value->data = dst;
    src = arg.data;

    ngx_unescape_uri(&dst, &src, arg.len, 0);

    value->len = dst - value->data;

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_admin_id(ngx_str_t *text, u_char *id)
{
    ngx_int_t   n;
    ngx_uint_t  i;

    if (text->len != 2 * NGX_HTTP_IDEM_ID_LEN) {
        return NGX_DECLINED;
    }

    for (i = 0; i < NGX_HTTP_IDEM_ID_LEN; i++) {
        n = ngx_hextoi(text->data + 2 * i, 2);

        if (n == NGX_ERROR) {
            return NGX_DECLINED;
        }

        id[i] = (u_char) n;
    }

    return NGX_OK;
}


/*
 * Computes the record id as for a request: the default scope is the host, and
 * the quotes around a key are removed.
 */

ngx_int_t
ngx_http_idem_admin_key(ngx_http_request_t *r, u_char *id, u_char *hash,
    ngx_str_t *scope)
{
    u_char      *buf;
    ngx_int_t    rc;
    ngx_str_t    fields[2], key;
    const char  *reason;

    static const ngx_http_idem_key_format_t  any = {
        NGX_HTTP_IDEM_KEY_STRING, 1, NGX_MAX_SIZE_T_VALUE, 0
    };

    rc = ngx_http_idem_admin_arg(r, "key", &fields[1]);

    if (rc != NGX_OK) {
        return rc;
    }

    if (fields[1].len == 0) {
        return NGX_DECLINED;
    }

    if (fields[1].data[0] == '"') {

        /* as it was sent, with quotes */

        buf = ngx_pnalloc(r->pool, fields[1].len);
        if (buf == NULL) {
            return NGX_ERROR;
        }

        if (ngx_http_idem_key_parse(&any, &fields[1], 0, buf, &key, &reason)
            == NGX_OK)
        {
            fields[1] = key;
        }
    }

    rc = ngx_http_idem_admin_arg(r, "scope", scope);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_DECLINED) {
        *scope = r->headers_in.server;
    }

    fields[0] = *scope;

    ngx_http_idem_digest_fields(id, fields, 2);

    if (hash) {
        ngx_http_idem_digest_plain(hash, fields[1].data, fields[1].len);
    }

    return NGX_OK;
}


ngx_uint_t
ngx_http_idem_admin_match(ngx_http_idem_admin_query_t *q,
    ngx_http_idem_store_t *store, ngx_http_idem_entry_t *entry)
{
    ngx_str_t   hash, labels[NGX_HTTP_IDEM_LABEL_N];
    ngx_uint_t  i;

    if (q->state && q->state != (ngx_uint_t) entry->state) {
        return 0;
    }

    if (q->older
        && entry->claim.time + q->older > ngx_http_idem_history_now())
    {
        return 0;
    }

    ngx_http_idem_admin_labels(store, entry, labels);

    hash.data = q->actor_hash;
    hash.len = sizeof(q->actor_hash);

    for (i = 0; i < NGX_HTTP_IDEM_LABEL_N; i++) {
        if (!ngx_http_idem_admin_same(&q->labels[i], &labels[i])
            && (i != NGX_HTTP_IDEM_LABEL_ACTOR
                || !ngx_http_idem_admin_same(&hash, &labels[i])))
        {
            return 0;
        }
    }

    return 1;
}


/* an empty "a" matches any value */

static ngx_uint_t
ngx_http_idem_admin_same(ngx_str_t *a, ngx_str_t *b)
{
    return a->len == 0
           || (a->len == b->len && ngx_memcmp(a->data, b->data, a->len) == 0);
}
