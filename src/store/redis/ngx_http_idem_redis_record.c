
/*
 * A record as it is in Redis: the value of one key, a list.
 *
 *   in progress   { lock, token }
 *   over          { lock, outcome, token }
 *   and behind either, while somebody waits for it, "w"
 *
 *   lock                                    outcome
 *   at   length                             at   length
 *    0    2   "id"                           0    2   "id"
 *    2    1   version                        2    1   version
 *    3    1   1: hold, 2: taken over       3    1   state
 *    4    8   grace, ms                      4    1   reason, if unusable
 *   12    8   the first bytes of the id      5    8   grace, ms
 *   20   69   claim                         13    4   length of the response
 *   89        the details, up to its end    17        the response
 *
 * What the key has to live less the grace of the lock is what is left of the
 * lease; once it is over, less that of the outcome, of the ttl.
 *
 * The second element tells which it is.  A token has 16 bytes and an outcome
 * at least 17, so that neither can be taken for the other, whatever is in
 * them; and LINSERT, which looks for the token, can't find it in an outcome
 * or in a lock.
 *
 * Numbers are in network order.  The scripts read some of it by place, so the
 * places stay from one version to the next.
 *
 * Whatever is read from a record is checked here, before anybody sees it.  A
 * reply of a plain command has no tag: that a lock is of the record that was
 * asked for is seen by its id.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem_number.h"
#include "store/redis/ngx_http_idem_redis.h"


/* of both */
#define NGX_HTTP_IDEM_REDIS_AT_VERSION   2

/* of a lock */
#define NGX_HTTP_IDEM_REDIS_AT_LEASE     4
#define NGX_HTTP_IDEM_REDIS_AT_ID        12
#define NGX_HTTP_IDEM_REDIS_AT_CLAIM     20

#define NGX_HTTP_IDEM_REDIS_ID_LEN       8

/* of an outcome */
#define NGX_HTTP_IDEM_REDIS_AT_STATE     3
#define NGX_HTTP_IDEM_REDIS_AT_REASON    4
#define NGX_HTTP_IDEM_REDIS_AT_TTL       5
#define NGX_HTTP_IDEM_REDIS_AT_SIZE      13


static const char *ngx_http_idem_redis_lock_found(
    ngx_http_idem_op_t *op, ngx_str_t *lock, int64_t life);
static const char *ngx_http_idem_redis_outcome_found(
    ngx_http_idem_op_t *op, ngx_str_t *outcome);
static const char *ngx_http_idem_redis_element_check(
    ngx_str_t *element, size_t size);
static uint64_t ngx_http_idem_redis_record_grace(ngx_str_t *lock,
    ngx_str_t *second);


#define ngx_http_idem_redis_is_token(element)                                 \
    ((element)->len == NGX_HTTP_IDEM_TOKEN_LEN)


/*
 * A lock lives for the ttl, and for a while longer than its lease.  Mostly it
 * lives for the ttl and a little more: then a commit that comes soon need not
 * set its life.  An unknown outcome that is not under hold has a lease, too.
 */

uint64_t
ngx_http_idem_redis_record_life(ngx_http_idem_op_t *op, uint64_t *grace)
{
    uint64_t  life, lease, ttl, margin;

    ttl = ngx_min(op->ttl, NGX_HTTP_IDEM_REDIS_LIFE_MAX);

    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT) {
        if (ngx_http_idem_op_retryable(op)) {
            lease = ngx_min(op->lease, NGX_HTTP_IDEM_REDIS_LIFE_MAX);
            life = ngx_max(ngx_max(ttl, lease), 1);

            *grace = life - lease;

            return life;
        }

        *grace = ngx_min(op->grace, NGX_HTTP_IDEM_REDIS_LIFE_MAX);

        return ngx_max(ttl + *grace, 1);
    }

    lease = ngx_min(op->lease, NGX_HTTP_IDEM_REDIS_LIFE_MAX);
    life = ngx_max(2 * lease, ttl);

    if (op->grace == 0 && !op->hold) {
        margin = ngx_min(lease / 3, ttl / 100);

        if (margin >= NGX_HTTP_IDEM_REDIS_MARGIN
            && ttl + margin <= NGX_HTTP_IDEM_REDIS_LIFE_MAX)
        {
            life = ngx_max(life, ttl + margin);
        }
    }

    *grace = life - lease;

    return ngx_max(life, 1);
}


