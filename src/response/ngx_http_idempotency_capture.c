
/*
 * Capture and hold: the header and body of the holder's response are kept
 * back, bounded, until the record is stored; then they go out.  So a client
 * that has seen a response can get it again.
 *
 * What can't be held (too large, endless) is marked as such in the record and
 * streams through untouched.
 *
 * The filters are called by nginx for every response; they call the outcome
 * to know what becomes of the record, and the commit.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ngx_http_idempotency.h"


#define NGX_HTTP_IDEMPOTENCY_HOLD_MIN  1024
#define NGX_HTTP_IDEMPOTENCY_HOLD_MAX  65536

/*
 * What is not to become a part of the filter that calls it: the filters are
 * called for every response, and for most of them a look is all they do.
 */

#if (__GNUC__)
#define NGX_HTTP_IDEMPOTENCY_APART  __attribute__((noinline))
#else
#define NGX_HTTP_IDEMPOTENCY_APART
#endif


/* a piece of a response; one allocation has all of it */

typedef struct {
    ngx_chain_t  link;      /* first */
    ngx_buf_t    buf;
    u_char       data[1];
} ngx_http_idempotency_piece_t;


static ngx_int_t ngx_http_idempotency_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_http_idempotency_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static ngx_int_t ngx_http_idempotency_seen_header(ngx_http_request_t *r)
    NGX_HTTP_IDEMPOTENCY_APART;
static ngx_int_t ngx_http_idempotency_seen_body(ngx_http_request_t *r,
    ngx_chain_t *in) NGX_HTTP_IDEMPOTENCY_APART;
static ngx_int_t ngx_http_idempotency_capture_header(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx) NGX_HTTP_IDEMPOTENCY_APART;
static ngx_uint_t ngx_http_idempotency_endless(ngx_http_request_t *r,
    ngx_http_upstream_t *u);
static ngx_uint_t ngx_http_idempotency_header_only(ngx_http_request_t *r);
static ngx_int_t ngx_http_idempotency_head_alone(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void ngx_http_idempotency_drop(ngx_chain_t *in);
static ngx_int_t ngx_http_idempotency_capture_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in)
    NGX_HTTP_IDEMPOTENCY_APART;
