
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The checksum of what leaves the process: Adler-32, as zlib's adler32() makes
 * it, in a third of its time.  For a megabyte that is the largest part of what
 * a worker does with a response, after copying it.
 *
 * Eight bytes are one word, and the word has two times four lanes of 16 bits:
 * its bytes at even places, and those at odd ones.  A lane of the first sum has
 * the bytes that came by; one of the second has the first sums before each of
 * them.  What a lane can hold bounds a run: 21 words.  At its end
 *
 *     s2 += bytes of the run * s1 + 8 * second + (8 - place) * first
 *
 * over all lanes, and s1 += first.  Both are reduced once for a piece only:
 * they have 64 bits.
 *
 * Called by whoever seals or reads a response.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "record/ngx_http_idem_record.h"


#define NGX_HTTP_IDEM_SUM_BASE   65521
#define NGX_HTTP_IDEM_SUM_RUN    21
#define NGX_HTTP_IDEM_SUM_PIECE  (1 << 24)

#define NGX_HTTP_IDEM_SUM_BYTES  0x00ff00ff00ff00ffULL
#define NGX_HTTP_IDEM_SUM_HALVES 0x0000ffff0000ffffULL

/* of the lanes, in the uppermost: their sum; 0, 1, 2 and 3 times each */
#define NGX_HTTP_IDEM_SUM_ALL    0x0001000100010001ULL
#define NGX_HTTP_IDEM_SUM_PLACE  0x0000000100020003ULL


static ngx_inline uint64_t
ngx_http_idem_sum_word(const u_char *p)
{
    uint64_t  word;

    ngx_memcpy(&word, p, 8);

#if (NGX_HAVE_LITTLE_ENDIAN)
    return word;
#else
    return __builtin_bswap64(word);
#endif
}


uint32_t
ngx_http_idem_body_sum(uint32_t sum, const u_char *p, size_t len)
{
    size_t    i, n, rest;
    uint64_t  s1, s2, word, even, odd, even2, odd2, first;

    s1 = sum & 0xffff;
    s2 = sum >> 16;

    for ( /* void */ ; len; len -= rest) {
        rest = ngx_min(len, NGX_HTTP_IDEM_SUM_PIECE);

        for (n = rest; n >= 8; n -= 8 * i) {
            even = odd = even2 = odd2 = 0;

            for (i = 0; i < ngx_min(n / 8, NGX_HTTP_IDEM_SUM_RUN); i++) {
                word = ngx_http_idem_sum_word(p);
                p += 8;

                even2 += even;
                odd2 += odd;
                even += word & NGX_HTTP_IDEM_SUM_BYTES;
                odd += word >> 8 & NGX_HTTP_IDEM_SUM_BYTES;
            }

            /* lanes of the second sum are too full for one product */

            even2 = (even2 & NGX_HTTP_IDEM_SUM_HALVES)
                    + (even2 >> 16 & NGX_HTTP_IDEM_SUM_HALVES)
                    + (odd2 & NGX_HTTP_IDEM_SUM_HALVES)
                    + (odd2 >> 16 & NGX_HTTP_IDEM_SUM_HALVES);

            first = (even + odd) * NGX_HTTP_IDEM_SUM_ALL >> 48;

            s2 += 8 * (i * s1 + (uint32_t) (even2 + (even2 >> 32)))
                  + 7 * first + (even * NGX_HTTP_IDEM_SUM_ALL >> 48)
                  - 2 * ((even + odd) * NGX_HTTP_IDEM_SUM_PLACE >> 48);
            s1 += first;
        }

        for ( /* void */ ; n; n--) {
            s1 += *p++;
            s2 += s1;
        }

        s1 %= NGX_HTTP_IDEM_SUM_BASE;
        s2 %= NGX_HTTP_IDEM_SUM_BASE;
    }

    return (uint32_t) (s2 << 16 | s1);
}
