
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The stored form of a record: the value of one key, a string.
 *
 *   at   length
 *    0    2   "id"
 *    2    1   version
 *    3    1   state: in progress, completed, unusable
 *    4    1   reason, if unusable
 *    5    1   kind: 1 under hold, plus 2 if taken over
 *    6    1   1: a request is waiting for it
 *    7    1   0
 *    8    8   grace, ms
 *   16    8   the first bytes of the id
 *   24   16   token of its writer
 *   40   69   claim
 *  109    4   length of the details
 *  113    4   length of the response
 *  117        details, response
 *
 * The time to live of the key, less the grace, is what is left of the lease
 * of a record in progress, and of the ttl of any other record.  A record in
 * progress is called a lock here.  A holder knows the bytes of its lock,
 * except for two that a script may have set: the mark of a waiter, and the
 * kind of a lock that was taken over from another holder.
 *
 * Numbers are in network byte order.  The scripts access some fields by
 * offset, so the offsets do not change between versions.  Version 1 was a
 * list of strings, see upgrade.lua.
 *
 * All fields are checked here before anything else uses them.  The reply to a
 * native command has no tag, so the record's id shows whether it is the one
 * that was requested.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem_number.h"
#include "store/redis/ngx_http_idem_redis.h"


#define NGX_HTTP_IDEM_REDIS_AT_VERSION   2
#define NGX_HTTP_IDEM_REDIS_AT_STATE     3
#define NGX_HTTP_IDEM_REDIS_AT_REASON    4
#define NGX_HTTP_IDEM_REDIS_AT_WAITED    6
#define NGX_HTTP_IDEM_REDIS_AT_GRACE     8
#define NGX_HTTP_IDEM_REDIS_AT_ID        16
#define NGX_HTTP_IDEM_REDIS_AT_TOKEN     24
#define NGX_HTTP_IDEM_REDIS_AT_CLAIM     40
#define NGX_HTTP_IDEM_REDIS_AT_DETAILS   109
#define NGX_HTTP_IDEM_REDIS_AT_RESPONSE  113

#define NGX_HTTP_IDEM_REDIS_ID_LEN       8


static u_char *ngx_http_idem_redis_record_head(u_char *p,
    ngx_http_idem_op_t *op, ngx_uint_t state, ngx_uint_t reason,
    uint64_t grace, size_t details, size_t size);
static const char *ngx_http_idem_redis_record_form(ngx_str_t *record);
static const char *ngx_http_idem_redis_record_check(ngx_str_t *record);


/*
 * An unknown outcome that is not under hold has a lease, too, as a lock has.
 */

uint64_t
ngx_http_idem_redis_record_life(ngx_http_idem_op_t *op, uint64_t *grace)
{
    uint64_t  life, lease, ttl;

    ttl = ngx_min(op->ttl, NGX_HTTP_IDEM_REDIS_LIFE_MAX);
    lease = ngx_min(op->lease, NGX_HTTP_IDEM_REDIS_LIFE_MAX);

    if (op->kind != NGX_HTTP_IDEM_OP_COMMIT) {
        life = ngx_http_idem_lock_life(op);
        *grace = ngx_min(life - op->lease, NGX_HTTP_IDEM_REDIS_LIFE_MAX);
        life = lease + *grace;

    } else if (ngx_http_idem_op_retryable(op)) {
        life = ngx_max(ngx_max(ttl, lease), 1);
        *grace = life - lease;

    } else {
        *grace = ngx_min(op->grace, NGX_HTTP_IDEM_REDIS_LIFE_MAX);

        if (op->for_waiters && ttl + *grace < NGX_HTTP_IDEM_REDIS_WAITERS) {
            *grace = NGX_HTTP_IDEM_REDIS_WAITERS - ttl;
        }

        life = ngx_max(ttl + *grace, 1);
    }

    return life;
}


/*
 * The lock of this operation's holder, without the details.  A commit and a
 * release may have another ttl than the begin had, so they use its grace.
 */

u_char *
ngx_http_idem_redis_record_lock(u_char *p, ngx_http_idem_op_t *op)
{
    uint64_t  grace;

    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT
        || op->kind == NGX_HTTP_IDEM_OP_RELEASE)
    {
        grace = op->lock.grace;

    } else {
        (void) ngx_http_idem_redis_record_life(op, &grace);
    }

    return ngx_http_idem_redis_record_head(p, op, NGX_HTTP_IDEM_IN_PROGRESS,
                                           NGX_HTTP_IDEM_REASON_NONE, grace,
                                           op->details.len, 0);
}


/* the record of a commit, without the details; the response has "size"
   bytes */

u_char *
ngx_http_idem_redis_record_outcome(u_char *p, ngx_http_idem_op_t *op,
    ngx_str_t *details, size_t size)
{
    uint64_t  grace;

    (void) ngx_http_idem_redis_record_life(op, &grace);

    return ngx_http_idem_redis_record_head(p, op, op->state, op->reason,
                                           grace, details->len, size);
}