/* without the details */

u_char *
ngx_http_idem_redis_record_lock(u_char *p,
    ngx_http_idem_op_t *op, uint64_t grace)
{
    *p++ = 'i';
    *p++ = 'd';
    *p++ = NGX_HTTP_IDEM_REDIS_VERSION;
    *p++ = op->hold;

    p = ngx_http_idem_put64(p, grace);
    p = ngx_cpymem(p, op->id, NGX_HTTP_IDEM_REDIS_ID_LEN);

    ngx_http_idem_claim_encode(p, op->claim);

    return p + NGX_HTTP_IDEM_CLAIM_LEN;
}


/* without the response */

u_char *
ngx_http_idem_redis_record_outcome(u_char *p,
    ngx_http_idem_op_t *op, uint64_t grace, size_t size)
{
    *p++ = 'i';
    *p++ = 'd';
    *p++ = NGX_HTTP_IDEM_REDIS_VERSION;
    *p++ = (u_char) op->state;
    *p++ = (u_char) op->reason;

    p = ngx_http_idem_put64(p, grace);

    return ngx_http_idem_put32(p, (uint32_t) size);
}


ngx_uint_t
ngx_http_idem_redis_record_other(ngx_http_idem_op_t *op, ngx_str_t *lock)
{
    return ngx_http_idem_redis_element_check(lock,
                                        NGX_HTTP_IDEM_REDIS_LOCK_LEN)
           == NULL
           && ngx_memcmp(lock->data + NGX_HTTP_IDEM_REDIS_AT_ID,
                         op->id, NGX_HTTP_IDEM_REDIS_ID_LEN)
              != 0;
}


ngx_uint_t
ngx_http_idem_redis_record_lasts(ngx_http_idem_op_t *op,
    ngx_str_t *lock, ngx_str_t *second, int64_t life)
{
    uint64_t  grace;

    if (ngx_http_idem_redis_element_check(lock,
                                         NGX_HTTP_IDEM_REDIS_LOCK_LEN)
        || (!ngx_http_idem_redis_is_token(second)
            && ngx_http_idem_redis_element_check(second,
                                    NGX_HTTP_IDEM_REDIS_OUTCOME_LEN)))
    {
        return 0;
    }

    grace = ngx_http_idem_redis_record_grace(lock, second);

    if (life == NGX_HTTP_IDEM_REDIS_LIFE_UNKNOWN) {

        /* of an unusable one it is told how long it lasts */

        return !ngx_http_idem_redis_is_token(second)
               && second->data[NGX_HTTP_IDEM_REDIS_AT_STATE]
                  == NGX_HTTP_IDEM_COMPLETED
               && grace == 0;
    }

    if (life < 0 || (uint64_t) life <= grace) {
        return 0;
    }

    return !ngx_http_idem_redis_is_token(second)
           || ngx_memcmp(second->data, op->token, NGX_HTTP_IDEM_TOKEN_LEN)
              != 0;
}


const char *
ngx_http_idem_redis_record_found(ngx_http_idem_op_t *op,
    ngx_str_t *lock, ngx_str_t *second, int64_t life)
{
    uint64_t                grace;
    const char             *wrong;
    ngx_http_idem_found_t  *found;

    found = &op->found;

    ngx_memzero(found, sizeof(ngx_http_idem_found_t));

    op->result = NGX_HTTP_IDEM_FOUND;
    found->verify = 1;

    wrong = ngx_http_idem_redis_lock_found(op, lock, life);

    if (wrong) {
        return wrong;
    }

    if (ngx_http_idem_redis_is_token(second)) {
        found->state = NGX_HTTP_IDEM_IN_PROGRESS;

    } else {
        wrong = ngx_http_idem_redis_outcome_found(op, second);

        if (wrong) {
            return wrong;
        }
    }

    grace = ngx_http_idem_redis_record_grace(lock, second);

    if (grace > NGX_HTTP_IDEM_REDIS_LIFE_MAX) {
        return "its lease or ttl is corrupt";
    }

    if (life == NGX_HTTP_IDEM_REDIS_LIFE_UNKNOWN) {
        /* as long as its key, and who asked did not want to know more */
        return NULL;
    }

    if ((uint64_t) life > grace) {
        found->left = (ngx_msec_t) (life - grace);
        return NULL;
    }

    found->left = 0;

    if (found->state == NGX_HTTP_IDEM_IN_PROGRESS) {

        /* under hold, or of another request */

        found->left = (ngx_msec_t) life;
        found->state = NGX_HTTP_IDEM_UNUSABLE;
        found->reason = NGX_HTTP_IDEM_REASON_UNKNOWN;
    }

    return NULL;
}


