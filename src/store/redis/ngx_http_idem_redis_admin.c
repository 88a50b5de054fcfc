
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Administration of a Redis store: get, remove and list records.
 *
 * Each of these operations is a script, so it takes one round trip.  It is
 * sent like any other operation: to the server of the record, again if the
 * connection breaks, and elsewhere if the slot has moved.  A list visits the
 * servers one after the other, with one SCAN step for each slice; its cursor
 * is "<server> <cursor of SCAN>".  The servers of a cluster are visited in
 * the order of their names.  A server that leaves meanwhile is skipped, and
 * its records are found at their new server.
 *
 * Called when an operation is encoded and when it has a reply.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem_number.h"
#include "store/redis/ngx_http_idem_redis.h"


/* COUNT of SCAN: a slice takes the server some hundred microseconds */
#define NGX_HTTP_IDEM_REDIS_SLICE     100

/* the first bytes of a record: its fields, the start of its details, and the
   status */
#define NGX_HTTP_IDEM_REDIS_HEAD_LEN                                          \
    (NGX_HTTP_IDEM_REDIS_RECORD_LEN + NGX_HTTP_IDEM_ENTRY_DETAILS             \
     + NGX_HTTP_IDEM_STATUS_PEEK)

/* how long a deleted completed or unusable record leaves a tombstone, ms */
#define NGX_HTTP_IDEM_REDIS_TOMBSTONE 600000

/* the same if there was no record: a host that is down may have a commit to
   write, ms */
#define NGX_HTTP_IDEM_REDIS_ABSENT    (24 * 3600 * 1000)

/* version, first bytes of the id, claim */
#define NGX_HTTP_IDEM_REDIS_EMPTY_LEN (1 + 8 + NGX_HTTP_IDEM_CLAIM_LEN)

/* state and time of a record that was listed */
#define NGX_HTTP_IDEM_REDIS_LISTED_LEN  (1 + 8)

/* length of a record in the reply of a list, without its first bytes */
#define NGX_HTTP_IDEM_REDIS_ITEM_LEN  (2 * NGX_HTTP_IDEM_ID_LEN + 8 + 4 + 2)


static ngx_uint_t ngx_http_idem_redis_list_cursor(ngx_str_t *cursor,
    ngx_str_t *name, ngx_str_t *scan);
static u_char *ngx_http_idem_redis_put_list(u_char *p,
    ngx_http_idem_redis_call_t *call);
static ngx_int_t ngx_http_idem_redis_list_result(
    ngx_http_idem_redis_call_t *call, u_char *p, u_char *last);
static void ngx_http_idem_redis_list_next(ngx_http_idem_redis_call_t *call,
    ngx_str_t *scan);
static ngx_int_t ngx_http_idem_redis_entry(ngx_http_idem_op_t *op,
    u_char *id, int64_t life, size_t size, ngx_str_t *head);
static ngx_int_t ngx_http_idem_redis_entry_fill(ngx_http_idem_op_t *op,
    ngx_http_idem_found_t *found, u_char *id, size_t size,
    ngx_str_t *head);


#define ngx_http_idem_redis_op(c)  ((ngx_http_idem_op_t *) (c)->call.data)


/* only a cluster has several servers; otherwise any key leads to the
   server */

ngx_int_t
ngx_http_idem_redis_list_node(ngx_http_idem_redis_t *redis,
    ngx_http_idem_redis_call_t *call)
{
    ngx_str_t            scan;
    ngx_http_idem_op_t  *op;

    op = call->call.data;

    if (op->list->cursor.len
        && !ngx_http_idem_redis_list_cursor(&op->list->cursor,
                                            &call->list_node, &scan))
    {
        op->error = "the cursor is not one of this store";
        op->bad_record = 1;
        return NGX_ERROR;
    }

    if (redis->client.cluster) {
        call->call.node_name = &call->list_node;
    }

    return NGX_OK;
}


/* "<server> <cursor of SCAN>"; 0: invalid */

