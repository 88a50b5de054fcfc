
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_form.c src/canonical/ngx_http_idem_canon.c src/canonical/ngx_http_idem_canon_close.c ; libs: -lcrypto */

/*
 * The form reader: the answer and the digest do not depend on how the body is
 * cut, and an allocation that fails is an error, not a crash.
 */


#include "fuzz.h"

#include "canonical/ngx_http_idem_form.h"
#include "canon.h"


static ngx_str_t  excluded[] = { ngx_string("ts"), ngx_string("a[]") };


static ngx_int_t
walk(const ngx_http_idem_form_options_t *options, const uint8_t *p,
    size_t len, size_t piece, u_char *digest)
{
    size_t                 n;
    u_char                *copy;
    ngx_int_t              rc;
    ngx_http_idem_form_t  *f;

    f = ngx_http_idem_form_create(options);
    if (f == NULL) {
        return NGX_ERROR;
    }

    while (len) {
        n = (piece && piece < len) ? piece : len;
        copy = fuzz_copy(p, n);
        ngx_http_idem_form_feed(f, copy, n);
        free(copy);
        p += n;
        len -= n;
    }

    rc = ngx_http_idem_form_done(f, digest);

    ngx_http_idem_form_destroy(f);

    return rc;
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    u_char                         one[DIGEST_LEN], two[DIGEST_LEN];
    ngx_int_t                      rc;
    ngx_uint_t                     how;
    fuzz_input_t                   in;
    ngx_http_idem_form_options_t   options;


    in.p = data;
    in.len = size;
    how = fuzz_byte(&in);

    options.size = (how & 1) ? 64 : NGX_HTTP_IDEM_FORM_SIZE;
    options.excluded = excluded;
    options.nexcluded = (how & 2) ? 2 : 0;

    rc = walk(&options, in.p, in.len, 0, one);

    fuzz_check(walk(&options, in.p, in.len, 1, two) == rc);
    fuzz_check(rc != NGX_OK || memcmp(one, two, DIGEST_LEN) == 0);

    allocations = (long) (how >> 3);
    rc = walk(&options, in.p, in.len, 3, two);
    allocations = -1;

    fuzz_check(rc != NGX_OK || memcmp(one, two, DIGEST_LEN) == 0);

    return 0;
}