static ngx_int_t ngx_http_idempotency_hold_bytes(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_buf_t *in);
static ngx_int_t ngx_http_idempotency_truncated(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t ngx_http_idempotency_complete(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void ngx_http_idempotency_own_headers(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static off_t ngx_http_idempotency_range_len(ngx_http_request_t *r);
static void ngx_http_idempotency_cut(ngx_http_idempotency_ctx_t *ctx,
    off_t offset, off_t len);


/* nginx has no header for it: where the range that is wanted is found */
extern ngx_module_t  ngx_http_range_body_filter_module;


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;
static ngx_http_output_body_filter_pt    ngx_http_next_body_filter;


void
ngx_http_idempotency_capture_init(void)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_idempotency_header_filter;

    ngx_http_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_idempotency_body_filter;
}


static ngx_int_t
ngx_http_idempotency_header_filter(ngx_http_request_t *r)
{
    if (ngx_http_get_module_ctx(r, ngx_http_idempotency_module) == NULL
        && !r->internal && !r->filter_finalize)
    {
        return ngx_http_next_header_filter(r);
    }

    return ngx_http_idempotency_seen_header(r);
}


static ngx_int_t
ngx_http_idempotency_seen_header(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL
        || (ctx->phase != NGX_HTTP_IDEMPOTENCY_EXECUTE
            && ctx->phase != NGX_HTTP_IDEMPOTENCY_HOLD))
    {
        if (ctx && (ctx->phase == NGX_HTTP_IDEMPOTENCY_REPLAY
                    || ctx->phase == NGX_HTTP_IDEMPOTENCY_REFUSE))
        {
            ngx_http_idempotency_no_post_action(r);
        }

        return ngx_http_next_header_filter(r);
    }

    if (r != r->main) {
        ngx_http_idempotency_subrequest_header(r, ctx);
        return ngx_http_next_header_filter(r);
    }

    return ngx_http_idempotency_capture_header(r, ctx);
}


static ngx_int_t
ngx_http_idempotency_capture_header(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t   rc;
    ngx_uint_t  header_only;

    ngx_http_idempotency_upstream_answers(r, ctx);

    /* held already: this is another response in place of that */

    ctx->held = NULL;
    ctx->held_last = &ctx->held;
    ctx->held_size = 0;
    ctx->segments = NULL;
    ctx->ended = 0;
    ctx->composed = 0;
    ctx->charset = 0;
    ctx->ranges = 0;
    ctx->app_off = 0;
    ctx->app_ttl = 0;

    ngx_memzero(&ctx->response, sizeof(ngx_http_idempotency_response_t));

    ngx_http_idempotency_enter(ctx, NGX_HTTP_IDEMPOTENCY_HOLD,
                               "a response has come");

    /* first of all: also what can't be held may have a word for us in it */

    rc = ngx_http_idempotency_capture_head(r, ctx);

    if (ngx_http_idempotency_endless(r, ctx->answering)) {
        ngx_http_idempotency_let_through(r, ctx,
                                         NGX_HTTP_IDEMPOTENCY_REASON_STREAM);
        return ngx_http_idempotency_pass_header(r, ctx);
    }

    if (r->headers_out.content_offset) {

        /* the slice module has begun where the client's range begins */

        ctx->composed = 1;

        ngx_http_idempotency_let_through(r, ctx,
                                         NGX_HTTP_IDEMPOTENCY_REASON_STREAM);
        return ngx_http_idempotency_pass_header(r, ctx);
    }

    if (rc != NGX_OK) {
        ngx_http_idempotency_let_through(r, ctx,
                                         NGX_HTTP_IDEMPOTENCY_REASON_NO_ROOM);
        return ngx_http_idempotency_pass_header(r, ctx);
    }

    ctx->max_response = ngx_http_idempotency_size(r, &ctx->conf->max_response,
                                                  "idempotency_max_response");
    ctx->max_response = ngx_min(ctx->max_response,
                                NGX_HTTP_IDEMPOTENCY_RECORD_MAX_LEN);

    header_only = ngx_http_idempotency_header_only(r);

    if (ctx->held_size > ctx->max_response) {
        ngx_http_idempotency_let_through(r, ctx,
                                      NGX_HTTP_IDEMPOTENCY_REASON_TOO_LARGE);
        return ngx_http_idempotency_pass_header(r, ctx);
    }

    if (!header_only
        && r->headers_out.content_length_n
           > (off_t) (ctx->max_response - ctx->held_size))
    {
        if (r->method == NGX_HTTP_HEAD) {
            return ngx_http_idempotency_head_alone(r, ctx);
        }

        ngx_http_idempotency_let_through(r, ctx,
                                      NGX_HTTP_IDEMPOTENCY_REASON_TOO_LARGE);
        return ngx_http_idempotency_pass_header(r, ctx);
    }

    r->filter_need_in_memory = 1;

    /*
     * The range filters stand on both sides of this one: a range is cut out
     * of what is held when it is sent
     */

    ctx->ranges = r->allow_ranges && ngx_http_idempotency_may_range(r);
    r->allow_ranges = 0;

    if (header_only) {

        /* no body will come, and with that no last buffer */

        r->header_only = 1;
        ctx->response.header_only = 1;

        return ngx_http_idempotency_complete(r, ctx);
    }

    ngx_http_idempotency_charset(r, ctx);

    return NGX_OK;
}


/* a response of which nobody can wait for the end */

static ngx_uint_t
ngx_http_idempotency_endless(ngx_http_request_t *r, ngx_http_upstream_t *u)
{
    size_t            len;
    ngx_str_t        *type;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    if (r->headers_out.status == NGX_HTTP_SWITCHING_PROTOCOLS) {
        return 1;
    }

    type = &r->headers_out.content_type;
    len = sizeof("text/event-stream") - 1;

    if (type->len >= len
        && ngx_strncasecmp(type->data, (u_char *) "text/event-stream", len)
           == 0
        && (type->len == len
            || type->data[len] == ';' || type->data[len] == ' '))
    {
        return 1;
    }

    if (u == NULL) {
        return 0;
    }

    /* nginx takes this header out of the response: look at what it got */

    part = &u->headers_in.headers.part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                return 0;
            }

            part = part->next;
            h = part->elts;
            i = 0;
        }

        if (h[i].key.len == sizeof("X-Accel-Buffering") - 1
            && ngx_strncasecmp(h[i].key.data, (u_char *) "X-Accel-Buffering",
                               sizeof("X-Accel-Buffering") - 1)
               == 0
            && h[i].value.len == 2
            && ngx_strncasecmp(h[i].value.data, (u_char *) "no", 2) == 0)
        {
            return 1;
        }
    }
}


