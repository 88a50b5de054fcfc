
/*
 * Bytes: commands as they go out, replies as they come in.
 *
 * Replies are read by hiredis, bounded: a reply of ours is a flat array of a
 * few fields.  Commands are written here, straight into the buffer of their
 * connection: hiredis would want a response in one piece, and copy it twice.
 *
 * Called by the scripts, the set-up and the connection.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/redis/ngx_http_idempotency_redis.h"


/* elements of an array that is no attack, unless more are expected */
#define NGX_HTTP_IDEMPOTENCY_REDIS_ELEMENTS  64

#define NGX_HTTP_IDEMPOTENCY_REDIS_OUT_MIN   4096

#if (HIREDIS_MAJOR == 0)
typedef int     ngx_http_idempotency_redis_elements_t;
#else
typedef size_t  ngx_http_idempotency_redis_elements_t;
#endif


static void *ngx_http_idempotency_redis_array(const redisReadTask *task,
    ngx_http_idempotency_redis_elements_t n);


static redisReplyObjectFunctions   ngx_http_idempotency_redis_functions;
static redisReplyObjectFunctions  *ngx_http_idempotency_redis_defaults;


/* elements: of the outermost array, if these may be many */

redisReader *
ngx_http_idempotency_redis_reader(size_t elements)
{
    redisReader  *reader;

    reader = redisReaderCreate();
    if (reader == NULL) {
        return NULL;
    }

    if (ngx_http_idempotency_redis_defaults == NULL) {
        ngx_http_idempotency_redis_defaults = reader->fn;
        ngx_http_idempotency_redis_functions = *reader->fn;
        ngx_http_idempotency_redis_functions.createArray =
                                             ngx_http_idempotency_redis_array;
    }

    reader->fn = &ngx_http_idempotency_redis_functions;
    reader->privdata = (void *) (uintptr_t)
                       ngx_max(elements, NGX_HTTP_IDEMPOTENCY_REDIS_ELEMENTS);

    return reader;
}


static void *
ngx_http_idempotency_redis_array(const redisReadTask *task,
    ngx_http_idempotency_redis_elements_t n)
{
    if ((size_t) n > NGX_HTTP_IDEMPOTENCY_REDIS_ELEMENTS
        && (task->parent || (size_t) n > (uintptr_t) task->privdata))
    {
        return NULL;
    }

    return ngx_http_idempotency_redis_defaults->createArray(task, n);
}


/* room for "size" more bytes behind what is to be sent */

u_char *
ngx_http_idempotency_redis_reserve(ngx_http_idempotency_redis_conn_t *conn,
    size_t size)
{
    size_t      len, room;
    u_char     *p;
    ngx_buf_t  *b;

    b = &conn->out;

    if ((size_t) (b->end - b->last) >= size) {
        return b->last;
    }

    len = b->last - b->pos;
    room = ngx_max(2 * (size_t) (b->end - b->start),
                   NGX_HTTP_IDEMPOTENCY_REDIS_OUT_MIN);

    if ((size_t) (b->end - b->start) >= len + size) {
        ngx_memmove(b->start, b->pos, len);

    } else {
        room = ngx_max(room, len + size);

        p = ngx_alloc(room, ngx_cycle->log);
        if (p == NULL) {
            return NULL;
        }

        if (len) {
            ngx_memcpy(p, b->pos, len);
        }

        if (b->start) {
            ngx_free(b->start);
        }

        b->start = p;
        b->end = p + room;
    }

    b->pos = b->start;
    b->last = b->start + len;

    return b->last;
}


u_char *
ngx_http_idempotency_redis_put_count(u_char *p, ngx_uint_t n)
{
    return ngx_sprintf(p, "*%ui" CRLF, n);
}


u_char *
ngx_http_idempotency_redis_put(u_char *p, const void *data, size_t len)
{
    p = ngx_sprintf(p, "$%uz" CRLF, len);
    p = ngx_cpymem(p, data, len);

    *p++ = CR; *p++ = LF;

    return p;
}


u_char *
ngx_http_idempotency_redis_put_number(u_char *p, uint64_t n)
{
    u_char  *last, text[NGX_INT64_LEN];

    last = ngx_sprintf(text, "%uL", n);

    return ngx_http_idempotency_redis_put(p, text, last - text);
}


u_char *
ngx_http_idempotency_redis_put_chain(u_char *p, ngx_chain_t *in, size_t size)
{
    size_t  len;

    p = ngx_sprintf(p, "$%uz" CRLF, size);

    for ( /* void */ ; in && size; in = in->next) {
        len = ngx_min((size_t) (in->buf->last - in->buf->pos), size);

        p = ngx_cpymem(p, in->buf->pos, len);
        size -= len;
    }

    /* the length is out: a chain that is shorter than told is filled up */

    ngx_memzero(p, size);
    p += size;

    *p++ = CR; *p++ = LF;

    return p;
}


/* what the server said, fit for a log: nothing of it is ours to trust */

u_char *
ngx_http_idempotency_redis_error_text(u_char *p, u_char *last,
    redisReply *reply)
{
    size_t  i;
    u_char  ch;

    for (i = 0; i < (size_t) reply->len && p < last; i++) {
        ch = (u_char) reply->str[i];
        *p++ = (ch < 0x20 || ch > 0x7e) ? '?' : ch;
    }

    return p;
}


/*
 * Redis 6 wraps the error of a command that a script called into one of its
 * own, so a word may stand anywhere.
 */

ngx_uint_t
ngx_http_idempotency_redis_error_is(redisReply *reply, const char *word)
{
    return reply->type == REDIS_REPLY_ERROR
           && ngx_strnstr((u_char *) reply->str, (char *) word,
                          (size_t) reply->len)
              != NULL;
}


/* NGX_DECLINED: it is nil */

ngx_int_t
ngx_http_idempotency_redis_field(redisReply *reply, ngx_uint_t n,
    ngx_str_t *value)
{
    redisReply  *field;

    if (reply->type != REDIS_REPLY_ARRAY || n >= (ngx_uint_t) reply->elements) {
        return NGX_ERROR;
    }

    field = reply->element[n];

    if (field->type == REDIS_REPLY_NIL) {
        ngx_str_null(value);
        return NGX_DECLINED;
    }

    if (field->type != REDIS_REPLY_STRING) {
        return NGX_ERROR;
    }

    value->data = (u_char *) field->str;
    value->len = (size_t) field->len;

    return NGX_OK;
}


/* an integer, or a string of digits: Redis keeps a number as it was written */

ngx_int_t
ngx_http_idempotency_redis_number(redisReply *reply, ngx_uint_t n,
    int64_t *value)
{
    off_t      number;
    ngx_int_t  rc;
    ngx_str_t  text;

    if (reply->type == REDIS_REPLY_ARRAY
        && n < (ngx_uint_t) reply->elements
        && reply->element[n]->type == REDIS_REPLY_INTEGER)
    {
        *value = reply->element[n]->integer;
        return NGX_OK;
    }

    rc = ngx_http_idempotency_redis_field(reply, n, &text);

    if (rc != NGX_OK) {
        return rc;
    }

    number = ngx_atoof(text.data, text.len);

    if (number == NGX_ERROR) {
        return NGX_ERROR;
    }

    *value = number;

    return NGX_OK;
}
