
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * SHA-256 for record ids, fingerprints and bodies; tokens.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <openssl/rand.h>

#include "ngx_http_idem_number.h"
#include "canonical/ngx_http_idem_digest.h"


/* the length before a field */
#define NGX_HTTP_IDEM_DIGEST_PREFIX    8


static void ngx_http_idem_digest_gather(
    ngx_http_idem_digest_t *d, ngx_str_t *fields, ngx_uint_t n);
static u_char *ngx_http_idem_digest_pack(u_char *p, u_char *last,
    ngx_str_t *fields, ngx_uint_t n);


/* a random half for the process, and a count: unique, at no cost */
static u_char    ngx_http_idem_token_base[8];
static uint64_t  ngx_http_idem_token_count;


ngx_int_t
ngx_http_idem_digest_init(ngx_log_t *log)
{
    if (RAND_bytes(ngx_http_idem_token_base,
                   sizeof(ngx_http_idem_token_base))
        != 1)
    {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "idempotency: RAND_bytes() failed");
        return NGX_ERROR;
    }

    return NGX_OK;
}


/*
 * A field is its length, then its bytes.  Short ones are put together first: a
 * call of SHA256_Update() costs more than the bytes it is for.
 */

void
ngx_http_idem_digest_field(ngx_http_idem_digest_t *d,
    const u_char *p, size_t len)
{
    ngx_str_t  field;

    field.data = (u_char *) p;
    field.len = len;

    ngx_http_idem_digest_gather(d, &field, 1);
}


static void
ngx_http_idem_digest_gather(ngx_http_idem_digest_t *d,
    ngx_str_t *fields, ngx_uint_t n)
{
    u_char      buf[NGX_HTTP_IDEM_DIGEST_GATHERED], *p;
    ngx_uint_t  i;

    p = ngx_http_idem_digest_pack(buf, buf + sizeof(buf), fields, n);

    if (p) {
        ngx_http_idem_digest_update(d, buf, p - buf);
        return;
    }

    for (i = 0; i < n; i++) {
        p = ngx_http_idem_put64(buf, fields[i].len);

        ngx_http_idem_digest_update(d, buf, p - buf);
        ngx_http_idem_digest_update(d, fields[i].data, fields[i].len);
    }
}


/* fields as they go into a digest; NULL if there is no room for them */

static u_char *
ngx_http_idem_digest_pack(u_char *p, u_char *last, ngx_str_t *fields,
    ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 0; i < n; i++) {

        if ((size_t) (last - p) < NGX_HTTP_IDEM_DIGEST_PREFIX
            || (size_t) (last - p) - NGX_HTTP_IDEM_DIGEST_PREFIX
               < fields[i].len)
        {
            return NULL;
        }

        p = ngx_http_idem_put64(p, fields[i].len);

        if (fields[i].len) {
            p = ngx_cpymem(p, fields[i].data, fields[i].len);
        }
    }

    return p;
}


void
ngx_http_idem_digest_fields(u_char *hash, ngx_str_t *fields, ngx_uint_t n)
{
    ngx_http_idem_digest_t  d;

    ngx_http_idem_digest_start(&d);
    ngx_http_idem_digest_gather(&d, fields, n);
    ngx_http_idem_digest_done(&d, hash);
}


void
ngx_http_idem_digest_again(ngx_http_idem_digest_memo_t *memo,
    u_char *hash, ngx_str_t *fields, ngx_uint_t n)
{
    u_char   buf[NGX_HTTP_IDEM_DIGEST_GATHERED], *p;
    size_t   len;

    p = ngx_http_idem_digest_pack(buf, buf + sizeof(buf), fields, n);

    if (p == NULL) {
        ngx_http_idem_digest_fields(hash, fields, n);
        return;
    }

    len = p - buf;

    if (memo->len != len || ngx_memcmp(memo->fields, buf, len) != 0) {

        ngx_http_idem_digest_plain(memo->hash, buf, len);

        ngx_memcpy(memo->fields, buf, len);
        memo->len = len;
    }

    ngx_memcpy(hash, memo->hash, NGX_HTTP_IDEM_HASH_LEN);
}


void
ngx_http_idem_token(u_char *token)
{
    uint64_t  n;

    n = ++ngx_http_idem_token_count;

    ngx_memcpy(token, ngx_http_idem_token_base, 8);
    ngx_memcpy(token + 8, &n, 8);
}
