
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
#include "claim/ngx_http_idem_claim.h"
#include "canonical/ngx_http_idem_digest.h"
#include "canonical/ngx_http_idem_key.h"


#define NGX_HTTP_IDEM_ADMIN_LIMIT      100
#define NGX_HTTP_IDEM_ADMIN_LIMIT_MAX  1000


static ngx_int_t ngx_http_idem_admin_invalid(ngx_http_request_t *r,
    ngx_int_t *rc, const char *code, const char *message);
static ngx_uint_t ngx_http_idem_admin_arg(ngx_str_t *name);
static ngx_int_t ngx_http_idem_admin_filters(ngx_http_request_t *r,
    ngx_str_t *args, ngx_http_idem_admin_query_t *q, ngx_int_t *rc);
static ngx_uint_t ngx_http_idem_admin_escaped(u_char *p, u_char *end);
static ngx_int_t ngx_http_idem_admin_cursor(ngx_http_request_t *r,
    ngx_str_t *value, ngx_http_idem_admin_query_t *q, ngx_int_t *rc);
static ngx_uint_t ngx_http_idem_admin_same(ngx_str_t *a, ngx_str_t *b);


static ngx_str_t  ngx_http_idem_arg_names[] = {
    ngx_string("group"), ngx_string("tenant"), ngx_string("actor"),
    ngx_string("key"), ngx_string("scope"), ngx_string("dry_run"),
    ngx_string("older"), ngx_string("state"), ngx_string("limit"),
    ngx_string("cursor"), ngx_string("store"), ngx_string("since"),
    ngx_string("until"), ngx_string("record"), ngx_string("after"),
    ngx_string("follow")
};


/* without memory the request fails: a lost argument would widen the query */

ngx_int_t
ngx_http_idem_admin_args(ngx_http_request_t *r, ngx_str_t *args)
{
    u_char      *dst, *src;
    ngx_str_t    arg, *name;
    ngx_uint_t   i;

    for (i = 0; i < NGX_HTTP_IDEM_ARG_N; i++) {
        name = &ngx_http_idem_arg_names[i];

        ngx_str_null(&args[i]);

        if (ngx_http_arg(r, name->data, name->len, &arg) != NGX_OK) {
            continue;
        }

        dst = ngx_pnalloc(r->pool, arg.len ? arg.len : 1);
        if (dst == NULL) {
            return NGX_ERROR;
        }

        args[i].data = dst;
        src = arg.data;

        ngx_unescape_uri(&dst, &src, arg.len, 0);

        args[i].len = dst - args[i].data;
    }

    return NGX_OK;
}


/* "q" may already have an id */

ngx_int_t
ngx_http_idem_admin_query(ngx_http_request_t *r, ngx_str_t *args,
    ngx_http_idem_admin_query_t *q, ngx_int_t *rc)
{
    ngx_int_t   n;
    ngx_str_t  *limit, scope;

    static const ngx_uint_t  any = (1 << (NGX_HTTP_IDEM_ARG_CURSOR + 1)) - 1;
    static const ngx_uint_t  by_id = 1 << NGX_HTTP_IDEM_ARG_DRY_RUN;
    static const ngx_uint_t  key = 1 << NGX_HTTP_IDEM_ARG_KEY
                                   | 1 << NGX_HTTP_IDEM_ARG_SCOPE;

    if (ngx_http_idem_admin_deletion(r, any, rc) != NGX_OK) {
        return NGX_DECLINED;
    }

    q->dry_run = ngx_http_idem_admin_is_dry_run(args);

    if (q->one) {
        return ngx_http_idem_admin_deletion(r, by_id, rc);
    }

    switch (ngx_http_idem_admin_key(r, args, q->id, NULL, &scope)) {

    case NGX_OK:
        q->one = 1;

        if (args[NGX_HTTP_IDEM_ARG_SCOPE].data == NULL) {
            q->host = scope;
        }

        return ngx_http_idem_admin_deletion(r, by_id | key, rc);

    case NGX_ERROR:
        *rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
        return NGX_DECLINED;

    default: /* NGX_DECLINED */
        break;
    }

    if (ngx_http_idem_admin_deletion(r, any & ~key, rc) != NGX_OK
        || ngx_http_idem_admin_filters(r, args, q, rc) != NGX_OK)
    {
        return NGX_DECLINED;
    }

    q->limit = NGX_HTTP_IDEM_ADMIN_LIMIT;
    limit = &args[NGX_HTTP_IDEM_ARG_LIMIT];

    if (limit->data) {
        n = ngx_atoi(limit->data, limit->len);

        if (n == NGX_ERROR || n == 0 || n > NGX_HTTP_IDEM_ADMIN_LIMIT_MAX) {
            return ngx_http_idem_admin_invalid(r, rc, "LIMIT_INVALID",
                             "\"limit\" is a number from 1 to 1000.");
        }

        q->limit = n;
    }

    return ngx_http_idem_admin_cursor(r, &args[NGX_HTTP_IDEM_ARG_CURSOR], q,
                                      rc);
}


