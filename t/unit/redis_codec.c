
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/redis/ngx_redis_codec.c ; libs: -lhiredis */

/*
 * The numbers and strings of a command as they go out, beside what printf()
 * makes of them; and the buffer of a connection, which moves while a part of
 * it is sent.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "redis/ngx_redis.h"
#include "unit.h"


#define RANDOM_NUMBERS  200000
#define RANDOM_STEPS    20000


void *
ngx_alloc(size_t size, ngx_log_t *log)
{
    return malloc(size);
}


u_char *
ngx_strnstr(u_char *s1, char *s2, size_t len)
{
    return memmem(s1, len, s2, strlen(s2));
}


volatile ngx_cycle_t  *ngx_cycle = &(ngx_cycle_t) { 0 };


/* whether a number is written as printf() does, alone and as an argument */

static ngx_uint_t
number(uint64_t n)
{
    char     line[64], text[32];
    int      len;
    u_char  *p, *room;
    size_t   size;

    len = snprintf(line, sizeof(line), "*%llu\r\n", (unsigned long long) n);

    room = exact(NULL, len);
    p = ngx_redis_put_line(room, '*', n);

    if (!unit_equal(room, p - room, (u_char *) line, len)) {
        unit_dump("line: ", room, p - room);
        exact_free(room, len);
        return 0;
    }

    exact_free(room, len);

    size = snprintf(text, sizeof(text), "%llu", (unsigned long long) n);
    len = snprintf(line, sizeof(line), "$%zu\r\n%s\r\n", size, text);

    room = exact(NULL, len);
    p = ngx_redis_put_number(room, n);

    if (!unit_equal(room, p - room, (u_char *) line, len)
        || (size_t) len > ngx_redis_put_size(size))
    {
        unit_dump("number: ", room, p - room);
        exact_free(room, len);
        return 0;
    }

    exact_free(room, len);

    return 1;
}


static void
numbers(void)
{
    uint64_t    n, power;
    ngx_uint_t  i, k, wrong;

    wrong = 0;

    for (n = 0; n < 100000; n++) {
        wrong += !number(n);
    }

    is(wrong, 0, "0 to 99999");

    /* around each power of 10 and of 2 */

    wrong = 0;

    for (i = 0, power = 1; i < 20; i++, power *= 10) {
        for (k = 0; k < 5; k++) {
            wrong += !number(power + k - 2);
        }
    }

    for (i = 0; i < 64; i++) {
        for (k = 0; k < 5; k++) {
            wrong += !number(((uint64_t) 1 << i) + k - 2);
        }
    }

    wrong += !number((uint64_t) -1);
    wrong += !number((uint64_t) INT64_MIN);

    is(wrong, 0, "powers of 10 and of 2, and their neighbours");

    wrong = 0;

    for (i = 0; i < RANDOM_NUMBERS; i++) {
        wrong += !number(unit_random() >> unit_below(64));
    }

    is(wrong, 0, "of any length");
}


/* what is in the buffer stays, wherever it moves to */

static void
reserve(void)
{
    u_char            *p, *sent, *written;
    size_t             n, in, out;
    ngx_uint_t         i, wrong;
    ngx_redis_conn_t   conn;

    ngx_memzero(&conn, sizeof(ngx_redis_conn_t));

    sent = malloc(RANDOM_STEPS * 9000);
    written = malloc(RANDOM_STEPS * 9000);
    in = 0;
    out = 0;
    wrong = 0;

    for (i = 0; i < RANDOM_STEPS; i++) {
        n = unit_below(unit_below(10) ? 300 : 9000);

        p = ngx_redis_reserve(&conn, n);

        wrong += (p != conn.out.last
                  || (size_t) (conn.out.end - conn.out.last) < n);

        for ( /* void */ ; n; n--) {
            *p++ = (u_char) unit_random();
            written[in++] = p[-1];
        }

        conn.out.last = p;

        n = unit_below(conn.out.last - conn.out.pos + 1);
        ngx_memcpy(sent + out, conn.out.pos, n);
        conn.out.pos += n;
        out += n;
    }

    n = conn.out.last - conn.out.pos;
    ngx_memcpy(sent + out, conn.out.pos, n);

    is(wrong, 0, "there is room");
    ok(in == out + n && memcmp(sent, written, in) == 0,
       "what was written goes out");

    free(conn.out.start);
    free(sent);
    free(written);
}


int
main(void)
{
    plan(5);
    unit_seed();

    numbers();
    reserve();

    return done();
}
