
/*
 * The way of a request from its arrival to the content handler.
 *
 * In the access phase it is admitted: no store is touched there, since a
 * client that is about to be refused gets that far.  In pre-content, after
 * every access check, the body is read, the record is begun, and the request
 * runs, waits, is replayed or refused.  ngx_http_idempotency_run() is the one
 * function that advances it; whatever was asked asynchronously runs
 * the phases again when it is there.
 *
 * Called by nginx's phases; calls request/ to know what the request is, the
 * store, and response/ for an answer.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <openssl/crypto.h>

#include "core/ngx_http_idempotency.h"


static ngx_int_t ngx_http_idempotency_run(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t ngx_http_idempotency_read_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void ngx_http_idempotency_body_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_idempotency_begin(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void ngx_http_idempotency_begin_handler(ngx_http_idempotency_op_t *op);
static ngx_int_t ngx_http_idempotency_found(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_found_t *found);
static ngx_int_t ngx_http_idempotency_unusable(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_found_t *found);
static ngx_int_t ngx_http_idempotency_store_error(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_op_t *op);
static ngx_msec_t ngx_http_idempotency_ttl(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);


/*
 * Never grants access: it declines, or answers 400.  Only where the key and
 * the bypass are of the request's own header: what another module sets in
 * this phase may not be there yet.
 */

ngx_int_t
ngx_http_idempotency_access_handler(ngx_http_request_t *r)
{
    ngx_int_t                         rc;
    ngx_http_idempotency_ctx_t       *ctx;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (conf->store == NULL || !conf->early || r != r->main) {
        return NGX_DECLINED;
    }

    if (ngx_http_idempotency_get_ctx(r)) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_idempotency_create_ctx(r, conf);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_idempotency_admit(r, ctx);

    return (rc == NGX_OK) ? NGX_DECLINED : rc;
}


ngx_int_t
ngx_http_idempotency_precontent_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t       *ctx;
    ngx_http_idempotency_loc_conf_t  *conf;

    if (r != r->main) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL) {
        conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

        if (conf->store == NULL) {
            return NGX_DECLINED;
        }

        ctx = ngx_http_idempotency_create_ctx(r, conf);
        if (ctx == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    return ngx_http_idempotency_run(r, ctx);
}


/*
 * Advances the request as far as it can go now.  NGX_DECLINED: nginx goes on
 * to the content; NGX_AGAIN: parked, the phases are run again later; NGX_DONE:
 * answered, or reading the body; a status: nginx makes the answer.
 */

static ngx_int_t
ngx_http_idempotency_run(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  rc;

    switch (ctx->phase) {

    case NGX_HTTP_IDEMPOTENCY_ADMIT:

        if (!ctx->admitted) {
            rc = ngx_http_idempotency_admit(r, ctx);

            if (rc != NGX_OK) {
                return rc;
            }
        }

        if (ctx->phase == NGX_HTTP_IDEMPOTENCY_PASS) {
            return NGX_DECLINED;
        }

        return ngx_http_idempotency_read_body(r, ctx);

    case NGX_HTTP_IDEMPOTENCY_READ_BODY:

        /* reading failed, and an error_page led here */

        ngx_http_idempotency_enter(ctx, NGX_HTTP_IDEMPOTENCY_PASS,
                                   "the body was not read");
        return NGX_DECLINED;

    case NGX_HTTP_IDEMPOTENCY_BEGIN:
        return ngx_http_idempotency_begin(r, ctx);

    case NGX_HTTP_IDEMPOTENCY_WAIT:

        if (ctx->watch) {
            return NGX_AGAIN;
        }

        return ngx_http_idempotency_refuse(r, ctx,
                                           NGX_HTTP_IDEMPOTENCY_PROBLEM_LOCK_TIMEOUT);

    case NGX_HTTP_IDEMPOTENCY_EXECUTE:
    case NGX_HTTP_IDEMPOTENCY_HOLD:
        return ngx_http_idempotency_execute(r, ctx);

    case NGX_HTTP_IDEMPOTENCY_REFUSE:
        return ngx_http_idempotency_refuse_again(r, ctx);

    default:
        return NGX_DECLINED;
    }
}


static ngx_int_t
ngx_http_idempotency_read_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  rc;

    ngx_http_idempotency_enter(ctx, NGX_HTTP_IDEMPOTENCY_READ_BODY,
                               "admitted, and let in");

    if (ngx_http_idempotency_body_start(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* whatever proxy_request_buffering says: the body counts as a whole */

    rc = ngx_http_read_client_request_body(r,
                                           ngx_http_idempotency_body_handler);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    ngx_http_finalize_request(r, NGX_DONE);
    return NGX_DONE;
}


static void
ngx_http_idempotency_body_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    /* the content handler is to find it, even after a redirect */
    r->preserve_body = 1;

    if (ngx_http_idempotency_body_finish(r, ctx) != NGX_OK
        || ngx_http_idempotency_identify(r, ctx) != NGX_OK)
    {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    ngx_http_idempotency_enter(ctx, NGX_HTTP_IDEMPOTENCY_BEGIN,
                               "the body was read");

    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
}


static ngx_int_t
ngx_http_idempotency_begin(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_op_t  *op;

    op = &ctx->op;

    if (op->pending) {
        return NGX_AGAIN;
    }

    if (!ctx->asked) {
        ctx->lease = ngx_http_idempotency_time(r, &ctx->conf->lease,
                                               "idempotency_lease");
        ctx->lease = ngx_max(ctx->lease, NGX_HTTP_IDEMPOTENCY_LEASE_MIN);
        ctx->ttl = ngx_http_idempotency_ttl(r, ctx);

        ngx_http_idempotency_token(ctx->token);
        ngx_http_idempotency_op_prepare(ctx, op,
                                        NGX_HTTP_IDEMPOTENCY_OP_BEGIN);

        op->handler = ngx_http_idempotency_begin_handler;

        ctx->asked = 1;

        if (ngx_http_idempotency_store_submit(op) == NGX_AGAIN) {
            return ngx_http_idempotency_park(r);
        }
    }

    ctx->store_time += ngx_current_msec - op->start;

    switch (op->result) {

    case NGX_HTTP_IDEMPOTENCY_ACQUIRED:

        if (op->abandoned) {
            ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                          "idempotency: a lease of %M ms ran out without an "
                          "outcome, the request runs again, record %*xs",
                          ctx->lease, (size_t) 8, ctx->id);
        }

        return ngx_http_idempotency_execute(r, ctx);

    case NGX_HTTP_IDEMPOTENCY_FOUND:
        return ngx_http_idempotency_found(r, ctx, &op->found);

    default: /* NGX_HTTP_IDEMPOTENCY_FULL, NGX_HTTP_IDEMPOTENCY_ERROR */
        return ngx_http_idempotency_store_error(r, ctx, op);
    }
}


static void
ngx_http_idempotency_begin_handler(ngx_http_idempotency_op_t *op)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = op->data;

    ngx_http_idempotency_resume(ctx->request);
}


