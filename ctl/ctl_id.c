
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * id: what the module makes of a key and its scope.  Asks nobody.  By that id
 * inspect and delete name a record to the location: a key in an address would
 * be in the logs of nginx.
 */


#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "ctl.h"


/* a field of a record id: its length in 8 bytes, then itself */

static void
ctl_field(EVP_MD_CTX *md, const char *s, size_t len)
{
    int       i;
    uint8_t   n[8];

    for (i = 0; i < 8; i++) {
        n[i] = (uint8_t) ((uint64_t) len >> (56 - 8 * i));
    }

    EVP_DigestUpdate(md, n, sizeof(n));
    EVP_DigestUpdate(md, s, len);
}


static void
ctl_hex(const unsigned char sum[32], char text[65])
{
    int  i;

    for (i = 0; i < 32; i++) {
        sprintf(text + 2 * i, "%02x", sum[i]);
    }
}


/*
 * A key that was sent in quotes is the same as without: its escapes are taken
 * out, and its parameters do not count.  Any other key is as it is.
 */

static char *
ctl_unquote(const char *sent)
{
    char        *key, *p;
    const char  *s;

    key = strdup(sent);

    if (key == NULL) {
        ctl_say("no memory");
        exit(CTL_FAILED);
    }

    if (sent[0] != '"') {
        return key;
    }

    p = key;

    for (s = sent + 1; *s && *s != '"'; s++) {

        if (s[0] == '\\' && (s[1] == '"' || s[1] == '\\')) {
            s++;
        }

        *p++ = *s;
    }

    *p = '\0';

    if (p == key || *s != '"' || (s[1] != '\0' && s[1] != ';')) {
        strcpy(key, sent);
    }

    return key;
}


void
ctl_key(char id[65], char hash[65])
{
    size_t         len;
    EVP_MD_CTX    *md;
    char          *key;
    unsigned char  sum[32];

    key = ctl_unquote(o.key);
    len = strlen(key);

    md = EVP_MD_CTX_new();

    if (md == NULL) {
        ctl_say("no memory");
        exit(CTL_FAILED);
    }

    EVP_DigestInit_ex(md, EVP_sha256(), NULL);
    ctl_field(md, o.scope, strlen(o.scope));
    ctl_field(md, key, len);
    EVP_DigestFinal_ex(md, sum, NULL);
    ctl_hex(sum, id);

    EVP_MD_CTX_free(md);

    EVP_Digest(key, len, sum, NULL, EVP_sha256(), NULL);
    ctl_hex(sum, hash);

    free(key);
}


int
ctl_id(void)
{
    char  id[65], hash[65];

    if (o.key == NULL || o.key[0] == '\0' || o.scope == NULL) {
        ctl_say("of which key? Say --key and --scope: what idempotency_scope "
                "is, or the host of the request");
        return CTL_USAGE;
    }

    ctl_key(id, hash);

    if (!o.json) {
        printf("record    %s\nkey_hash  %s\n", id, hash);
        return CTL_OK;
    }

    printf("{\"record\":\"%s\",\"key_hash\":\"%s\"", id, hash);

    if (o.scope[0]) {
        printf(",\"scope\":");
        ctl_quoted(o.scope);
    }

    puts("}");

    return CTL_OK;
}
