
/*
 * A record as it is in Redis: the value of one key, a string.
 *
 *   at   length
 *    0    2      "id"
 *    2    1      version
 *    3    1      state
 *    4    1      reason, of one that is unusable
 *    5    1      1: under hold
 *    6    1      1: somebody waits
 *    7   16      token of its writer
 *   23    8      grace, ms: what the key has to live less this is what is left
 *                of its lease, or of its ttl
 *   31    4      length of the response
 *   35   69      claim
 *  104           the response, then the details, up to its end
 *
 * Numbers are in network order.  The scripts read some of it by place, and
 * copy the details on; so the places stay from one version to the next.
 *
 * Whatever is read from a record is checked here, before anybody sees it.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "record/ngx_http_idempotency_number.h"
#include "store/redis/ngx_http_idempotency_redis.h"


#define NGX_HTTP_IDEMPOTENCY_REDIS_AT_VERSION   2
#define NGX_HTTP_IDEMPOTENCY_REDIS_AT_STATE     3
#define NGX_HTTP_IDEMPOTENCY_REDIS_AT_REASON    4
#define NGX_HTTP_IDEMPOTENCY_REDIS_AT_TOKEN     7
#define NGX_HTTP_IDEMPOTENCY_REDIS_AT_GRACE     23
#define NGX_HTTP_IDEMPOTENCY_REDIS_AT_SIZE      31
#define NGX_HTTP_IDEMPOTENCY_REDIS_AT_CLAIM     35


static const char *ngx_http_idempotency_redis_record_check(
    ngx_str_t *record, int64_t life);


u_char *
ngx_http_idempotency_redis_record_head(u_char *p,
    ngx_http_idempotency_op_t *op, uint64_t grace, size_t size)
{
    *p++ = 'i';
    *p++ = 'd';
    *p++ = NGX_HTTP_IDEMPOTENCY_REDIS_VERSION;

    if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_COMMIT) {
        *p++ = (u_char) op->state;
        *p++ = (u_char) op->reason;
        *p++ = 0;

    } else {
        *p++ = NGX_HTTP_IDEMPOTENCY_IN_PROGRESS;
        *p++ = NGX_HTTP_IDEMPOTENCY_REASON_NONE;
        *p++ = op->hold;
    }

    *p++ = 0;

    p = ngx_cpymem(p, op->token, NGX_HTTP_IDEMPOTENCY_TOKEN_LEN);
    p = ngx_http_idempotency_put64(p, grace);
    p = ngx_http_idempotency_put32(p, (uint32_t) size);

    ngx_http_idempotency_claim_encode(p, op->claim);

    return p + NGX_HTTP_IDEMPOTENCY_CLAIM_LEN;
}


ngx_uint_t
ngx_http_idempotency_redis_record_lasts(ngx_http_idempotency_op_t *op,
    ngx_str_t *record, int64_t life)
{
    u_char  *p;

    if (ngx_http_idempotency_redis_record_check(record, life) != NULL) {
        return 0;
    }

    p = record->data;

    return (uint64_t) life > ngx_http_idempotency_get64(p
                                     + NGX_HTTP_IDEMPOTENCY_REDIS_AT_GRACE)
           && ngx_memcmp(p + NGX_HTTP_IDEMPOTENCY_REDIS_AT_TOKEN, op->token,
                         NGX_HTTP_IDEMPOTENCY_TOKEN_LEN)
              != 0;
}


const char *
ngx_http_idempotency_redis_record_found(ngx_http_idempotency_op_t *op,
    ngx_str_t *record, int64_t life)
{
    size_t                         size, rest;
    u_char                        *p;
    uint64_t                       grace;
    ngx_uint_t                     reason;
    const char                    *wrong;
    ngx_http_idempotency_found_t  *found;

    found = &op->found;

    ngx_memzero(found, sizeof(ngx_http_idempotency_found_t));

    op->result = NGX_HTTP_IDEMPOTENCY_FOUND;
    found->verify = 1;

    wrong = ngx_http_idempotency_redis_record_check(record, life);

    if (wrong) {
        return wrong;
    }

    p = record->data;

    if (ngx_http_idempotency_claim_decode(
                                p + NGX_HTTP_IDEMPOTENCY_REDIS_AT_CLAIM,
                                NGX_HTTP_IDEMPOTENCY_CLAIM_LEN, &found->claim)
        != NGX_OK)
    {
        return "its claim is corrupt";
    }

    grace = ngx_http_idempotency_get64(p
                                     + NGX_HTTP_IDEMPOTENCY_REDIS_AT_GRACE);

    found->left = (uint64_t) life > grace ? (ngx_msec_t) (life - grace)
                                          : (ngx_msec_t) life;

    size = ngx_http_idempotency_get32(p + NGX_HTTP_IDEMPOTENCY_REDIS_AT_SIZE);
    rest = record->len - NGX_HTTP_IDEMPOTENCY_REDIS_HEAD_LEN;
    reason = p[NGX_HTTP_IDEMPOTENCY_REDIS_AT_REASON];

    switch (p[NGX_HTTP_IDEMPOTENCY_REDIS_AT_STATE]) {

    case NGX_HTTP_IDEMPOTENCY_IN_PROGRESS:

        found->state = NGX_HTTP_IDEMPOTENCY_IN_PROGRESS;

        if ((uint64_t) life <= grace) { /* under hold */
            found->state = NGX_HTTP_IDEMPOTENCY_UNUSABLE;
            found->reason = NGX_HTTP_IDEMPOTENCY_REASON_UNKNOWN;
        }

        break;

    case NGX_HTTP_IDEMPOTENCY_UNUSABLE:

        if (reason <= NGX_HTTP_IDEMPOTENCY_REASON_NONE
            || reason > NGX_HTTP_IDEMPOTENCY_REASON_EVICTED)
        {
            return "its reason is corrupt";
        }

        found->state = NGX_HTTP_IDEMPOTENCY_UNUSABLE;
        found->reason = (ngx_http_idempotency_reason_e) reason;
        break;

    case NGX_HTTP_IDEMPOTENCY_COMPLETED:

        if (size == 0) {
            return "its response is missing";
        }

        found->state = NGX_HTTP_IDEMPOTENCY_COMPLETED;
        break;

    default:
        return "its state is corrupt";
    }

    if (size > rest) {
        return "its response is cut off";
    }

    p += NGX_HTTP_IDEMPOTENCY_REDIS_HEAD_LEN;

    if (found->state == NGX_HTTP_IDEMPOTENCY_COMPLETED) {
        found->response.data = p;
        found->response.len = size;
    }

    if (rest > size) {
        found->details.data = p + size;
        found->details.len = rest - size;
    }

    return NULL;
}


/* whether it is a record at all, and one that this version reads */

static const char *
ngx_http_idempotency_redis_record_check(ngx_str_t *record, int64_t life)
{
    u_char  *p, version;

    p = record->data;

    if (record->len <= NGX_HTTP_IDEMPOTENCY_REDIS_AT_VERSION
        || p[0] != 'i' || p[1] != 'd')
    {
        return "it is not one of ours";
    }

    version = p[NGX_HTTP_IDEMPOTENCY_REDIS_AT_VERSION];

    if (version + 1 < NGX_HTTP_IDEMPOTENCY_REDIS_VERSION
        || version > NGX_HTTP_IDEMPOTENCY_REDIS_VERSION + 1)
    {
        return "it is of a version that this one does not read";
    }

    if (record->len < NGX_HTTP_IDEMPOTENCY_REDIS_HEAD_LEN) {
        return "it is cut off";
    }

    if (life < 0) {
        return "it has no expiry";
    }

    if (ngx_http_idempotency_get64(p
                                     + NGX_HTTP_IDEMPOTENCY_REDIS_AT_GRACE)
        > NGX_HTTP_IDEMPOTENCY_REDIS_LIFE_MAX)
    {
        return "its lease or ttl is corrupt";
    }

    return NULL;
}