/* puts a request aside; a client that goes away ends it */

ngx_int_t
ngx_http_idempotency_park(ngx_http_request_t *r)
{
    ngx_event_t  *rev;

    rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    return NGX_AGAIN;
}


void
ngx_http_idempotency_resume(ngx_http_request_t *r)
{
    ngx_connection_t  *c;

    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;

    ngx_http_core_run_phases(r);

    ngx_http_run_posted_requests(c);
}


/* fills an operation of this request's; claims and times as it has them */

void
ngx_http_idempotency_op_prepare(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_op_t *op, ngx_http_idempotency_op_e kind)
{
    op->kind = kind;
    op->store = ctx->conf->store;
    op->claim = &ctx->claim;
    op->lease = ctx->lease;
    op->ttl = ctx->ttl;
    op->hold = (ctx->conf->unknown_outcome
                == NGX_HTTP_IDEMPOTENCY_UNKNOWN_HOLD);
    op->pool = ctx->request->pool;
    op->log = ctx->request->connection->log;
    op->data = ctx;

    ngx_memcpy(op->id, ctx->id, NGX_HTTP_IDEMPOTENCY_ID_LEN);
    ngx_memcpy(op->token, ctx->token, NGX_HTTP_IDEMPOTENCY_TOKEN_LEN);
}


/*
 * A record is there.  Whose it is comes first, then whether it is of the same
 * request; only then what became of that.
 */

static ngx_int_t
ngx_http_idempotency_found(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_found_t *found)
{
    ctx->original_time = found->claim.time;

    if (!ngx_http_idempotency_same_request(ctx, &found->claim)) {
        return ngx_http_idempotency_refuse(r, ctx,
                                           NGX_HTTP_IDEMPOTENCY_PROBLEM_CONFLICT);
    }

    switch (found->state) {

    case NGX_HTTP_IDEMPOTENCY_COMPLETED:
        return ngx_http_idempotency_replay(r, ctx, found);

    case NGX_HTTP_IDEMPOTENCY_UNUSABLE:
        return ngx_http_idempotency_unusable(r, ctx, found);

    default: /* NGX_HTTP_IDEMPOTENCY_IN_PROGRESS */
        return ngx_http_idempotency_wait(r, ctx);
    }
}