static const char *
ngx_http_idem_redis_lock_found(ngx_http_idem_op_t *op,
    ngx_str_t *lock, int64_t life)
{
    const char             *wrong;
    ngx_http_idem_found_t  *found;

    found = &op->found;

    wrong = ngx_http_idem_redis_element_check(lock,
                                        NGX_HTTP_IDEM_REDIS_LOCK_LEN);
    if (wrong) {
        return wrong;
    }

    if (life < 0 && life != NGX_HTTP_IDEM_REDIS_LIFE_UNKNOWN) {
        return "it has no expiry";
    }

    if (ngx_http_idem_redis_record_other(op, lock)) {
        return "it is another one's";
    }

    if (ngx_http_idem_claim_decode(
                            lock->data + NGX_HTTP_IDEM_REDIS_AT_CLAIM,
                            NGX_HTTP_IDEM_CLAIM_LEN, &found->claim)
        != NGX_OK)
    {
        return "its claim is corrupt";
    }

    if (lock->len > NGX_HTTP_IDEM_REDIS_LOCK_LEN) {
        found->details.data = lock->data
                              + NGX_HTTP_IDEM_REDIS_LOCK_LEN;
        found->details.len = lock->len - NGX_HTTP_IDEM_REDIS_LOCK_LEN;
    }

    return NULL;
}


static const char *
ngx_http_idem_redis_outcome_found(ngx_http_idem_op_t *op, ngx_str_t *outcome)
{
    u_char                 *p;
    size_t                  size;
    ngx_uint_t              reason;
    const char             *wrong;
    ngx_http_idem_found_t  *found;

    found = &op->found;

    wrong = ngx_http_idem_redis_element_check(outcome,
                                     NGX_HTTP_IDEM_REDIS_OUTCOME_LEN);
    if (wrong) {
        return wrong;
    }

    p = outcome->data;

    size = ngx_http_idem_get32(p + NGX_HTTP_IDEM_REDIS_AT_SIZE);

    if (size != outcome->len - NGX_HTTP_IDEM_REDIS_OUTCOME_LEN) {
        return "its response is cut off";
    }

    switch (p[NGX_HTTP_IDEM_REDIS_AT_STATE]) {

    case NGX_HTTP_IDEM_UNUSABLE:

        reason = p[NGX_HTTP_IDEM_REDIS_AT_REASON];

        if (reason <= NGX_HTTP_IDEM_REASON_NONE
            || reason > NGX_HTTP_IDEM_REASON_EVICTED)
        {
            return "its reason is corrupt";
        }

        found->state = NGX_HTTP_IDEM_UNUSABLE;
        found->reason = (ngx_http_idem_reason_e) reason;

        return NULL;

    case NGX_HTTP_IDEM_COMPLETED:

        if (size == 0) {
            return "its response is missing";
        }

        found->state = NGX_HTTP_IDEM_COMPLETED;
        found->response.data = p + NGX_HTTP_IDEM_REDIS_OUTCOME_LEN;
        found->response.len = size;

        return NULL;

    default:
        return "its state is corrupt";
    }
}


/* whether it is a part of a record at all, and one that this version reads */

static const char *
ngx_http_idem_redis_element_check(ngx_str_t *element, size_t size)
{
    u_char  *p, version;

    p = element->data;

    if (element->len <= NGX_HTTP_IDEM_REDIS_AT_VERSION
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

    if (element->len < size) {
        return "it is cut off";
    }

    return NULL;
}


/* both are of full length */

static uint64_t
ngx_http_idem_redis_record_grace(ngx_str_t *lock, ngx_str_t *second)
{
    return ngx_http_idem_redis_is_token(second)
           ? ngx_http_idem_get64(lock->data
                                 + NGX_HTTP_IDEM_REDIS_AT_LEASE)
           : ngx_http_idem_get64(second->data
                                 + NGX_HTTP_IDEM_REDIS_AT_TTL);
}
