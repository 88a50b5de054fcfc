
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Parses what servers report about the topology, and computes the slot of a
 * key.  These are pure functions on bytes and replies.
 *
 * Replies are not trusted: a reply that is invalid in any part is rejected as
 * a whole, before anything is changed.
 *
 * Called by the topologies.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_redis_topology.h"


#define NGX_REDIS_HOST_MAX  255

/* CRC-16/XMODEM: x^16 + x^12 + x^5 + 1 */
#define NGX_REDIS_CRC       0x1021


static ngx_int_t ngx_redis_host(ngx_str_t *host);
static ngx_int_t ngx_redis_addr(u_char *digits, size_t len, in_port_t *port,
    ngx_str_t *host);


/*
 * If a key has a hash tag, only the bytes between the first "{" and the next
 * "}" count, unless there are none.
 */

ngx_uint_t
ngx_redis_slot(u_char *key, size_t len)
{
    u_char  *p, *q, *last;

    last = key + len;

    p = ngx_strlchr(key, last, '{');
    q = p ? ngx_strlchr(p, last, '}') : NULL;

    if (q && q > p + 1) {
        key = p + 1;
        last = q;
    }

    return ngx_redis_crc16(key, last) % NGX_REDIS_SLOTS;
}


uint16_t
ngx_redis_crc16(u_char *p, u_char *last)
{
    uint16_t    crc;
    ngx_uint_t  i, n;

    static uint16_t  table[256];

    if (table[1] == 0) {
        for (i = 0; i < 256; i++) {
            crc = (uint16_t) (i << 8);

            for (n = 0; n < 8; n++) {
                crc = (uint16_t) ((crc & 0x8000) ? (crc << 1) ^ NGX_REDIS_CRC
                                                 : crc << 1);
            }

            table[i] = crc;
        }
    }

    for (crc = 0; p < last; p++) {
        crc = (uint16_t) ((crc << 8) ^ table[(crc >> 8) ^ *p]);
    }

    return crc;
}


/* NGX_OK: a valid host, or empty if the server did not report its own */

