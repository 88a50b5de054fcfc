
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What the tests of the canonical forms share: memory that is counted and can
 * be made to fail, a SHA-256 context, and a body fed in pieces.
 */


#ifndef _CANON_H_INCLUDED_
#define _CANON_H_INCLUDED_


#include "canonical/ngx_http_idem_canon.h"
#include "unit.h"


#define S(s)        s, sizeof(s) - 1
#define DIGEST_LEN  NGX_HTTP_IDEM_CANON_DIGEST_LEN


typedef ngx_int_t (*feed_pt)(void *reader, const u_char *p, size_t len);


typedef struct {
    size_t  blocks;
    size_t  bytes;
    size_t  peak;
    long    left;                 /* allocations until one fails, or -1 */
} memory_t;


static memory_t     memory = { 0, 0, 0, -1 };


void *
ngx_http_idem_canon_alloc(size_t size)
{
    size_t  *p;

    if (memory.left == 0) {
        return NULL;
    }

    if (memory.left > 0) {
        memory.left--;
    }

    p = malloc(16 + size);
    if (p == NULL) {
        abort();
    }

    *p = size;

    memory.blocks++;
    memory.bytes += size;
    memory.peak = ngx_max(memory.peak, memory.bytes);

    return (u_char *) p + 16;
}


void
ngx_http_idem_canon_free(void *p)
{
    size_t  *size;

    if (p == NULL) {
        return;
    }

    size = (size_t *) ((u_char *) p - 16);

    memory.blocks--;
    memory.bytes -= *size;

    free(size);
}



/*
 * Pieces of "piece" bytes; 0: in one; -1: of random length, some of them
 * empty.  Each lies in memory of its own size.
 */

static ngx_inline ngx_int_t
feed(feed_pt handler, void *reader, const void *data, size_t len, int piece)
{
    size_t         n;
    u_char        *p;
    ngx_int_t      rc;
    const u_char  *body = data;

    rc = NGX_OK;

    while (len) {
        n = (piece == 0) ? len
            : (piece > 0) ? (size_t) piece
            : unit_below(unit_below(8) ? 8 : len + 1);

        n = ngx_min(n, len);
        p = exact(body, n);

        rc = handler(reader, p, n);

        exact_free(p, n);

        body += n;
        len -= n;
    }

    return rc;
}


/* two bodies; "run" makes the digest of one, fed in pieces of a size */

typedef struct {
    const char  *one;
    size_t       one_len;
    const char  *two;
    size_t       two_len;
} pair_t;

typedef ngx_int_t (*run_pt)(void *options, const void *text, size_t len,
    int piece, u_char *digest);


/* 1: the same; 0: different; -1: one has no digest, or it depends on cuts */

static ngx_inline int
compare(run_pt run, void *options, const pair_t *pair)
{
    int     piece;
    u_char  one[DIGEST_LEN], two[DIGEST_LEN], again[DIGEST_LEN];

    if (run(options, pair->one, pair->one_len, 0, one) != NGX_OK
        || run(options, pair->two, pair->two_len, 0, two) != NGX_OK)
    {
        return -1;
    }

    for (piece = -3; piece < 5; piece++) {
        if (run(options, pair->two, pair->two_len, ngx_max(piece, -1), again)
            != NGX_OK
            || memcmp(two, again, DIGEST_LEN) != 0)
        {
            return -1;
        }
    }

    return memcmp(one, two, DIGEST_LEN) == 0;
}


#endif /* _CANON_H_INCLUDED_ */
