
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Encodes commands and parses replies.
 *
 * hiredis parses the replies, with limits: the replies that the client
 * expects are flat arrays of a few fields.  Commands are written straight
 * into the buffer of their connection: hiredis would require a response in
 * one piece and copy it twice.
 *
 * Called by the user's encode() callbacks, the setup and the connection.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_redis.h"


/* limit of array elements in a reply, unless more are expected */
#define NGX_REDIS_ELEMENTS  64

#define NGX_REDIS_OUT_MIN   4096

#if (HIREDIS_MAJOR == 0)
typedef int     ngx_redis_elements_t;
#else
typedef size_t  ngx_redis_elements_t;
#endif


static void *ngx_redis_string(const redisReadTask *task, char *data,
    size_t len);
static void *ngx_redis_array(const redisReadTask *task,
    ngx_redis_elements_t n);
static void *ngx_redis_integer(const redisReadTask *task, long long n);
static void *ngx_redis_object(const redisReadTask *task);
static u_char *ngx_redis_digits(u_char *text, uint64_t n);


static redisReplyObjectFunctions  ngx_redis_functions;


/* the numbers below 100 */

static const u_char  ngx_redis_pairs[] =
    "00010203040506070809101112131415161718192021222324"
    "25262728293031323334353637383940414243444546474849"
    "50515253545556575859606162636465666768697071727374"
    "75767778798081828384858687888990919293949596979899";


/* "elements" is the limit of the outermost array */

redisReader *
ngx_redis_reader(size_t elements)
{
    redisReader  *reader;

    reader = redisReaderCreate();
    if (reader == NULL) {
        return NULL;
    }

    if (ngx_redis_functions.freeObject == NULL) {
        ngx_redis_functions = *reader->fn;
        ngx_redis_functions.createString = ngx_redis_string;
        ngx_redis_functions.createArray = ngx_redis_array;
        ngx_redis_functions.createInteger = ngx_redis_integer;
    }

    reader->fn = &ngx_redis_functions;
    reader->privdata = (void *) (uintptr_t)
                       ngx_max(elements, NGX_REDIS_ELEMENTS);

    return reader;
}


/*
 * These create the same replies as hiredis does, to be freed by
 * freeReplyObject().  hiredis uses calloc(), which in glibc can't reuse
 * recently freed memory from the thread cache.
 */

static void *
ngx_redis_string(const redisReadTask *task, char *data, size_t len)
{
    char        *str;
    redisReply  *reply;

    str = malloc(len + 1);
    if (str == NULL) {
        return NULL;
    }

    reply = ngx_redis_object(task);
    if (reply == NULL) {
        free(str);
        return NULL;
    }

    ngx_memcpy(str, data, len);
    str[len] = '\0';

    reply->str = str;
    reply->len = len;

    return reply;
}


static void *
ngx_redis_array(const redisReadTask *task, ngx_redis_elements_t n)
{
    redisReply  *reply, **element;

    if ((size_t) n > NGX_REDIS_ELEMENTS
        && (task->parent || (size_t) n > (uintptr_t) task->privdata))
    {
        return NULL;
    }

    if (n <= 0) {
        return ngx_redis_object(task);
    }

    element = malloc(n * sizeof(redisReply *));
    if (element == NULL) {
        return NULL;
    }

    reply = ngx_redis_object(task);
    if (reply == NULL) {
        free(element);
        return NULL;
    }

    ngx_memzero(element, n * sizeof(redisReply *));

    reply->element = element;
    reply->elements = n;

    return reply;
}


static void *
ngx_redis_integer(const redisReadTask *task, long long n)
{
    redisReply  *reply;

    reply = ngx_redis_object(task);

    if (reply) {
        reply->integer = n;
    }

    return reply;
}


/* hiredis frees a reply with its array, so nothing may fail after this */

static void *
ngx_redis_object(const redisReadTask *task)
{
    redisReply  *reply, *parent;

    reply = malloc(sizeof(redisReply));
    if (reply == NULL) {
        return NULL;
    }

    ngx_memzero(reply, sizeof(redisReply));
    reply->type = task->type;

    if (task->parent) {
        parent = task->parent->obj;
        parent->element[task->idx] = reply;
    }

    return reply;
}


