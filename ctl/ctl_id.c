
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * id: what the module makes of a key and its scope.  Asks nobody.
 */


#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <openssl/evp.h>

#include "ctl.h"


/* a field of a record id: its length in 8 bytes, then itself */

static void
ctl_field(EVP_MD_CTX *md, const char *s)
{
    int       i;
    size_t    len;
    uint8_t   n[8];

    len = strlen(s);

    for (i = 0; i < 8; i++) {
        n[i] = (uint8_t) ((uint64_t) len >> (56 - 8 * i));
    }

    EVP_DigestUpdate(md, n, sizeof(n));
    EVP_DigestUpdate(md, s, len);
}


static void
ctl_hex(const unsigned char *p, size_t len, char *text)
{
    size_t  i;

    for (i = 0; i < len; i++) {
        sprintf(text + 2 * i, "%02x", p[i]);
    }
}


int
ctl_id(void)
{
    char           id[65], hash[65];
    EVP_MD_CTX    *md;
    unsigned char  sum[32];

    if (o.key == NULL || o.scope == NULL) {
        ctl_say("of which key? Say --key and --scope: what idempotency_scope "
                "is, or the host of the request");
        return CTL_USAGE;
    }

    md = EVP_MD_CTX_new();

    EVP_DigestInit_ex(md, EVP_sha256(), NULL);
    ctl_field(md, o.scope);
    ctl_field(md, o.key);
    EVP_DigestFinal_ex(md, sum, NULL);
    ctl_hex(sum, sizeof(sum), id);

    EVP_DigestInit_ex(md, EVP_sha256(), NULL);
    EVP_DigestUpdate(md, o.key, strlen(o.key));
    EVP_DigestFinal_ex(md, sum, NULL);
    ctl_hex(sum, sizeof(sum), hash);

    EVP_MD_CTX_free(md);

    printf(o.json ? "{\"record\":\"%s\",\"key_hash\":\"%s\"}\n"
                  : "record    %s\nkey_hash  %s\n", id, hash);

    return CTL_OK;
}