/*
 * A fingerprint that was made by another scheme can't be compared: a changed
 * configuration is not taken for a changed request.  Who asks always can.
 */

ngx_uint_t
ngx_http_idempotency_same_request(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_claim_t *claim)
{
    if (CRYPTO_memcmp(claim->identity, ctx->claim.identity,
                      NGX_HTTP_IDEMPOTENCY_IDENTITY_LEN)
        != 0)
    {
        ctx->foreign = 1;
        return 0;
    }

    return claim->scheme != ctx->claim.scheme
           || CRYPTO_memcmp(claim->fingerprint, ctx->claim.fingerprint,
                            NGX_HTTP_IDEMPOTENCY_FINGERPRINT_LEN)
              == 0;
}


static ngx_int_t
ngx_http_idempotency_unusable(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_found_t *found)
{
    switch (found->reason) {

    case NGX_HTTP_IDEMPOTENCY_REASON_UNKNOWN:

        /* under "lease" the record lives as long as the lease */

        if (ctx->conf->unknown_outcome != NGX_HTTP_IDEMPOTENCY_UNKNOWN_HOLD) {
            ctx->retryable = 1;
            ctx->retry_after = found->left;
        }

        return ngx_http_idempotency_refuse(r, ctx,
                                        NGX_HTTP_IDEMPOTENCY_PROBLEM_OUTCOME_UNKNOWN);

    case NGX_HTTP_IDEMPOTENCY_REASON_TOO_LARGE:
        return ngx_http_idempotency_refuse(r, ctx,
                                      NGX_HTTP_IDEMPOTENCY_PROBLEM_RESPONSE_TOO_LARGE);

    default:
        return ngx_http_idempotency_refuse(r, ctx,
                                       NGX_HTTP_IDEMPOTENCY_PROBLEM_RESPONSE_NOT_KEPT);
    }
}


static ngx_int_t
ngx_http_idempotency_store_error(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_op_t *op)
{
    ngx_uint_t  pass;

    pass = (ctx->conf->on_store_error == NGX_HTTP_IDEMPOTENCY_ON_ERROR_PASS);

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "idempotency: store \"%V\" %s%s, the request %s",
                  &ctx->conf->store->name,
                  op->result == NGX_HTTP_IDEMPOTENCY_FULL
                      ? "is full" : "failed: ",
                  op->result == NGX_HTTP_IDEMPOTENCY_FULL
                      ? "" : (op->error ? op->error : "no answer"),
                  pass ? "runs unprotected" : "is refused");

    if (!pass) {
        return ngx_http_idempotency_refuse(r, ctx,
                                      NGX_HTTP_IDEMPOTENCY_PROBLEM_STORE_UNAVAILABLE);
    }

    ctx->status = NGX_HTTP_IDEMPOTENCY_STATUS_UNPROTECTED;

    ngx_http_idempotency_enter(ctx, NGX_HTTP_IDEMPOTENCY_PASS,
                               "the store failed");

    return NGX_DECLINED;
}


/* the client's own wish counts up to the configured limit */

static ngx_msec_t
ngx_http_idempotency_ttl(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t                         n;
    ngx_uint_t                        count;
    ngx_msec_t                        ttl;
    ngx_table_elt_t                  *h;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ctx->conf;

    ttl = ngx_http_idempotency_time(r, &conf->ttl, "idempotency_ttl");

    if (ttl == 0) {
        ttl = NGX_HTTP_IDEMPOTENCY_TTL;
    }

    if (conf->ttl_header.len == 0) {
        return ttl;
    }

    h = ngx_http_idempotency_request_header(r, &conf->ttl_header, &count);

    if (count != 1) {
        return ttl;
    }

    n = ngx_atoi(h->value.data, h->value.len);

    if (n == NGX_ERROR) {

        /* more digits than a number can have: still the limit */

        for (n = 0; n < (ngx_int_t) h->value.len; n++) {
            if (h->value.data[n] < '0' || h->value.data[n] > '9') {
                return ttl;
            }
        }

        return h->value.len ? conf->ttl_header_max : ttl;
    }

    if (n == 0) {
        return ttl;
    }

    return ngx_min((ngx_msec_t) n, conf->ttl_header_max);
}
