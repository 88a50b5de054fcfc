
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/store/redis/ngx_http_idem_redis_payload.c */

/*
 * A lock as RESTORE takes it.  The payloads are of another implementation, and
 * a redis-server 7.0 took each; in t/redis-plain.t one takes what the module
 * sends.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/redis/ngx_http_idem_redis.h"
#include "unit.h"


typedef struct {
    const char  *text;
    uint64_t     crc;
} sum_t;


/* the first is the check value of this CRC, as crc64.c of Redis has it */

static sum_t  sums[] = {
    { "123456789", 0xe9c6d914c4b8d9caULL },
    { "", 0 }
};


typedef struct {
    size_t       len;                   /* of the lock                      */
    const char  *start;                 /* of the payload, before it        */
    size_t       start_len;
    uint64_t     crc;
} payload_t;


static payload_t  payloads[] = {
    { 0, "\x01\x02\x00", 3, 0x155eaa7cf7b74aaeULL },
    { 1, "\x01\x02\x01", 3, 0x830af24f49f2ffe4ULL },
    { 63, "\x01\x02\x3f", 3, 0x69f99af8d6438e31ULL },
    { 64, "\x01\x02\x40\x40", 4, 0x4b384d313c568c7dULL },
    { 89, "\x01\x02\x40\x59", 4, 0xd3d6ce370fdb6ce1ULL },
    { 16383, "\x01\x02\x7f\xff", 4, 0x4bfb9f938002e2ffULL },
    { 16384, "\x01\x02\x80\x00\x00\x40\x00", 7, 0x1760c734e59bd8f2ULL },
    { 70000, "\x01\x02\x80\x00\x01\x11\x70", 7, 0xf76c8f0c5d5ea646ULL }
};


static u_char  token[] = "0123456789abcdef";


static void
test_sums(void)
{
    size_t      len;
    u_char     *p;
    ngx_uint_t  i;

    for (i = 0; i < sizeof(sums) / sizeof(sums[0]); i++) {
        len = strlen(sums[i].text);
        p = exact(sums[i].text, len);

        ok(ngx_http_idem_redis_crc64(p, p + len) == sums[i].crc,
           "the sum of \"%s\"", sums[i].text);

        exact_free(p, len);
    }
}


static void
test_payload(payload_t *t)
{
    size_t      size;
    u_char     *start, *p, *end;
    ngx_uint_t  i, good;
    uint64_t    crc;

    size = ngx_http_idem_redis_payload_size(t->len);

    start = malloc(size);
    end = start + size;

    p = ngx_http_idem_redis_payload_start(start, t->len);

    good = (size_t) (p - start) == t->start_len
           && memcmp(start, t->start, t->start_len) == 0;

    memset(p, 'L', t->len);
    p = ngx_http_idem_redis_payload_end(start, p + t->len, token);

    good &= (p == end)
            && end[-27] == 16
            && memcmp(end - 26, token, 16) == 0
            && end[-10] == 6 && end[-9] == 0;

    crc = 0;

    for (i = 8; i; i--) {
        crc = crc << 8 | end[(ssize_t) i - 9];
    }

    ok(good, "a lock of %d bytes", (int) t->len);
    ok(crc == t->crc, "... and its sum: %016llx", (unsigned long long) crc);

    free(start);
}


int
main(void)
{
    ngx_uint_t  i;

    plan(sizeof(sums) / sizeof(sums[0])
         + 2 * sizeof(payloads) / sizeof(payloads[0]));

    ngx_http_idem_redis_payload_init();

    test_sums();

    for (i = 0; i < sizeof(payloads) / sizeof(payloads[0]); i++) {
        test_payload(&payloads[i]);
    }

    return done();
}