/*
 * Some handlers say themselves that their header is all (dav, "return 204"),
 * others are told so by the header filter, which comes after us.  An upstream
 * still ends its empty body.  The response to a HEAD is none of these: a
 * filter between us and the header filter, as image_filter, may have to see
 * the body before there can be a header.
 */

static ngx_uint_t
ngx_http_idempotency_header_only(ngx_http_request_t *r)
{
    if (r->header_only) {
        return 1;
    }

    return r->headers_out.status_line.len == 0
           && (r->headers_out.status == NGX_HTTP_NO_CONTENT
               || r->headers_out.status == NGX_HTTP_NOT_MODIFIED);
}


/* the response to a HEAD, without a body that its handler may have for it */

static ngx_int_t
ngx_http_idempotency_head_alone(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ctx->held = NULL;
    ctx->held_last = &ctx->held;
    ctx->held_size = ctx->head_size;

    ctx->response.body_len = 0;

    return ngx_http_idempotency_complete(r, ctx);
}


static ngx_int_t
ngx_http_idempotency_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    if (ngx_http_get_module_ctx(r, ngx_http_idempotency_module) == NULL
        && r == r->main)
    {
        return ngx_http_next_body_filter(r, in);
    }

    return ngx_http_idempotency_seen_body(r, in);
}


static ngx_int_t
ngx_http_idempotency_seen_body(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idempotency_module);

    if (r != r->main) {

        if (ctx == NULL) {
            ctx = ngx_http_get_module_ctx(r->main,
                                          ngx_http_idempotency_module);
        }

        if (ctx == NULL || ctx->phase != NGX_HTTP_IDEMPOTENCY_HOLD) {
            return ngx_http_next_body_filter(r, in);
        }

        return ngx_http_idempotency_subrequest_body(r, ctx, in);
    }

    if (ctx == NULL) {
        return ngx_http_next_body_filter(r, in);
    }

    if (ctx->phase == NGX_HTTP_IDEMPOTENCY_HOLD) {
        return ngx_http_idempotency_capture_body(r, ctx, in);
    }

    if (ctx->phase == NGX_HTTP_IDEMPOTENCY_COMPRESS
        || ctx->phase == NGX_HTTP_IDEMPOTENCY_COMMIT)
    {
        ngx_http_idempotency_drop(in);
        return NGX_AGAIN;
    }

    if (ctx->phase == NGX_HTTP_IDEMPOTENCY_SEND && r->header_only) {

        /* a HEAD whose handler was not told so in time */

        ngx_http_idempotency_drop(in);
        in = NULL;
    }

    return ngx_http_next_body_filter(r, in);
}


static void
ngx_http_idempotency_drop(ngx_chain_t *in)
{
    for ( /* void */ ; in; in = in->next) {
        in->buf->pos = in->buf->last;
        in->buf->file_pos = in->buf->file_last;
    }
}


