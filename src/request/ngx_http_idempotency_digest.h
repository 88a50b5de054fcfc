
/*
 * SHA-256, and the one way in which several strings go into one: each with
 * its length before it, so that "a" + "bc" is not "ab" + "c".
 *
 * OpenSSL's algorithm is fetched once per worker, and digest contexts are
 * used again: with OpenSSL 3 a fetch costs more than the hash.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_DIGEST_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_DIGEST_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include <openssl/evp.h>


#define NGX_HTTP_IDEMPOTENCY_HASH_LEN         32

/* fields of so many bytes, with their lengths, go into a digest at once */
#define NGX_HTTP_IDEMPOTENCY_DIGEST_GATHERED  256


/* the last fields of a kind, and their hash: the next are often the same */

typedef struct {
    size_t   len;
    u_char   fields[NGX_HTTP_IDEMPOTENCY_DIGEST_GATHERED];
    u_char   hash[NGX_HTTP_IDEMPOTENCY_HASH_LEN];
} ngx_http_idempotency_digest_memo_t;


ngx_int_t ngx_http_idempotency_digest_init(ngx_log_t *log);
void ngx_http_idempotency_digest_exit(void);

/* a context ready for data; NULL without memory */
EVP_MD_CTX *ngx_http_idempotency_digest_get(void);
void ngx_http_idempotency_digest_put(EVP_MD_CTX *md);

/* one for all whose use of it ends with their call; NULL without memory */
EVP_MD_CTX *ngx_http_idempotency_digest_scratch(void);

void ngx_http_idempotency_digest_update(EVP_MD_CTX *md, const void *p,
    size_t len);
void ngx_http_idempotency_digest_field(EVP_MD_CTX *md, const u_char *p,
    size_t len);

/* gives the context back */
void ngx_http_idempotency_digest_done(EVP_MD_CTX *md, u_char *hash);

/* fields into one hash; NGX_ERROR without memory */
ngx_int_t ngx_http_idempotency_digest_fields(u_char *hash, ngx_str_t *fields,
    ngx_uint_t n);

/* the same, from the memo if these fields were the last */
ngx_int_t ngx_http_idempotency_digest_again(
    ngx_http_idempotency_digest_memo_t *memo, u_char *hash, ngx_str_t *fields,
    ngx_uint_t n);

/* a token no other holder has */
void ngx_http_idempotency_token(u_char *token);


#endif /* _NGX_HTTP_IDEMPOTENCY_DIGEST_H_INCLUDED_ */
