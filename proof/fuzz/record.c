
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/record/ngx_http_idem_record.c src/record/ngx_http_idem_sum.c ; libs: -lz */

/*
 * The decoder of a stored response, of bytes that anybody may have written.
 * The checksum is not asked for, or nothing would get past it.  What was
 * decoded can be encoded again, and decodes to the same.
 */


#include "fuzz.h"

#include "record/ngx_http_idem_record.h"


static ngx_http_idem_header_t *
headers_of(const u_char *p, size_t len, ngx_uint_t *n)
{
    const char  *reason;

    if (ngx_http_idem_head_peek(p, len, n, &reason) != NGX_OK) {
        return NULL;
    }

    return malloc((*n ? *n : 1) * sizeof(ngx_http_idem_header_t));
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t                    head;
    u_char                   *p, *again, *end;
    ngx_str_t                 body, body2;
    ngx_uint_t                i, n, n2;
    const char               *reason;
    ngx_http_idem_claim_t     claim;
    ngx_http_idem_response_t  one, two;

    p = fuzz_copy(data, size);

    if (ngx_http_idem_claim_decode(p, size, &claim) == NGX_OK) {
        fuzz_check(size >= NGX_HTTP_IDEM_CLAIM_LEN);
    }

    ngx_memzero(&one, sizeof(one));
    ngx_memzero(&two, sizeof(two));

    one.headers = headers_of(p, size, &n);

    if (one.headers == NULL
        || ngx_http_idem_response_decode(p, size, &one, &body, 0, &reason)
           != NGX_OK)
    {
        goto done;
    }

    fuzz_check(one.nheaders == n && one.status >= 100 && one.status <= 999);
    fuzz_check(body.len == one.body_len);

    head = ngx_http_idem_head_size(&one);
    fuzz_check(head != 0);

    again = malloc(head + body.len);
    fuzz_check(again != NULL);

    end = ngx_http_idem_head_encode(again, &one);
    fuzz_check(end == again + head);
    ngx_http_idem_head_seal(again, head,
                        ngx_http_idem_body_sum(NGX_HTTP_IDEM_SUM,
                                               body.data, body.len));

    if (body.len) {
        memcpy(end, body.data, body.len);
    }

    two.headers = headers_of(again, head + body.len, &n2);
    fuzz_check(two.headers != NULL && n2 == n);
    fuzz_check(ngx_http_idem_response_decode(again, head + body.len,
                                             &two, &body2, 1, &reason)
               == NGX_OK);
    fuzz_check(two.status == one.status && body2.len == body.len);

    for (i = 0; i < n; i++) {
        fuzz_check(two.headers[i].kind == one.headers[i].kind
                   && two.headers[i].name.len == one.headers[i].name.len
                   && two.headers[i].value.len == one.headers[i].value.len);
    }

    free(two.headers);
    free(again);

done:

    free(one.headers);
    free(p);

    return 0;
}