static ngx_int_t
ngx_http_idempotency_capture_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in)
{
    size_t                         len;
    ngx_int_t                      rc;
    ngx_buf_t                     *b;
    ngx_uint_t                     last, flush;
    ngx_http_idempotency_reason_e  reason;

    if (r->postponed || r != r->connection->data) {
        rc = ngx_http_idempotency_subrequests_pending(r, ctx, in);

        if (rc != NGX_DECLINED) {
            return rc;
        }
    }

    last = ctx->ended;
    flush = 0;

    for ( /* void */ ; in; in = in->next) {
        b = in->buf;

        len = ngx_buf_in_memory(b) ? (size_t) (b->last - b->pos) : 0;

        reason = ngx_http_idempotency_hold(r, ctx, b, len);

        if (reason != NGX_HTTP_IDEMPOTENCY_REASON_NONE) {

            if (r->method == NGX_HTTP_HEAD) {
                ngx_http_idempotency_drop(in);
                return ngx_http_idempotency_head_alone(r, ctx);
            }

            ngx_http_idempotency_let_through(r, ctx, reason);

            *ctx->held_last = in;

            return ngx_http_idempotency_send(r, ctx);
        }

        b->pos = b->last;
        b->file_pos = b->file_last;

        last |= b->last_buf;
        flush |= b->flush;
    }

    if (last) {
        return ngx_http_idempotency_complete(r, ctx);
    }

    if (flush && ngx_http_idempotency_upstream_broke(r, ctx)) {

        if (r->method == NGX_HTTP_HEAD) {
            /* its body is nobody's business */
            return ngx_http_idempotency_head_alone(r, ctx);
        }

        return ngx_http_idempotency_truncated(r, ctx);
    }

    return NGX_OK;
}


/* another reason than NONE: it can't be held, and the rest of "b" not either */

ngx_http_idempotency_reason_e
ngx_http_idempotency_hold(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_buf_t *b, size_t len)
{
    if (len > ctx->max_response - ctx->held_size) {
        return NGX_HTTP_IDEMPOTENCY_REASON_TOO_LARGE;
    }

    if (len && ngx_http_idempotency_hold_bytes(r, ctx, b) != NGX_OK) {
        return NGX_HTTP_IDEMPOTENCY_REASON_NO_ROOM;
    }

    return NGX_HTTP_IDEMPOTENCY_REASON_NONE;
}


/* what is held is taken out of "in", also when there is no room for the rest */

static ngx_int_t
ngx_http_idempotency_hold_bytes(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_buf_t *in)
{
    off_t         expected;
    size_t        size, n, len;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    len = in->last - in->pos;

    ctx->held_size += len;
    ctx->response.body_len += len;

    while (len) {
        cl = ctx->tail;
        b = cl ? cl->buf : NULL;

        if (ctx->held == NULL || b == NULL || b->last == b->end) {

            /* the whole if it is known, otherwise ever larger pieces */

            expected = r->headers_out.content_length_n
                       - (off_t) (ctx->response.body_len - len);

            size = ctx->response.body_len;
            size = ngx_max(size, NGX_HTTP_IDEMPOTENCY_HOLD_MIN);
            size = ngx_min(size, NGX_HTTP_IDEMPOTENCY_HOLD_MAX);

            if (expected >= (off_t) len) {
                size = (size_t) expected;
            }

            cl = ngx_http_idempotency_piece(r->pool, ngx_max(size, len));
            if (cl == NULL) {
                return NGX_ERROR;
            }

            b = cl->buf;

            *ctx->held_last = cl;
            ctx->held_last = &cl->next;
            ctx->tail = cl;
        }

        n = ngx_min(len, (size_t) (b->end - b->last));

        b->last = ngx_cpymem(b->last, in->pos, n);
        in->pos += n;
        len -= n;
    }

    return NGX_OK;
}


ngx_chain_t *
ngx_http_idempotency_piece(ngx_pool_t *pool, size_t size)
{
    ngx_buf_t                     *b;
    ngx_http_idempotency_piece_t  *piece;

    piece = ngx_palloc(pool, offsetof(ngx_http_idempotency_piece_t, data)
                             + size);
    if (piece == NULL) {
        return NULL;
    }

    b = &piece->buf;

    ngx_memzero(b, sizeof(ngx_buf_t));

    b->start = piece->data;
    b->pos = piece->data;
    b->last = piece->data;
    b->end = piece->data + size;
    b->temporary = 1;

    piece->link.buf = b;
    piece->link.next = NULL;

    return &piece->link;
}


