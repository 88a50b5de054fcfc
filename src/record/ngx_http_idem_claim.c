
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Compares claims: whether a request is the one that a record was begun for.
 *
 * Called by the core before it replays, and by the stores before an expired
 * lease goes to another holder.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <openssl/crypto.h>

#include "record/ngx_http_idem_record.h"


ngx_uint_t
ngx_http_idem_claim_same(const ngx_http_idem_claim_t *a,
    const ngx_http_idem_claim_t *b, ngx_uint_t key_alone)
{
    int     differ;
    size_t  i;

    if (!ngx_http_idem_claim_same_identity(a, b)) {
        return 0;
    }

    if (a->scheme != b->scheme) {
        return key_alone
               || CRYPTO_memcmp(a->target, b->target,
                                NGX_HTTP_IDEM_TARGET_LEN)
                  == 0;
    }

    /* in halves: CRYPTO_memcmp() compares 16 bytes at once, other lengths
       bytewise */

    differ = 0;

    for (i = 0; i < NGX_HTTP_IDEM_FINGERPRINT_LEN; i += 16) {
        differ |= CRYPTO_memcmp(&a->fingerprint[i], &b->fingerprint[i], 16);
    }

    return differ == 0;
}


ngx_uint_t
ngx_http_idem_claim_same_identity(const ngx_http_idem_claim_t *a,
    const ngx_http_idem_claim_t *b)
{
    return CRYPTO_memcmp(a->identity, b->identity, NGX_HTTP_IDEM_IDENTITY_LEN)
           == 0;
}
