
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* memory and a digest for the canonical forms; an allocation may fail */


#ifndef _FUZZ_CANON_H_INCLUDED_
#define _FUZZ_CANON_H_INCLUDED_


#include "canonical/ngx_http_idem_canon.h"


#define DIGEST_LEN  NGX_HTTP_IDEM_CANON_DIGEST_LEN


static long         allocations = -1;            /* until one fails, or -1 */


void *
ngx_http_idem_canon_alloc(size_t size)
{
    if (allocations == 0) {
        return NULL;
    }

    if (allocations > 0) {
        allocations--;
    }

    return malloc(size);
}


void
ngx_http_idem_canon_free(void *p)
{
    free(p);
}


#endif /* _FUZZ_CANON_H_INCLUDED_ */
