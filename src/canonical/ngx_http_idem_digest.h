
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * SHA-256, and the one way in which several strings go into one: each with
 * its length before it, so that "a" + "bc" is not "ab" + "c".
 *
 * OpenSSL's plain functions for it, without EVP: fetching, contexts and their
 * clearing would cost as much as to hash a small body.
 */


#ifndef _NGX_HTTP_IDEM_DIGEST_H_INCLUDED_
#define _NGX_HTTP_IDEM_DIGEST_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#ifndef OPENSSL_SUPPRESS_DEPRECATED
#define OPENSSL_SUPPRESS_DEPRECATED
#endif

#include <openssl/sha.h>


#define NGX_HTTP_IDEM_HASH_LEN         32

/* fields of so many bytes, with their lengths, go into a digest at once */
#define NGX_HTTP_IDEM_DIGEST_GATHERED  256


typedef SHA256_CTX  ngx_http_idem_digest_t;


/* the last fields of a kind, and their hash: the next are often the same */

typedef struct {
    size_t   len;
    u_char   fields[NGX_HTTP_IDEM_DIGEST_GATHERED];
    u_char   hash[NGX_HTTP_IDEM_HASH_LEN];
} ngx_http_idem_digest_memo_t;


ngx_int_t ngx_http_idem_digest_init(ngx_log_t *log);

/* of a digest that was started */
void ngx_http_idem_digest_field(ngx_http_idem_digest_t *d,
    const u_char *p, size_t len);

/* fields into one hash */
void ngx_http_idem_digest_fields(u_char *hash, ngx_str_t *fields,
    ngx_uint_t n);

/* the same, from the memo if these fields were the last */
void ngx_http_idem_digest_again(ngx_http_idem_digest_memo_t *memo,
    u_char *hash, ngx_str_t *fields, ngx_uint_t n);

/* a token no other holder has */
void ngx_http_idem_token(u_char *token);


static ngx_inline void
ngx_http_idem_digest_start(ngx_http_idem_digest_t *d)
{
    (void) SHA256_Init(d);
}


static ngx_inline void
ngx_http_idem_digest_update(ngx_http_idem_digest_t *d,
    const void *p, size_t len)
{
    (void) SHA256_Update(d, p, len);
}


static ngx_inline void
ngx_http_idem_digest_done(ngx_http_idem_digest_t *d, u_char *hash)
{
    (void) SHA256_Final(hash, d);
}


/* bytes as they are, without a length: what sha256sum makes of them */

static ngx_inline void
ngx_http_idem_digest_plain(u_char *hash, const u_char *p, size_t len)
{
    ngx_http_idem_digest_t  d;

    ngx_http_idem_digest_start(&d);
    ngx_http_idem_digest_update(&d, p, len);
    ngx_http_idem_digest_done(&d, hash);
}


#endif /* _NGX_HTTP_IDEM_DIGEST_H_INCLUDED_ */