static ngx_int_t
ngx_redis_host(ngx_str_t *host)
{
    size_t  i;

    if (host->len > 2 && host->data[0] == '['
        && host->data[host->len - 1] == ']')
    {
        host->data++;
        host->len -= 2;
    }

    if (host->len == 1 && host->data[0] == '?') {
        host->len = 0;
    }

    if (host->len > NGX_REDIS_HOST_MAX) {
        return NGX_ERROR;
    }

    for (i = 0; i < host->len; i++) {
        if (!((host->data[i] >= '0' && host->data[i] <= '9')
              || (host->data[i] >= 'a' && host->data[i] <= 'z')
              || (host->data[i] >= 'A' && host->data[i] <= 'Z')
              || host->data[i] == '.' || host->data[i] == '-'
              || host->data[i] == '_' || host->data[i] == ':'
              || host->data[i] == '%'))
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* checks a host, and a port in decimal digits */

static ngx_int_t
ngx_redis_addr(u_char *digits, size_t len, in_port_t *port, ngx_str_t *host)
{
    ngx_int_t  n;

    n = ngx_atoi(digits, len);

    if (n <= 0 || n > 65535) {
        return NGX_ERROR;
    }

    *port = (in_port_t) n;

    return ngx_redis_host(host);
}


/*
 * "MOVED <slot> <host>:<port>" or "ASK ...".  NGX_DECLINED: another error;
 * NGX_ERROR: an invalid redirect
 */

ngx_int_t
ngx_redis_redirect(redisReply *reply, ngx_redis_redirect_t *to)
{
    u_char    *p, *last, *space, *colon;
    ngx_int_t  n;

    if (reply->type != REDIS_REPLY_ERROR) {
        return NGX_DECLINED;
    }

    p = (u_char *) reply->str;
    last = p + reply->len;

    if (ngx_strncmp(p, "MOVED ", 6) == 0) {
        to->ask = 0;
        p += 6;

    } else if (ngx_strncmp(p, "ASK ", 4) == 0) {
        to->ask = 1;
        p += 4;

    } else {
        return NGX_DECLINED;
    }

    for (space = p; space < last && *space != ' '; space++) { /* void */ }

    n = ngx_atoi(p, space - p);

    if (n == NGX_ERROR || n >= NGX_REDIS_SLOTS || space == last) {
        return NGX_ERROR;
    }

    to->slot = (ngx_uint_t) n;

    /* IPv6 addresses contain colons and have no brackets */

    p = space + 1;

    for (colon = last; colon > p && colon[-1] != ':'; colon--) { /* void */ }

    if (colon == p) {
        return NGX_ERROR;
    }

    to->host.data = p;
    to->host.len = colon - 1 - p;

    return ngx_redis_addr(colon, last - colon, &to->port, &to->host);
}


/*
 * A range in the reply to CLUSTER SLOTS: { first, last, master, replicas ...
 * }. NGX_ERROR: it is invalid
 */

ngx_int_t
ngx_redis_range(redisReply *reply, ngx_uint_t n, ngx_redis_range_t *range)
{
    ngx_uint_t   i;
    redisReply  *r;

    if (reply->type != REDIS_REPLY_ARRAY
        || n >= (ngx_uint_t) reply->elements)
    {
        return NGX_ERROR;
    }

    r = reply->element[n];

    if (r->type != REDIS_REPLY_ARRAY || r->elements < 3
        || r->element[0]->type != REDIS_REPLY_INTEGER
        || r->element[1]->type != REDIS_REPLY_INTEGER
        || r->element[0]->integer < 0
        || r->element[0]->integer > r->element[1]->integer
        || r->element[1]->integer >= NGX_REDIS_SLOTS)
    {
        return NGX_ERROR;
    }

    range->first = (ngx_uint_t) r->element[0]->integer;
    range->last = (ngx_uint_t) r->element[1]->integer;
    range->reply = r;
    range->members = (ngx_uint_t) r->elements - 2;

    for (i = 2; i < (ngx_uint_t) r->elements; i++) {
        if (r->element[i]->type != REDIS_REPLY_ARRAY
            || r->element[i]->elements < 2)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/*
 * A member of a range, { host, port, ... }; the first one is the master.
 * NGX_DECLINED: it has no usable port
 */

ngx_int_t
ngx_redis_member(ngx_redis_range_t *range, ngx_uint_t n, ngx_str_t *host,
    in_port_t *port)
{
    redisReply  *r;

    if (n >= range->members) {
        return NGX_ERROR;
    }

    r = range->reply->element[2 + n];

    if (r->element[1]->type != REDIS_REPLY_INTEGER
        || r->element[1]->integer < 0 || r->element[1]->integer > 65535)
    {
        return NGX_ERROR;
    }

    *port = (in_port_t) r->element[1]->integer;

    if (r->element[0]->type == REDIS_REPLY_NIL) {
        ngx_str_null(host);

    } else if (r->element[0]->type == REDIS_REPLY_STRING) {
        host->data = (u_char *) r->element[0]->str;
        host->len = (size_t) r->element[0]->len;

        if (ngx_redis_host(host) != NGX_OK) {
            return NGX_ERROR;
        }

    } else {
        return NGX_ERROR;
    }

    return *port ? NGX_OK : NGX_DECLINED;
}


/* checks the whole reply to CLUSTER SLOTS */

ngx_int_t
ngx_redis_slots_check(redisReply *reply)
{
    in_port_t          port;
    ngx_str_t          host;
    ngx_uint_t         i, n;
    ngx_redis_range_t  range;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0) {
        return NGX_ERROR;
    }

    for (i = 0; i < (ngx_uint_t) reply->elements; i++) {

        if (ngx_redis_range(reply, i, &range) != NGX_OK) {
            return NGX_ERROR;
        }

        for (n = 0; n < range.members; n++) {
            if (ngx_redis_member(&range, n, &host, &port) == NGX_ERROR) {
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


/*
 * The reply to SENTINEL GET-MASTER-ADDR-BY-NAME: { host, port }.
 * NGX_DECLINED: the sentinel does not know the master
 */

ngx_int_t
ngx_redis_master_addr(redisReply *reply, ngx_str_t *host, in_port_t *port)
{
    redisReply  *r;

    if (reply->type == REDIS_REPLY_NIL) {
        return NGX_DECLINED;
    }

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2
        || reply->element[0]->type != REDIS_REPLY_STRING
        || reply->element[1]->type != REDIS_REPLY_STRING)
    {
        return NGX_ERROR;
    }

    host->data = (u_char *) reply->element[0]->str;
    host->len = (size_t) reply->element[0]->len;

    r = reply->element[1];

    if (ngx_redis_addr((u_char *) r->str, (size_t) r->len, port, host)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return host->len ? NGX_OK : NGX_ERROR;
}


/* the epoch in the reply to SENTINEL MASTER; NGX_REDIS_NO_EPOCH if there is
   none */

int64_t
ngx_redis_config_epoch(redisReply *reply)
{
    off_t      n;
    ngx_str_t  epoch;

    ngx_redis_value(reply, "config-epoch", &epoch);

    n = ngx_atoof(epoch.data, epoch.len);

    return (n == NGX_ERROR) ? NGX_REDIS_NO_EPOCH : n;
}


/* the value of a name in a list of names and values; empty: there is none */

void
ngx_redis_value(redisReply *reply, const char *name, ngx_str_t *value)
{
    ngx_uint_t    i;
    redisReply  **pair;

    ngx_str_null(value);

    if (reply->type != REDIS_REPLY_ARRAY) {
        return;
    }

    for (i = 0; i + 1 < (ngx_uint_t) reply->elements; i += 2) {
        pair = &reply->element[i];

        if (pair[0]->type == REDIS_REPLY_STRING
            && pair[1]->type == REDIS_REPLY_STRING
            && ngx_strcmp(pair[0]->str, name) == 0)
        {
            value->data = (u_char *) pair[1]->str;
            value->len = (size_t) pair[1]->len;
            return;
        }
    }
}


/*
 * An event of a sentinel is words that are separated by single spaces.  "form"
 * has a letter for each: n is the name of a master, h and p are an address.
 * NGX_DECLINED: it is about another master
 */

ngx_int_t
ngx_redis_event(ngx_str_t *text, const char *form, ngx_str_t *name,
    ngx_str_t *host, in_port_t *port)
{
    u_char     *p, *last;
    ngx_str_t   word, of, digits;

    ngx_str_null(&of);
    ngx_str_null(&digits);

    p = text->data;
    last = p + text->len;

    for ( /* void */ ; *form; form++) {

        for (word.data = p; p < last && *p != ' '; p++) { /* void */ }

        word.len = p - word.data;

        if (word.len == 0 || (p == last) != (form[1] == '\0')) {
            return NGX_ERROR;
        }

        switch (*form) {

        case 'n':
            of = word;
            break;

        case 'h':
            *host = word;
            break;

        case 'p':
            digits = word;
            break;
        }

        p++;
    }

    if (of.len != name->len
        || ngx_strncmp(of.data, name->data, name->len) != 0)
    {
        return NGX_DECLINED;
    }

    if (ngx_redis_addr(digits.data, digits.len, port, host) != NGX_OK) {
        return NGX_ERROR;
    }

    return host->len ? NGX_OK : NGX_ERROR;
}