void
ngx_http_idempotency_hold_last(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_buf_t  *b;

    if (ctx->held && ctx->segments == NULL) {
        b = ctx->tail->buf;

    } else {
        b = &ctx->end_buf;

        ctx->end.buf = b;
        ctx->end.next = NULL;

        *ctx->held_last = &ctx->end;
        ctx->held_last = &ctx->end.next;
    }

    b->last_buf = 1;
    b->last_in_chain = 1;
}


/* the response is not ours to hold: the record says why, and it streams */

void
ngx_http_idempotency_let_through(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_reason_e reason)
{
    ngx_http_idempotency_outcome_e  outcome;

    outcome = ngx_http_idempotency_outcome(r, ctx, 1);

    if (outcome == NGX_HTTP_IDEMPOTENCY_OUTCOME_KEEP && ctx->app_off) {
        outcome = NGX_HTTP_IDEMPOTENCY_OUTCOME_RELEASE;
    }

    if (outcome == NGX_HTTP_IDEMPOTENCY_OUTCOME_KEEP) {
        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "idempotency: a response is %s to be kept, its retry "
                      "is refused, record %*xs",
                      reason == NGX_HTTP_IDEMPOTENCY_REASON_STREAM
                          ? (ctx->composed ? "made by subrequests, not"
                                           : "an endless stream, not")
                      : reason == NGX_HTTP_IDEMPOTENCY_REASON_NO_ROOM
                          ? "more than there is memory for, not"
                      : "too large",
                      (size_t) 8, ctx->primary->id);
    }

    ngx_http_idempotency_settle(ctx, outcome, reason);

    ngx_http_idempotency_enter(ctx, NGX_HTTP_IDEMPOTENCY_SEND,
                               "it can't be held");

    ngx_http_idempotency_execute_let_go(r);

    ctx->ranges = 0;
    r->buffered &= ~NGX_HTTP_IDEMPOTENCY_BUFFERED;
}


/*
 * Nothing of it went to the client yet.  So this need not be a response that
 * breaks off: it is what nginx answers when an upstream fails.
 */

static ngx_int_t
ngx_http_idempotency_truncated(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_enter(ctx, NGX_HTTP_IDEMPOTENCY_EXECUTE,
                               "the response broke off");

    ngx_http_clean_header(r);

    r->buffered &= ~NGX_HTTP_IDEMPOTENCY_BUFFERED;

    return NGX_HTTP_BAD_GATEWAY;
}


static ngx_int_t
ngx_http_idempotency_complete(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t                       rc;
    ngx_http_idempotency_outcome_e  outcome;

    ngx_http_idempotency_hold_last(ctx);

    /* the length of these, if they have one, is not that of their body */

    if (ctx->response.body_len == 0
        && (ctx->response.status == NGX_HTTP_NO_CONTENT
            || ctx->response.status == NGX_HTTP_NOT_MODIFIED
            || r->method == NGX_HTTP_HEAD))
    {
        ctx->response.header_only = 1;
    }

    outcome = ngx_http_idempotency_outcome(r, ctx, 1);

    if (outcome == NGX_HTTP_IDEMPOTENCY_OUTCOME_KEEP && ctx->app_off) {
        outcome = NGX_HTTP_IDEMPOTENCY_OUTCOME_RELEASE;
    }

    if (ctx->composed && r->method != NGX_HTTP_HEAD
        && r->headers_out.content_length_n
           != (off_t) ctx->response.body_len)
    {
        /* one of the slices broke off, and nginx went on */

        outcome = NGX_HTTP_IDEMPOTENCY_OUTCOME_UNKNOWN;

        ctx->ranges = 0;
        r->keepalive = 0;
    }

    if (outcome == NGX_HTTP_IDEMPOTENCY_OUTCOME_KEEP) {
        rc = ngx_http_idempotency_commit(r, ctx);

        if (rc != NGX_DECLINED) {
            return rc;
        }

        /* it ran, and whoever can't get its response again must know */

        ngx_http_idempotency_let_through(r, ctx,
                                         NGX_HTTP_IDEMPOTENCY_REASON_NO_ROOM);

        return ngx_http_idempotency_send(r, ctx);
    }

    ngx_http_idempotency_settle(ctx, outcome,
                                NGX_HTTP_IDEMPOTENCY_REASON_NONE);

    ngx_http_idempotency_enter(ctx, NGX_HTTP_IDEMPOTENCY_SEND,
                               outcome == NGX_HTTP_IDEMPOTENCY_OUTCOME_UNKNOWN
                               ? "the outcome is unknown" : "not kept");

    return ngx_http_idempotency_send(r, ctx);
}