static ngx_int_t
ngx_http_idem_admin_invalid(ngx_http_request_t *r, ngx_int_t *rc,
    const char *code, const char *message)
{
    *rc = ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST, code, "%s",
                                    message);
    return NGX_DECLINED;
}


/*
 * A deletion must not take more than was meant.  An argument that is not known
 * is a filter or a "dry_run" that is misspelt; one that is empty probably comes
 * from a script with an empty variable.  Of one that is repeated only the first
 * would count, and half an escape ("%4") would be decoded to nothing.
 */

ngx_int_t
ngx_http_idem_admin_deletion(ngx_http_request_t *r, ngx_uint_t known,
    ngx_int_t *rc)
{
    u_char      *p, *end, *last, *value;
    ngx_str_t    name;
    ngx_uint_t   i, seen;
    const char  *code, *why;

    if (r->method != NGX_HTTP_DELETE) {
        return NGX_OK;
    }

    seen = 0;
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

        i = ngx_http_idem_admin_arg(&name);

        if (!(known >> i & 1)) {
            code = "ARGUMENT_UNKNOWN";
            why = "is no argument of this deletion";

        } else if (value == NULL
                   || (value + 1 == end && i != NGX_HTTP_IDEM_ARG_SCOPE
                       && i != NGX_HTTP_IDEM_ARG_CURSOR))
        {
            code = "FILTER_EMPTY";
            why = "is empty";

        } else if ((seen >> i & 1)
                   || !ngx_http_idem_admin_escaped(value, end))
        {
            code = "ARGUMENT_INVALID";
            why = "is given twice, or has a \"%\" that begins no escape";

        } else {
            seen |= 1 << i;
            continue;
        }

        *rc = ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST, code,
                                        "Nothing was deleted: \"%V\" %s.",
                                        &name, why);
        return NGX_DECLINED;
    }

    return NGX_OK;
}


/* its number, or NGX_HTTP_IDEM_ARG_N; as ngx_http_arg() compares them */

static ngx_uint_t
ngx_http_idem_admin_arg(ngx_str_t *name)
{
    ngx_uint_t   i;
    ngx_str_t   *names;

    names = ngx_http_idem_arg_names;

    for (i = 0; i < NGX_HTTP_IDEM_ARG_N; i++) {
        if (names[i].len == name->len
            && ngx_strncasecmp(names[i].data, name->data, name->len) == 0)
        {
            break;
        }
    }

    return i;
}


static ngx_uint_t
ngx_http_idem_admin_escaped(u_char *p, u_char *end)
{
    while ((p = ngx_strlchr(p, end, '%'))) {

        if (end - p < 3 || ngx_hextoi(p + 1, 2) == NGX_ERROR) {
            return 0;
        }

        p += 3;
    }

    return 1;
}


static ngx_int_t
ngx_http_idem_admin_filters(ngx_http_request_t *r, ngx_str_t *args,
    ngx_http_idem_admin_query_t *q, ngx_int_t *rc)
{
    u_char      hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_int_t   ms;
    ngx_str_t  *arg;
    ngx_uint_t  i;

    arg = &args[NGX_HTTP_IDEM_ARG_STATE];

    if (arg->data) {

        for (i = NGX_HTTP_IDEM_IN_PROGRESS; i <= NGX_HTTP_IDEM_UNUSABLE; i++)
        {
            if (arg->len == ngx_strlen(ngx_http_idem_state_names[i])
                && ngx_strncmp(arg->data, ngx_http_idem_state_names[i],
                               arg->len)
                   == 0)
            {
                q->state = i;
            }
        }

        if (q->state == 0) {
            return ngx_http_idem_admin_invalid(r, rc, "STATE_INVALID",
                             "\"state\" is in_progress, completed or "
                             "unusable.");
        }

        q->some = 1;
    }

    arg = &args[NGX_HTTP_IDEM_ARG_OLDER];

    if (arg->data) {
        ms = ngx_parse_time(arg, 0);

        if (ms == NGX_ERROR) {
            return ngx_http_idem_admin_invalid(r, rc, "OLDER_INVALID",
                             "\"older\" is a time as in nginx.conf: 30s, 1h, "
                             "7d.");
        }

        q->older = (ngx_msec_t) ms;
        q->some = 1;
    }

    for (i = 0; i < NGX_HTTP_IDEM_LABEL_HOST; i++) {
        q->labels[i] = args[i];

        if (args[i].len == 0) {
            continue;
        }

        q->some = 1;
        q->bounded[i] = args[i];

        if (ngx_http_idem_label_bounded(r->pool, &q->bounded[i]) != NGX_OK) {
            *rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
            return NGX_DECLINED;
        }
    }

    /* an actor is stored as a hash, and selected by the hash or by name */

    arg = &args[NGX_HTTP_IDEM_ARG_ACTOR];

    if (arg->data) {
        ngx_http_idem_digest_plain(hash, arg->data, arg->len);
        (void) ngx_hex_dump(q->actor_hash, hash, sizeof(hash));
    }

    return NGX_OK;
}