static u_char *
ngx_http_idem_redis_record_head(u_char *p, ngx_http_idem_op_t *op,
    ngx_uint_t state, ngx_uint_t reason, uint64_t grace, size_t details,
    size_t size)
{
    *p++ = 'i';
    *p++ = 'd';
    *p++ = NGX_HTTP_IDEM_REDIS_VERSION;
    *p++ = (u_char) state;
    *p++ = (u_char) reason;
    *p++ = op->hold;
    *p++ = 0;
    *p++ = 0;

    p = ngx_http_idem_put64(p, grace);
    p = ngx_cpymem(p, op->id, NGX_HTTP_IDEM_REDIS_ID_LEN);
    p = ngx_cpymem(p, op->token, NGX_HTTP_IDEM_TOKEN_LEN);

    ngx_http_idem_claim_encode(p, op->claim);
    p += NGX_HTTP_IDEM_CLAIM_LEN;

    p = ngx_http_idem_put32(p, (uint32_t) details);

    return ngx_http_idem_put32(p, (uint32_t) size);
}


ngx_uint_t
ngx_http_idem_redis_record_other(ngx_http_idem_op_t *op, ngx_str_t *record)
{
    return ngx_http_idem_redis_record_check(record) == NULL
           && ngx_memcmp(record->data + NGX_HTTP_IDEM_REDIS_AT_ID,
                         op->id, NGX_HTTP_IDEM_REDIS_ID_LEN)
              != 0;
}


ngx_uint_t
ngx_http_idem_redis_record_is_lock(ngx_http_idem_op_t *op, ngx_str_t *record)
{
    u_char  head[NGX_HTTP_IDEM_REDIS_RECORD_LEN];

    if (record->len != sizeof(head) + op->details.len) {
        return 0;
    }

    (void) ngx_http_idem_redis_record_lock(head, op);

    return ngx_memcmp(record->data, head, sizeof(head)) == 0
           && (op->details.len == 0
               || ngx_memcmp(record->data + sizeof(head), op->details.data,
                             op->details.len)
                  == 0);
}


ngx_uint_t
ngx_http_idem_redis_record_ours(ngx_http_idem_op_t *op, ngx_str_t *record)
{
    return ngx_http_idem_redis_record_check(record) == NULL
           && record->data[NGX_HTTP_IDEM_REDIS_AT_STATE]
              == NGX_HTTP_IDEM_IN_PROGRESS
           && ngx_memcmp(record->data + NGX_HTTP_IDEM_REDIS_AT_TOKEN,
                         op->token, NGX_HTTP_IDEM_TOKEN_LEN)
              == 0;
}


ngx_uint_t
ngx_http_idem_redis_record_waited(ngx_str_t *record)
{
    return record->data[NGX_HTTP_IDEM_REDIS_AT_WAITED] == 1;
}


void
ngx_http_idem_redis_record_details(ngx_str_t *record, ngx_str_t *details)
{
    details->data = record->data + NGX_HTTP_IDEM_REDIS_RECORD_LEN;
    details->len = ngx_http_idem_get32(record->data
                                   + NGX_HTTP_IDEM_REDIS_AT_DETAILS);
}


ngx_uint_t
ngx_http_idem_redis_record_usable(ngx_http_idem_op_t *op, ngx_str_t *record,
    int64_t life)
{
    uint64_t    grace, ours;
    ngx_uint_t  state;

    if (ngx_http_idem_redis_record_check(record)) {
        return 0;
    }

    grace = ngx_http_idem_get64(record->data + NGX_HTTP_IDEM_REDIS_AT_GRACE);
    state = record->data[NGX_HTTP_IDEM_REDIS_AT_STATE];

    if (life == NGX_HTTP_IDEM_REDIS_LIFE_UNKNOWN) {

        /* an unusable record is answered with the time that is left, so its
           life must be known */

        return state == NGX_HTTP_IDEM_COMPLETED && grace == 0;
    }

    if (life < 0 || (uint64_t) life <= grace) {
        return 0;
    }

    /* a script marks the record for the waiter, and shortens its life if the
       clock of the server was set back */

    return state != NGX_HTTP_IDEM_IN_PROGRESS
           || (!op->may_wait
               && (uint64_t) life <= ngx_http_idem_redis_record_life(op, &ours)
               && !ngx_http_idem_redis_record_ours(op, record));
}