/* makes room for "size" more bytes in conn->out */

u_char *
ngx_redis_reserve(ngx_redis_conn_t *conn, size_t size)
{
    size_t      len, room;
    u_char     *p;
    ngx_buf_t  *b;

    b = &conn->out;

    if ((size_t) (b->end - b->last) >= size) {
        return b->last;
    }

    len = b->last - b->pos;
    room = ngx_max(2 * (size_t) (b->end - b->start), NGX_REDIS_OUT_MIN);

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
ngx_redis_put(u_char *p, const void *data, size_t len)
{
    p = ngx_redis_put_line(p, '$', len);
    p = ngx_cpymem(p, data, len);

    *p++ = CR; *p++ = LF;

    return p;
}


u_char *
ngx_redis_put_number(u_char *p, uint64_t n)
{
    u_char  *start, text[NGX_INT64_LEN];

    start = ngx_redis_digits(text, n);

    return ngx_redis_put(p, start, text + sizeof(text) - start);
}


/* a type byte and a number; short numbers are frequent, so they are fast */

u_char *
ngx_redis_put_line(u_char *p, u_char type, uint64_t n)
{
    u_char  *start, text[NGX_INT64_LEN];

    *p++ = type;

    if (n < 10) {
        *p++ = (u_char) ('0' + n);

    } else if (n < 100) {
        p = ngx_cpymem(p, &ngx_redis_pairs[2 * n], 2);

    } else {
        start = ngx_redis_digits(text, n);
        p = ngx_cpymem(p, start, text + sizeof(text) - start);
    }

    *p++ = CR; *p++ = LF;

    return p;
}


/* writes digits to the end of "text", which has NGX_INT64_LEN bytes; returns
   the first digit */

static u_char *
ngx_redis_digits(u_char *text, uint64_t n)
{
    u_char  *p;

    p = text + NGX_INT64_LEN;

    for ( /* void */ ; n >= 100; n /= 100) {
        p -= 2;
        ngx_memcpy(p, &ngx_redis_pairs[2 * (n % 100)], 2);
    }

    *--p = ngx_redis_pairs[2 * n + 1];

    if (n >= 10) {
        *--p = ngx_redis_pairs[2 * n];
    }

    return p;
}


/* the bytes only: the length line has been written */

u_char *
ngx_redis_put_chain(u_char *p, ngx_chain_t *in, size_t size)
{
    size_t  len;

    for ( /* void */ ; in && size; in = in->next) {
        len = ngx_min((size_t) (in->buf->last - in->buf->pos), size);

        p = ngx_cpymem(p, in->buf->pos, len);
        size -= len;
    }

    /* the length line is out, so a chain that is too short is padded */

    ngx_memzero(p, size);

    return p + size;
}


/* an error reply for the log, which ends before "last" and with a NUL;
   unprintable bytes are replaced */

u_char *
ngx_redis_error_text(u_char *p, u_char *last, redisReply *reply)
{
    size_t  i;
    u_char  ch;

    for (i = 0; i < (size_t) reply->len && p < last - 1; i++) {
        ch = (u_char) reply->str[i];
        *p++ = (ch < 0x20 || ch > 0x7e) ? '?' : ch;
    }

    /* a sentence goes on behind the error */

    while (i && (p[-1] == '.' || p[-1] == ' ')) {
        p--;
        i--;
    }

    *p = '\0';

    return p;
}


/*
 * Redis 6 wraps the error of a command that was called by a script into
 * another error, so the word may be anywhere in the reply.
 */

ngx_uint_t
ngx_redis_error_is(redisReply *reply, const char *word)
{
    return reply->type == REDIS_REPLY_ERROR
           && ngx_strnstr((u_char *) reply->str, (char *) word,
                          (size_t) reply->len)
              != NULL;
}


/* NGX_DECLINED: the field is nil */

ngx_int_t
ngx_redis_field(redisReply *reply, ngx_uint_t n, ngx_str_t *value)
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