/* "<store cursor>" or "<store cursor>~<seen>", in base64url */

static ngx_int_t
ngx_http_idem_admin_cursor(ngx_http_request_t *r, ngx_str_t *value,
    ngx_http_idem_admin_query_t *q, ngx_int_t *rc)
{
    u_char     *p;
    ngx_str_t   cursor;

    if (value->len == 0) {
        return NGX_OK;
    }

    cursor.data = ngx_pnalloc(r->pool, ngx_base64_decoded_length(value->len));

    if (cursor.data == NULL) {
        *rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
        return NGX_DECLINED;
    }

    if (ngx_decode_base64url(&cursor, value) != NGX_OK) {
        goto invalid;
    }

    /* a cursor of Redis may have the path of a socket, and a "~" in it */

    for (p = cursor.data + cursor.len; p > cursor.data; p--) {

        if (p[-1] == '~') {
            q->seen.data = p;
            q->seen.len = cursor.data + cursor.len - p;
            cursor.len = p - 1 - cursor.data;
            break;
        }

        if (!((p[-1] >= '0' && p[-1] <= '9')
              || (p[-1] >= 'a' && p[-1] <= 'f')))
        {
            break;
        }
    }

    if (q->seen.len % NGX_HTTP_IDEM_SEEN_LEN
        || q->seen.len > NGX_HTTP_IDEM_SEEN_LEN * NGX_HTTP_IDEM_SEEN_MAX
        || cursor.len >= NGX_HTTP_IDEM_CURSOR_MAX)
    {
        goto invalid;
    }

    q->cursor = cursor;

    return NGX_OK;

invalid:

    return ngx_http_idem_admin_invalid(r, rc, "CURSOR_INVALID",
                             "\"cursor\" is what the page before said, as it "
                             "is.");
}


/*
 * Computes the record id as for a request: the default scope is the host, and
 * the quotes around a key are removed.
 */

ngx_int_t
ngx_http_idem_admin_key(ngx_http_request_t *r, ngx_str_t *args, u_char *id,
    u_char *hash, ngx_str_t *scope)
{
    u_char      *buf;
    ngx_str_t    fields[2], key;
    const char  *reason;

    static const ngx_http_idem_key_format_t  any = {
        NGX_HTTP_IDEM_KEY_STRING, 1, NGX_MAX_SIZE_T_VALUE, 0
    };

    fields[1] = args[NGX_HTTP_IDEM_ARG_KEY];

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

    *scope = args[NGX_HTTP_IDEM_ARG_SCOPE];

    if (scope->data == NULL) {
        *scope = r->headers_in.server;
    }

    fields[0] = *scope;

    ngx_http_idem_digest_fields(id, fields, 2);

    if (hash) {
        ngx_http_idem_digest_plain(hash, fields[1].data, fields[1].len);
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_admin_selected(ngx_http_request_t *r, ngx_str_t *args,
    ngx_str_t *record, ngx_str_t *hash)
{
    u_char     id[NGX_HTTP_IDEM_ID_LEN], key[NGX_HTTP_IDEM_HASH_LEN];
    ngx_int_t  rc;
    ngx_str_t  scope;

    record->len = 0;
    hash->len = 0;

    if (args[NGX_HTTP_IDEM_ARG_RECORD].data) {
        rc = ngx_http_idem_id_parse(args[NGX_HTTP_IDEM_ARG_RECORD].data,
                                    args[NGX_HTTP_IDEM_ARG_RECORD].len, id);

        if (rc != NGX_OK) {
            return rc;
        }

    } else {
        rc = ngx_http_idem_admin_key(r, args, id, key, &scope);

        if (rc != NGX_OK) {
            return (rc == NGX_DECLINED) ? NGX_OK : rc;
        }

        /* the hash of a key is the same in every scope, its record is not */

        if (args[NGX_HTTP_IDEM_ARG_SCOPE].data == NULL) {
            hash->len = ngx_hex_dump(hash->data, key, sizeof(key))
                        - hash->data;
        }
    }

    record->len = ngx_hex_dump(record->data, id, sizeof(id)) - record->data;

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
            && !ngx_http_idem_admin_same(&q->bounded[i], &labels[i])
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
    return a->len == 0 || ngx_http_idem_same_text(a, b);
}
