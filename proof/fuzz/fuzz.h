
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What the fuzz targets share: input that is taken from the front, memory of
 * an exact size, and a check that is not compiled out.
 *
 * A target names what it is made of, as the programs of t/unit do.
 */


#ifndef _FUZZ_H_INCLUDED_
#define _FUZZ_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define fuzz_check(condition)                                                 \
    if (!(condition)) {                                                       \
        fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__,            \
                #condition);                                                  \
        abort();                                                              \
    }


typedef struct {
    const uint8_t  *p;
    size_t          len;
} fuzz_input_t;


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);


static ngx_inline ngx_uint_t
fuzz_byte(fuzz_input_t *in)
{
    if (in->len == 0) {
        return 0;
    }

    in->len--;

    return *in->p++;
}


/* a copy that ends where the allocation does: the sanitizer sees one too far */

static ngx_inline u_char *
fuzz_copy(const void *data, size_t len)
{
    u_char  *p;

    p = malloc(len ? len : 1);
    fuzz_check(p != NULL);

    if (len) {
        memcpy(p, data, len);
    }

    return p;
}


#endif /* _FUZZ_H_INCLUDED_ */
