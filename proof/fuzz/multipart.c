
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_multipart.c ; libs: */

/*
 * A media type, a NUL, a body: what comes out does not depend on how the body
 * is cut into pieces.
 */


#include "fuzz.h"

#include "canonical/ngx_http_idem_multipart.h"


typedef struct {
    uint64_t  hash;
    size_t    len;
} output_t;


static void
update(void *data, const u_char *p, size_t len)
{
    size_t     i;
    output_t  *out = data;

    for (i = 0; i < len; i++) {
        out->hash = (out->hash ^ p[i]) * 0x100000001b3ULL;
    }

    out->len += len;
}


static void
reduce(const ngx_str_t *boundary, const uint8_t *p, size_t len, size_t piece,
    output_t *out)
{
    size_t                      n;
    u_char                     *copy;
    ngx_http_idem_multipart_t   m;

    ngx_memzero(out, sizeof(output_t));
    ngx_http_idem_multipart_init(&m, boundary, update, out);

    while (len) {
        n = (piece && piece < len) ? piece : len;
        copy = fuzz_copy(p, n);

        ngx_http_idem_multipart_feed(&m, copy, n);

        free(copy);
        p += n;
        len -= n;
    }

    ngx_http_idem_multipart_done(&m);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t          n;
    u_char         *type;
    output_t        whole, cut;
    ngx_str_t       value, boundary;
    const uint8_t  *end;

    end = memchr(data, '\0', size);
    n = end ? (size_t) (end - data) : size;

    type = fuzz_copy(data, n);
    value.data = type;
    value.len = n;

    if (ngx_http_idem_multipart_boundary(&value, &boundary) == NGX_OK) {

        fuzz_check(boundary.len > 0
                   && boundary.len <= NGX_HTTP_IDEM_BOUNDARY_MAX);

        if (end) {
            n++;
        }

        reduce(&boundary, data + n, size - n, 0, &whole);
        fuzz_check(whole.len <= 2 * size + 64 || whole.len / 9 <= size);

        reduce(&boundary, data + n, size - n, 1, &cut);
        fuzz_check(cut.hash == whole.hash && cut.len == whole.len);

        reduce(&boundary, data + n, size - n, 7, &cut);
        fuzz_check(cut.hash == whole.hash && cut.len == whole.len);
    }

    free(type);

    return 0;
}
