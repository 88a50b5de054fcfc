
/* memory and a digest for the canonical forms; an allocation may fail */


#ifndef _FUZZ_CANON_H_INCLUDED_
#define _FUZZ_CANON_H_INCLUDED_


#include "request/canonical/ngx_http_idempotency_canon.h"


#define DIGEST_LEN  NGX_HTTP_IDEMPOTENCY_CANON_DIGEST_LEN


static EVP_MD_CTX  *md;
static long         allocations = -1;            /* until one fails, or -1 */


static void *
memory_alloc(void *data, size_t size)
{
    if (allocations == 0) {
        return NULL;
    }

    if (allocations > 0) {
        allocations--;
    }

    return malloc(size);
}


static void
memory_free(void *data, void *p)
{
    free(p);
}


static const ngx_http_idempotency_canon_mem_t  mem = {
    memory_alloc, memory_free, NULL
};


static ngx_inline void
md_init(void)
{
    if (md == NULL) {
        md = EVP_MD_CTX_new();
        fuzz_check(md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1);
    }
}


#endif /* _FUZZ_CANON_H_INCLUDED_ */