static ngx_uint_t
ngx_http_idem_redis_list_cursor(ngx_str_t *cursor, ngx_str_t *name,
    ngx_str_t *scan)
{
    u_char  *p, *last;

    last = cursor->data + cursor->len;
    p = cursor->len ? ngx_strlchr(cursor->data, last, ' ') : NULL;

    if (p == NULL || p + 1 == last || last - p > 24) {
        return 0;
    }

    name->data = cursor->data;
    name->len = p - cursor->data;

    scan->data = p + 1;
    scan->len = last - p - 1;

    for (p++; p < last; p++) {
        if (*p < '0' || *p > '9') {
            return 0;
        }
    }

    return 1;
}


/* space for the arguments of the scripts */

size_t
ngx_http_idem_redis_admin_size(ngx_http_idem_redis_t *redis)
{
    return 2 * redis->prefix.len + NGX_HTTP_IDEM_CURSOR_MAX
           + NGX_HTTP_IDEM_REDIS_EMPTY_LEN + NGX_HTTP_IDEM_REDIS_LISTED_LEN;
}


/* the arguments after the tag */

u_char *
ngx_http_idem_redis_put_admin(u_char *p, ngx_http_idem_redis_call_t *call)
{
    size_t                  n;
    u_char                 *last;
    u_char                  empty[NGX_HTTP_IDEM_REDIS_EMPTY_LEN];
    u_char                  listed[NGX_HTTP_IDEM_REDIS_LISTED_LEN];
    ngx_str_t              *channel;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_claim_t   claim;

    op = ngx_http_idem_redis_op(call);

    if (op->kind == NGX_HTTP_IDEM_OP_LIST) {
        return ngx_http_idem_redis_put_list(p, call);
    }

    p = ngx_redis_put_number(p, NGX_HTTP_IDEM_REDIS_HEAD_LEN);

    if (op->kind == NGX_HTTP_IDEM_OP_GET) {
        return p;
    }

    channel = &call->call.redis->channel;

    p = ngx_redis_put(p, channel->data, channel->len);

    p = ngx_redis_put_number(p, NGX_HTTP_IDEM_REDIS_TOMBSTONE);
    p = ngx_redis_put_number(p, NGX_HTTP_IDEM_REDIS_ABSENT);

    ngx_memzero(&claim, sizeof(ngx_http_idem_claim_t));

    empty[0] = NGX_HTTP_IDEM_REDIS_VERSION;
    ngx_memcpy(&empty[1], op->id, 8);
    ngx_http_idem_claim_encode(&empty[9], &claim);

    p = ngx_redis_put(p, empty, sizeof(empty));

    /* without the state: that time in any state; none: whatever there is */

    listed[0] = (u_char) op->listed_state;
    last = ngx_http_idem_put64(&listed[1], op->listed_time);

    n = op->listed_state ? sizeof(listed) : op->listed_time ? 8 : 0;

    return ngx_redis_put(p, last - n, n);
}


/* glob characters in the prefix are escaped */

static u_char *
ngx_http_idem_redis_put_list(u_char *p, ngx_http_idem_redis_call_t *call)
{
    u_char                 *q;
    u_char                  pattern[2 * NGX_HTTP_IDEM_REDIS_PREFIX_MAX + 1];
    size_t                  i;
    ngx_str_t               name, scan;
    ngx_http_idem_redis_t  *redis;

    redis = call->call.redis->data;

    /* the server of the cursor is gone: start at the beginning of this one */

    if (!ngx_http_idem_redis_list_cursor(
              &ngx_http_idem_redis_op(call)->list->cursor, &name, &scan)
        || ngx_memn2cmp(name.data, call->call.conn->node->name.data,
                        name.len, call->call.conn->node->name.len)
           != 0)
    {
        ngx_str_set(&scan, "0");
    }

    q = pattern;

    for (i = 0; i < redis->prefix.len; i++) {
        if (ngx_strchr("*?[]\\", redis->prefix.data[i])) {
            *q++ = '\\';
        }

        *q++ = redis->prefix.data[i];
    }

    *q++ = '*';

    p = ngx_redis_put(p, scan.data, scan.len);
    p = ngx_redis_put(p, pattern, q - pattern);
    p = ngx_redis_put_number(p, NGX_HTTP_IDEM_REDIS_SLICE);
    p = ngx_redis_put_number(p, redis->prefix.len + 2 * NGX_HTTP_IDEM_ID_LEN);

    return ngx_redis_put_number(p, NGX_HTTP_IDEM_REDIS_HEAD_LEN);
}


