
/*
 * A lock as RESTORE takes it: a list of two strings in the form of an RDB
 * file, as DUMP of any Redis since 2.6 could have made it.
 *
 *   1               type: a list of strings
 *   2               how many
 *   length, bytes   of each
 *   6, 0            version of the form, the last byte last
 *   8 bytes         CRC-64 over all of that, the last byte last
 *
 * Redis reads what older versions wrote, whatever it keeps a list in by now.
 *
 * Called by the plain commands.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem_number.h"
#include "store/redis/ngx_http_idem_redis.h"


/* of Jones, bits in reverse */
#define NGX_HTTP_IDEM_REDIS_CRC64    0x95ac9329ac4bc9b5ULL

#define NGX_HTTP_IDEM_REDIS_RDB_LIST     1
#define NGX_HTTP_IDEM_REDIS_RDB_VERSION  6

/* lengths: of one, two, or five bytes */
#define NGX_HTTP_IDEM_REDIS_RDB_SHORT    64
#define NGX_HTTP_IDEM_REDIS_RDB_MIDDLE   16384


static u_char *ngx_http_idem_redis_payload_length(u_char *p, size_t len);


/* [k]: of a byte that k others follow, so that eight are looked up at once */
static uint64_t  ngx_http_idem_redis_crc64_table[8][256];


void
ngx_http_idem_redis_payload_init(void)
{
    uint64_t    crc, (*table)[256];
    ngx_uint_t  i, k, bit;

    table = ngx_http_idem_redis_crc64_table;

    for (i = 0; i < 256; i++) {
        crc = i;

        for (bit = 0; bit < 8; bit++) {
            crc = (crc & 1) ? crc >> 1 ^ NGX_HTTP_IDEM_REDIS_CRC64
                            : crc >> 1;
        }

        table[0][i] = crc;
    }

    for (k = 1; k < 8; k++) {
        for (i = 0; i < 256; i++) {
            crc = table[k - 1][i];
            table[k][i] = table[0][(u_char) crc] ^ crc >> 8;
        }
    }
}


uint64_t
ngx_http_idem_redis_crc64(u_char *p, u_char *last)
{
    uint64_t  crc, (*table)[256];

    table = ngx_http_idem_redis_crc64_table;
    crc = 0;

    /* one byte after another, each would have to wait for the one before */

    for ( /* void */ ; last - p >= 8; p += 8) {
        crc = table[7][(u_char) crc ^ p[0]]
              ^ table[6][(u_char) (crc >> 8) ^ p[1]]
              ^ table[5][(u_char) (crc >> 16) ^ p[2]]
              ^ table[4][(u_char) (crc >> 24) ^ p[3]]
              ^ table[3][(u_char) (crc >> 32) ^ p[4]]
              ^ table[2][(u_char) (crc >> 40) ^ p[5]]
              ^ table[1][(u_char) (crc >> 48) ^ p[6]]
              ^ table[0][(u_char) (crc >> 56) ^ p[7]];
    }

    while (p < last) {
        crc = table[0][(u_char) crc ^ *p++] ^ crc >> 8;
    }

    return crc;
}


/* of a lock of "len" bytes and its token */

size_t
ngx_http_idem_redis_payload_size(size_t len)
{
    return 2
           + (len < NGX_HTTP_IDEM_REDIS_RDB_SHORT ? 1
              : len < NGX_HTTP_IDEM_REDIS_RDB_MIDDLE ? 2 : 5) + len
           + 1 + NGX_HTTP_IDEM_TOKEN_LEN
           + 2 + 8;
}


/* up to where the lock is to stand */

u_char *
ngx_http_idem_redis_payload_start(u_char *p, size_t len)
{
    *p++ = NGX_HTTP_IDEM_REDIS_RDB_LIST;
    *p++ = 2;

    return ngx_http_idem_redis_payload_length(p, len);
}


/* behind the lock, which ends at "p" */

u_char *
ngx_http_idem_redis_payload_end(u_char *start, u_char *p, u_char *token)
{
    uint64_t    crc;
    ngx_uint_t  i;

    p = ngx_http_idem_redis_payload_length(p, NGX_HTTP_IDEM_TOKEN_LEN);
    p = ngx_cpymem(p, token, NGX_HTTP_IDEM_TOKEN_LEN);

    *p++ = NGX_HTTP_IDEM_REDIS_RDB_VERSION;
    *p++ = 0;

    crc = ngx_http_idem_redis_crc64(start, p);

    for (i = 0; i < 8; i++) {
        *p++ = (u_char) crc;
        crc >>= 8;
    }

    return p;
}


static u_char *
ngx_http_idem_redis_payload_length(u_char *p, size_t len)
{
    if (len < NGX_HTTP_IDEM_REDIS_RDB_SHORT) {
        *p++ = (u_char) len;
        return p;
    }

    if (len < NGX_HTTP_IDEM_REDIS_RDB_MIDDLE) {
        return ngx_http_idem_put16(p, 0x4000 | len);
    }

    *p++ = 0x80;

    return ngx_http_idem_put32(p, (uint32_t) len);
}
