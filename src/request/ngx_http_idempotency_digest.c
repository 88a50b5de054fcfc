
/*
 * SHA-256 for record ids, fingerprints and bodies; tokens.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <openssl/rand.h>

#include "record/ngx_http_idempotency_number.h"
#include "record/ngx_http_idempotency_record.h"
#include "request/ngx_http_idempotency_digest.h"


#define NGX_HTTP_IDEMPOTENCY_DIGESTS_KEPT     32

/* the length before a field */
#define NGX_HTTP_IDEMPOTENCY_DIGEST_PREFIX    8


static void ngx_http_idempotency_digest_gather(EVP_MD_CTX *md,
    ngx_str_t *fields, ngx_uint_t n);
static u_char *ngx_http_idempotency_digest_pack(u_char *p, u_char *last,
    ngx_str_t *fields, ngx_uint_t n);


static EVP_MD       *ngx_http_idempotency_sha256;
static EVP_MD_CTX   *ngx_http_idempotency_digests[
                                          NGX_HTTP_IDEMPOTENCY_DIGESTS_KEPT];
static ngx_uint_t    ngx_http_idempotency_ndigests;
static EVP_MD_CTX   *ngx_http_idempotency_scratch;

/* a random half for the process, and a count: unique, at no cost */
static u_char        ngx_http_idempotency_token_base[8];
static uint64_t      ngx_http_idempotency_token_count;


ngx_int_t
ngx_http_idempotency_digest_init(ngx_log_t *log)
{
    if (RAND_bytes(ngx_http_idempotency_token_base,
                   sizeof(ngx_http_idempotency_token_base))
        != 1)
    {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "idempotency: RAND_bytes() failed");
        return NGX_ERROR;
    }

    if (ngx_http_idempotency_sha256) {
        return NGX_OK;
    }

#if (OPENSSL_VERSION_NUMBER >= 0x30000000L)
    ngx_http_idempotency_sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
#else
    ngx_http_idempotency_sha256 = (EVP_MD *) EVP_sha256();
#endif

    if (ngx_http_idempotency_sha256 == NULL) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "idempotency: OpenSSL has no SHA-256");
        return NGX_ERROR;
    }

    return NGX_OK;
}


void
ngx_http_idempotency_digest_exit(void)
{
    while (ngx_http_idempotency_ndigests) {
        EVP_MD_CTX_free(
            ngx_http_idempotency_digests[--ngx_http_idempotency_ndigests]);
    }

    EVP_MD_CTX_free(ngx_http_idempotency_scratch);
    ngx_http_idempotency_scratch = NULL;

#if (OPENSSL_VERSION_NUMBER >= 0x30000000L)
    EVP_MD_free(ngx_http_idempotency_sha256);
#endif

    ngx_http_idempotency_sha256 = NULL;
}


EVP_MD_CTX *
ngx_http_idempotency_digest_get(void)
{
    EVP_MD_CTX  *md;

    if (ngx_http_idempotency_ndigests) {
        md = ngx_http_idempotency_digests[--ngx_http_idempotency_ndigests];

    } else {
        md = EVP_MD_CTX_new();
        if (md == NULL) {
            return NULL;
        }
    }

    /* the same algorithm again only resets the context */

    if (EVP_DigestInit_ex(md, ngx_http_idempotency_sha256, NULL) != 1) {
        EVP_MD_CTX_free(md);
        return NULL;
    }

    return md;
}


void
ngx_http_idempotency_digest_put(EVP_MD_CTX *md)
{
    if (ngx_http_idempotency_ndigests < NGX_HTTP_IDEMPOTENCY_DIGESTS_KEPT) {
        ngx_http_idempotency_digests[ngx_http_idempotency_ndigests++] = md;
        return;
    }

    EVP_MD_CTX_free(md);
}


EVP_MD_CTX *
ngx_http_idempotency_digest_scratch(void)
{
    if (ngx_http_idempotency_scratch == NULL) {
        ngx_http_idempotency_scratch = ngx_http_idempotency_digest_get();
    }

    return ngx_http_idempotency_scratch;
}


