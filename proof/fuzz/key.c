
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_key.c ; libs: */

/*
 * The key parser, which is also the structured field's.  A first byte chooses
 * the format.  What was accepted is within its limits and its alphabet, and
 * quoted it is accepted again as the same key.
 */


#include "fuzz.h"

#include "canonical/ngx_http_idem_key.h"


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t                       i, n;
    u_char                      *p, *buf, *again, *buf2;
    ngx_str_t                    raw, key, key2;
    ngx_uint_t                   how;
    const char                  *reason;
    fuzz_input_t                 in;
    ngx_http_idem_key_format_t   format;

    in.p = data;
    in.len = size;
    how = fuzz_byte(&in);

    format.kind = how & 3;
    format.quoted_required = (how >> 2) & 1;
    format.min = (how & 8) ? 3 : 1;
    format.max = (how & 16) ? 40 : 255;

    p = fuzz_copy(in.p, in.len);
    buf = fuzz_copy(in.p, in.len);

    raw.data = p;
    raw.len = in.len;
    reason = NULL;

    /* a field, or a JSON string; quoted, both are the same key */

    if (ngx_http_idem_key_parse(&format, &raw, (how >> 5) & 1, buf, &key,
                                &reason)
        != NGX_OK)
    {
        fuzz_check(reason != NULL);
        goto done;
    }

    fuzz_check(key.len >= format.min && key.len <= format.max);

    for (i = 0; i < key.len; i++) {
        fuzz_check(key.data[i] >= 0x20 && key.data[i] <= 0x7e);
    }

    again = malloc(2 * key.len + 2);
    buf2 = malloc(2 * key.len + 2);
    fuzz_check(again != NULL && buf2 != NULL);

    n = 0;
    again[n++] = '"';

    for (i = 0; i < key.len; i++) {
        if (key.data[i] == '"' || key.data[i] == '\\') {
            again[n++] = '\\';
        }

        again[n++] = key.data[i];
    }

    again[n++] = '"';

    raw.data = again;
    raw.len = n;

    fuzz_check(ngx_http_idem_key_parse(&format, &raw, 0, buf2, &key2,
                                       &reason)
               == NGX_OK);
    fuzz_check(key2.len == key.len
               && memcmp(key2.data, key.data, key.len) == 0);

    free(again);
    free(buf2);

done:

    free(p);
    free(buf);

    return 0;
}
