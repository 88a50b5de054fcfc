
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The checksum of records that leave the process: the same Adler-32 as zlib's
 * adler32(), in a fifth of its time.  For a megabyte the checksum is the
 * largest part of a worker's work on a response, after copying it.
 *
 * Sixteen bytes are two 64-bit words.  A word is split into two vectors of
 * four 16-bit lanes: the bytes at even offsets, and those at odd ones.  A
 * lane of the first sum adds up its bytes; a lane of the second sum adds up
 * the first sums before each byte.  The size of a lane limits a run to 21
 * pairs of words.  At the end of a run
 *
 *     s2 += bytes of the run * s1 + 16 * second + (16 - place) * first
 *
 * over all lanes, and s1 += first.  Both have 64 bits, so they are reduced
 * only once for each piece.
 *
 * Called when a response is sealed or verified.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "record/ngx_http_idem_record.h"


#define NGX_HTTP_IDEM_SUM_BASE   65521
#define NGX_HTTP_IDEM_SUM_SIZE   16
#define NGX_HTTP_IDEM_SUM_RUN    21
#define NGX_HTTP_IDEM_SUM_PIECE  (1 << 24)

#define NGX_HTTP_IDEM_SUM_BYTES  0x00ff00ff00ff00ffULL
#define NGX_HTTP_IDEM_SUM_HALVES 0x0000ffff0000ffffULL

/* multipliers that leave a sum over the lanes in the uppermost lane: of each
   lane, and of each lane times 0, 1, 2 or 3 */
#define NGX_HTTP_IDEM_SUM_ALL    0x0001000100010001ULL
#define NGX_HTTP_IDEM_SUM_PLACE  0x0000000100020003ULL


/* two words at a time, with the vector extensions of gcc and clang: SSE2,
   NEON, or plain code */

typedef uint64_t  ngx_http_idem_sum_t
    __attribute__((vector_size(NGX_HTTP_IDEM_SUM_SIZE)));


static ngx_inline ngx_http_idem_sum_t
ngx_http_idem_sum_load(const u_char *p)
{
    ngx_http_idem_sum_t  words;

    ngx_memcpy(&words, p, NGX_HTTP_IDEM_SUM_SIZE);

#if !(NGX_HAVE_LITTLE_ENDIAN)
    words[0] = __builtin_bswap64(words[0]);
    words[1] = __builtin_bswap64(words[1]);
#endif

    return words;
}


uint32_t
ngx_http_idem_body_sum(uint32_t sum, const u_char *p, size_t len)
{
    size_t               i, n, run, rest;
    uint64_t             s1, s2, first, second;
    ngx_http_idem_sum_t  words, even, odd, even2, odd2, both;

    s1 = sum & 0xffff;
    s2 = sum >> 16;

    for ( /* void */ ; len; len -= rest) {
        rest = ngx_min(len, NGX_HTTP_IDEM_SUM_PIECE);

        for (n = rest; n >= NGX_HTTP_IDEM_SUM_SIZE;
             n -= run * NGX_HTTP_IDEM_SUM_SIZE)
        {
            run = ngx_min(n / NGX_HTTP_IDEM_SUM_SIZE, NGX_HTTP_IDEM_SUM_RUN);

            even = odd = even2 = odd2 = (ngx_http_idem_sum_t) { 0, 0 };

            for (i = 0; i < run; i++) {
                words = ngx_http_idem_sum_load(p);
                p += NGX_HTTP_IDEM_SUM_SIZE;

                even2 += even;
                odd2 += odd;
                even += words & NGX_HTTP_IDEM_SUM_BYTES;
                odd += words >> 8 & NGX_HTTP_IDEM_SUM_BYTES;
            }

            /* the lanes of the second sum are too large for one
               multiplication */

            even2 = (even2 & NGX_HTTP_IDEM_SUM_HALVES)
                    + (even2 >> 16 & NGX_HTTP_IDEM_SUM_HALVES)
                    + (odd2 & NGX_HTTP_IDEM_SUM_HALVES)
                    + (odd2 >> 16 & NGX_HTTP_IDEM_SUM_HALVES);

            second = even2[0] + even2[1];
            both = even + odd;
            first = both[0] * NGX_HTTP_IDEM_SUM_ALL >> 48;

            /* the first word is eight bytes farther from the end */

            s2 += 16 * (run * s1 + (uint32_t) (second + (second >> 32)))
                  + 8 * first;

            first += both[1] * NGX_HTTP_IDEM_SUM_ALL >> 48;

            s2 += 7 * first
                  + (even[0] * NGX_HTTP_IDEM_SUM_ALL >> 48)
                  + (even[1] * NGX_HTTP_IDEM_SUM_ALL >> 48)
                  - 2 * ((both[0] * NGX_HTTP_IDEM_SUM_PLACE >> 48)
                         + (both[1] * NGX_HTTP_IDEM_SUM_PLACE >> 48));
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