/* "p" is after the code of the reply; NGX_ERROR: not a reply to this call */

ngx_int_t
ngx_http_idem_redis_admin_result(ngx_http_idem_redis_call_t *call,
    u_char code, u_char *p, u_char *last)
{
    size_t               size;
    int64_t              life;
    ngx_int_t            rc;
    ngx_str_t            head;
    ngx_http_idem_op_t  *op;

    op = call->call.data;

    if (op->kind == NGX_HTTP_IDEM_OP_LIST) {

        if (code == '0') {
            ngx_http_idem_op_error(op, "the user may not do that, give it "
                                       "+scan +strlen: it can't list "
                                       "records");
            op->denied = 1;
            return NGX_OK;
        }

        return ngx_http_idem_redis_list_result(call, p, last);
    }

    op->result = NGX_HTTP_IDEM_GONE;

    if (code == '0') {
        return NGX_OK;
    }

    if (code == '2') {

        /* this call has removed it before, and the reply was lost */

        if (call->call.tries > 1) {
            op->result = NGX_HTTP_IDEM_OK;
        }

        return NGX_OK;
    }

    if (last - p < 12) {
        return NGX_ERROR;
    }

    life = (int64_t) ngx_http_idem_get64(p);
    size = ngx_http_idem_get32(p + 8);

    head.data = p + 12;
    head.len = last - head.data;

    rc = ngx_http_idem_redis_entry(op, op->id, life, size, &head);

    if (rc == NGX_OK) {
        op->result = (op->kind == NGX_HTTP_IDEM_OP_GET)
                     ? NGX_HTTP_IDEM_FOUND : NGX_HTTP_IDEM_OK;

    } else if (rc == NGX_ABORT) {
        ngx_http_idem_op_bad_record(op, "its key holds something else");
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_redis_list_result(ngx_http_idem_redis_call_t *call,
    u_char *p, u_char *last)
{
    size_t               size, key;
    u_char               id[NGX_HTTP_IDEM_ID_LEN];
    int64_t              life;
    ngx_int_t            rc;
    ngx_str_t            scan, head;
    ngx_http_idem_op_t  *op;

    op = call->call.data;

    if (last - p < 2) {
        return NGX_ERROR;
    }

    scan.len = ngx_http_idem_get16(p);
    scan.data = p + 2;

    if ((size_t) (last - scan.data) < scan.len + 16 || scan.len > 20) {
        return NGX_ERROR;
    }

    op->result = NGX_HTTP_IDEM_OK;

    p = scan.data + scan.len;

    key = ngx_http_idem_redis_conf(op)->prefix.len + 2 * NGX_HTTP_IDEM_ID_LEN;

    op->list->held = 0;
    op->list->used = (size_t) ngx_http_idem_get64(p);
    op->list->size = (size_t) ngx_http_idem_get64(p + 8);

    for (p += 16; p < last; p = head.data + head.len) {
        if (last - p < NGX_HTTP_IDEM_REDIS_ITEM_LEN) {
            return NGX_ERROR;
        }

        rc = ngx_http_idem_id_parse(p, 2 * NGX_HTTP_IDEM_ID_LEN, id);

        p += 2 * NGX_HTTP_IDEM_ID_LEN;

        life = (int64_t) ngx_http_idem_get64(p);
        size = ngx_http_idem_get32(p + 8);

        head.len = ngx_http_idem_get16(p + 12);
        head.data = p + 14;

        if ((size_t) (last - head.data) < head.len) {
            return NGX_ERROR;
        }

        if (rc != NGX_OK) {
            continue;
        }

        op->list->held += key + size;

        if (ngx_http_idem_redis_entry(op, id, life, size, &head)
            == NGX_ERROR)
        {
            return NGX_OK;
        }
    }

    ngx_http_idem_redis_list_next(call, &scan);

    return NGX_OK;
}


static void
ngx_http_idem_redis_list_next(ngx_http_idem_redis_call_t *call,
    ngx_str_t *scan)
{
    ngx_str_t             *cursor;
    ngx_redis_node_t      *node;
    ngx_http_idem_list_t  *list;

    list = ngx_http_idem_redis_op(call)->list;
    cursor = &list->cursor;
    node = call->call.conn->node;

    cursor->len = 0;

    if (scan->len == 1 && scan->data[0] == '0') {
        node = call->call.redis->cluster
               ? ngx_redis_node_after(call->call.redis, &node->name, 0)
               : NULL;

        if (node == NULL) {
            return;
        }
    }

    cursor->data = list->next;
    cursor->len = ngx_snprintf(list->next, sizeof(list->next), "%V %V",
                               &node->name, scan)
                  - list->next;
}


/* NGX_DECLINED: no longer a record; NGX_ABORT: not of our form; NGX_ERROR: no
   memory */

static ngx_int_t
ngx_http_idem_redis_entry(ngx_http_idem_op_t *op, u_char *id, int64_t life,
    size_t size, ngx_str_t *head)
{
    u_char                 *p;
    uint64_t                grace;
    ngx_http_idem_found_t   found;

    p = head->data;

    if (life < 0 || ngx_http_idem_redis_record_peek(head, &found, &grace))
    {
        return NGX_ABORT;
    }

    found.left = (uint64_t) life > grace ? (ngx_msec_t) (life - grace) : 0;

    if (found.left == 0
        && found.state != NGX_HTTP_IDEM_IN_PROGRESS
        && (found.reason != NGX_HTTP_IDEM_REASON_UNKNOWN || p[5] == 1))
    {
        return NGX_DECLINED;
    }

    /* a lock that was released, and is left for the waiters */

    if (found.state == NGX_HTTP_IDEM_IN_PROGRESS && found.left == 0
        && ngx_http_idem_redis_record_free(head))
    {
        return NGX_DECLINED;
    }

    /* an unknown outcome outlives its lease */

    if (found.state == NGX_HTTP_IDEM_UNUSABLE
        && found.reason == NGX_HTTP_IDEM_REASON_UNKNOWN)
    {
        found.left = (ngx_msec_t) life;
    }

    return ngx_http_idem_redis_entry_fill(op, &found, id, size, head);
}


static ngx_int_t
ngx_http_idem_redis_entry_fill(ngx_http_idem_op_t *op,
    ngx_http_idem_found_t *found, u_char *id, size_t size, ngx_str_t *head)
{
    size_t                  details;
    u_char                 *p, *last;
    ngx_http_idem_entry_t  *entry;

    entry = ngx_http_idem_op_entry(op);
    if (entry == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(entry->id, id, NGX_HTTP_IDEM_ID_LEN);

    entry->state = found->state;
    entry->reason = found->reason;
    entry->claim = found->claim;
    entry->left = found->left;
    entry->hold = head->data[5] & 1;

    p = head->data + NGX_HTTP_IDEM_REDIS_RECORD_LEN;
    last = head->data + head->len;

    details = ngx_min(found->details.len, (size_t) (last - p));

    if (ngx_http_idem_entry_details(op, entry, p, details) != NGX_OK) {
        ngx_http_idem_op_error(op, "no memory for a list");
        return NGX_ERROR;
    }

    if (found->state != NGX_HTTP_IDEM_COMPLETED) {
        return NGX_OK;
    }

    entry->size = size - NGX_HTTP_IDEM_REDIS_RECORD_LEN - found->details.len;

    if (details == found->details.len) {
        p += details;
        entry->status = ngx_http_idem_response_status(p, last - p);
    }

    return NGX_OK;
}