/*
 * What an execution says in its header, besides the application's words: a
 * hint, for the lack of which nobody is to lose the response.
 */

static void
ngx_http_idempotency_own_headers(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t  value;

    if (!ctx->expired || !ctx->conf->headers) {
        return;
    }

    ngx_str_set(&value, "true");

    (void) ngx_http_idempotency_add_header(r, "X-Idempotency-Expired", &value);
}


ngx_int_t
ngx_http_idempotency_pass_header(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_own_headers(r, ctx);

    if (ctx->charset) {
        ctx->charset = 0;
        ngx_str_null(&r->headers_out.charset);
    }

    return ngx_http_next_header_filter(r);
}


ngx_int_t
ngx_http_idempotency_pass_body(ngx_http_request_t *r, ngx_chain_t *in)
{
    return ngx_http_next_body_filter(r, in);
}


/* what was held, to the client */

ngx_int_t
ngx_http_idempotency_send(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  rc;

    r->buffered &= ~NGX_HTTP_IDEMPOTENCY_BUFFERED;

    if (ctx->ranges) {

        /* of several ranges, the range body filter would have to make one */

        r->allow_ranges = 1;
        r->single_range = 1;
    }

    rc = ngx_http_idempotency_pass_header(r, ctx);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    if (ctx->ranges
        && ngx_http_get_module_ctx(r, ngx_http_range_body_filter_module))
    {
        ngx_http_idempotency_cut(ctx, r->headers_out.content_offset,
                                 ngx_http_idempotency_range_len(r));
    }

    return ngx_http_next_body_filter(r, ctx->held);
}


/*
 * As Content-Range has it: trailers, for one, take the length of the response
 * away after nginx has set it.
 */

static off_t
ngx_http_idempotency_range_len(ngx_http_request_t *r)
{
    off_t             first, last;
    u_char           *p, *dash, *slash, *end;
    ngx_table_elt_t  *h;

    h = r->headers_out.content_range;

    if (h == NULL || h->value.len <= sizeof("bytes ") - 1) {
        return ngx_max(r->headers_out.content_length_n, 0);
    }

    p = h->value.data + sizeof("bytes ") - 1;
    end = h->value.data + h->value.len;

    dash = ngx_strlchr(p, end, '-');
    slash = ngx_strlchr(p, end, '/');

    if (dash == NULL || slash == NULL || slash < dash) {
        return ngx_max(r->headers_out.content_length_n, 0);
    }

    first = ngx_atoof(p, dash - p);
    last = ngx_atoof(dash + 1, slash - dash - 1);

    if (first == NGX_ERROR || last == NGX_ERROR || last < first) {
        return 0;
    }

    return last - first + 1;
}


/* the range that the client wants, of a whole response */

static void
ngx_http_idempotency_cut(ngx_http_idempotency_ctx_t *ctx, off_t offset,
    off_t len)
{
    off_t         size;
    ngx_buf_t    *b;
    ngx_chain_t  *cl, **ll;

    ll = &ctx->held;

    while (*ll) {
        cl = *ll;
        b = cl->buf;

        size = b->last - b->pos;

        if (offset >= size || len == 0) {
            offset -= ngx_min(offset, size);
            *ll = cl->next;
            continue;
        }

        b->pos += offset;
        offset = 0;

        if (b->last - b->pos > len) {
            b->last = b->pos + len;
        }

        len -= b->last - b->pos;

        if (len == 0) {
            b->last_buf = 1;
            b->last_in_chain = 1;
        }

        ll = &cl->next;
    }
}