void
ngx_http_idempotency_digest_update(EVP_MD_CTX *md, const void *p, size_t len)
{
    (void) EVP_DigestUpdate(md, p, len);
}


/*
 * A field is its length, then its bytes.  Short ones are put together first: a
 * call of EVP_DigestUpdate() costs more than the bytes it is for.
 */

void
ngx_http_idempotency_digest_field(EVP_MD_CTX *md, const u_char *p, size_t len)
{
    ngx_str_t  field;

    field.data = (u_char *) p;
    field.len = len;

    ngx_http_idempotency_digest_gather(md, &field, 1);
}


static void
ngx_http_idempotency_digest_gather(EVP_MD_CTX *md, ngx_str_t *fields,
    ngx_uint_t n)
{
    u_char      buf[NGX_HTTP_IDEMPOTENCY_DIGEST_GATHERED], *p;
    ngx_uint_t  i;

    p = ngx_http_idempotency_digest_pack(buf, buf + sizeof(buf), fields, n);

    if (p) {
        (void) EVP_DigestUpdate(md, buf, p - buf);
        return;
    }

    for (i = 0; i < n; i++) {
        p = ngx_http_idempotency_put64(buf, fields[i].len);

        (void) EVP_DigestUpdate(md, buf, p - buf);
        (void) EVP_DigestUpdate(md, fields[i].data, fields[i].len);
    }
}


/* fields as they go into a digest; NULL if there is no room for them */

static u_char *
ngx_http_idempotency_digest_pack(u_char *p, u_char *last, ngx_str_t *fields,
    ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 0; i < n; i++) {

        if ((size_t) (last - p) < NGX_HTTP_IDEMPOTENCY_DIGEST_PREFIX
            || (size_t) (last - p) - NGX_HTTP_IDEMPOTENCY_DIGEST_PREFIX
               < fields[i].len)
        {
            return NULL;
        }

        p = ngx_http_idempotency_put64(p, fields[i].len);

        if (fields[i].len) {
            p = ngx_cpymem(p, fields[i].data, fields[i].len);
        }
    }

    return p;
}


void
ngx_http_idempotency_digest_done(EVP_MD_CTX *md, u_char *hash)
{
    (void) EVP_DigestFinal_ex(md, hash, NULL);

    ngx_http_idempotency_digest_put(md);
}


ngx_int_t
ngx_http_idempotency_digest_fields(u_char *hash, ngx_str_t *fields,
    ngx_uint_t n)
{
    EVP_MD_CTX  *md;

    md = ngx_http_idempotency_digest_get();
    if (md == NULL) {
        return NGX_ERROR;
    }

    ngx_http_idempotency_digest_gather(md, fields, n);
    ngx_http_idempotency_digest_done(md, hash);

    return NGX_OK;
}


ngx_int_t
ngx_http_idempotency_digest_again(ngx_http_idempotency_digest_memo_t *memo,
    u_char *hash, ngx_str_t *fields, ngx_uint_t n)
{
    u_char   buf[NGX_HTTP_IDEMPOTENCY_DIGEST_GATHERED], *p;
    size_t   len;

    p = ngx_http_idempotency_digest_pack(buf, buf + sizeof(buf), fields, n);

    if (p == NULL) {
        return ngx_http_idempotency_digest_fields(hash, fields, n);
    }

    len = p - buf;

    if (memo->len != len || ngx_memcmp(memo->fields, buf, len) != 0) {

        memo->len = 0;

        if (ngx_http_idempotency_digest_fields(memo->hash, fields, n)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_memcpy(memo->fields, buf, len);
        memo->len = len;
    }

    ngx_memcpy(hash, memo->hash, NGX_HTTP_IDEMPOTENCY_HASH_LEN);

    return NGX_OK;
}


void
ngx_http_idempotency_token(u_char *token)
{
    uint64_t  n;

    n = ++ngx_http_idempotency_token_count;

    ngx_memcpy(token, ngx_http_idempotency_token_base, 8);
    ngx_memcpy(token + 8, &n, 8);
}