const char *
ngx_http_idem_redis_record_found(ngx_http_idem_op_t *op, ngx_str_t *record,
    int64_t life)
{
    uint64_t                grace;
    const char             *wrong;
    ngx_http_idem_found_t  *found;

    found = &op->found;
    op->result = NGX_HTTP_IDEM_FOUND;

    wrong = ngx_http_idem_redis_record_check(record);

    if (wrong) {
        return wrong;
    }

    if (life < 0 && life != NGX_HTTP_IDEM_REDIS_LIFE_UNKNOWN) {
        return "it has no expiry";
    }

    if (ngx_http_idem_redis_record_other(op, record)) {
        return "it is another one's";
    }

    wrong = ngx_http_idem_redis_record_peek(record, found, &grace);

    if (wrong) {
        return wrong;
    }

    found->verify = 1;
    found->response.data = found->details.data + found->details.len;
    found->response.len = ngx_http_idem_get32(
                            record->data + NGX_HTTP_IDEM_REDIS_AT_RESPONSE);

    if (found->state != NGX_HTTP_IDEM_UNUSABLE) {
        found->reason = NGX_HTTP_IDEM_REASON_NONE;

    } else if (found->reason <= NGX_HTTP_IDEM_REASON_NONE
               || found->reason > NGX_HTTP_IDEM_REASON_EVICTED)
    {
        return "its reason is corrupt";
    }

    if (found->state == NGX_HTTP_IDEM_COMPLETED && found->response.len == 0) {
        return "its response is missing";
    }

    if (grace > NGX_HTTP_IDEM_REDIS_LIFE_MAX) {
        return "its lease or ttl is corrupt";
    }

    if (life == NGX_HTTP_IDEM_REDIS_LIFE_UNKNOWN) {
        /* the record lives as long as its key; no caller needs the time */
        return NULL;
    }

    if ((uint64_t) life > grace) {
        found->left = (ngx_msec_t) (life - grace);

    } else if (found->state == NGX_HTTP_IDEM_IN_PROGRESS) {

        /* the lease has expired, and the record is under hold or of another
           request */

        found->left = (ngx_msec_t) life;
        found->state = NGX_HTTP_IDEM_UNUSABLE;
        found->reason = NGX_HTTP_IDEM_REASON_UNKNOWN;
    }

    return NULL;
}


/* the fields of a record except for the response and the time that is left */

const char *
ngx_http_idem_redis_record_peek(ngx_str_t *head,
    ngx_http_idem_found_t *found, uint64_t *grace)
{
    u_char      *p;
    const char  *wrong;

    p = head->data;

    ngx_memzero(found, sizeof(ngx_http_idem_found_t));

    wrong = ngx_http_idem_redis_record_form(head);

    if (wrong) {
        return wrong;
    }

    if (ngx_http_idem_claim_decode(p + NGX_HTTP_IDEM_REDIS_AT_CLAIM,
                                   NGX_HTTP_IDEM_CLAIM_LEN, &found->claim)
        != NGX_OK)
    {
        return "its claim is corrupt";
    }

    if (p[NGX_HTTP_IDEM_REDIS_AT_STATE] < NGX_HTTP_IDEM_IN_PROGRESS
        || p[NGX_HTTP_IDEM_REDIS_AT_STATE] > NGX_HTTP_IDEM_UNUSABLE)
    {
        return "its state is corrupt";
    }

    found->state = p[NGX_HTTP_IDEM_REDIS_AT_STATE];
    found->reason = p[NGX_HTTP_IDEM_REDIS_AT_REASON];

    ngx_http_idem_redis_record_details(head, &found->details);

    *grace = ngx_http_idem_get64(p + NGX_HTTP_IDEM_REDIS_AT_GRACE);

    return NULL;
}


ngx_uint_t
ngx_http_idem_redis_record_free(ngx_str_t *head)
{
    u_char  nobody[NGX_HTTP_IDEM_TOKEN_LEN];

    ngx_memzero(nobody, sizeof(nobody));

    return ngx_memcmp(head->data + NGX_HTTP_IDEM_REDIS_AT_TOKEN, nobody,
                      sizeof(nobody))
           == 0;
}


/* whether the value begins as a record of a version that can be read */

static const char *
ngx_http_idem_redis_record_form(ngx_str_t *record)
{
    u_char  *p, version;

    p = record->data;

    if (record->len <= NGX_HTTP_IDEM_REDIS_AT_VERSION
        || p[0] != 'i' || p[1] != 'd')
    {
        return "it is not one of ours";
    }

    version = p[NGX_HTTP_IDEM_REDIS_AT_VERSION];

    if (version + 1 < NGX_HTTP_IDEM_REDIS_VERSION
        || version > NGX_HTTP_IDEM_REDIS_VERSION + 1)
    {
        return "it is of a version that this one does not read";
    }

    if (record->len < NGX_HTTP_IDEM_REDIS_RECORD_LEN) {
        return "it is cut off";
    }

    return NULL;
}


/* whether it is complete, too */

static const char *
ngx_http_idem_redis_record_check(ngx_str_t *record)
{
    u_char      *p;
    uint64_t     size;
    const char  *wrong;

    wrong = ngx_http_idem_redis_record_form(record);

    if (wrong) {
        return wrong;
    }

    p = record->data;

    size = (uint64_t) ngx_http_idem_get32(p + NGX_HTTP_IDEM_REDIS_AT_DETAILS)
           + ngx_http_idem_get32(p + NGX_HTTP_IDEM_REDIS_AT_RESPONSE);

    if (size != record->len - NGX_HTTP_IDEM_REDIS_RECORD_LEN) {
        return "its response is cut off";
    }

    return NULL;
}
