
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/redis/ngx_redis_parse.c ; libs: -lhiredis */

/*
 * The slot of a key, and what servers say of each other: redirects, the slots
 * of a cluster, the master of a sentinel.  Replies are read by hiredis from
 * their bytes, as in the module; those that are not as they should be have to
 * be refused, and cut or changed at random they must do no harm.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "redis/ngx_redis_topology.h"
#include "unit.h"


#define RANDOM_REPLIES  200000


typedef struct {
    const char  *key;
    ngx_uint_t   slot;
} slot_t;


/* as CLUSTER KEYSLOT of Redis 7 has them */

static slot_t  slots[] = {
    { "123456789", 12739 },
    { "foo", 12182 },
    { "", 0 },
    { "{user1000}.following", 3443 },
    { "{user1000}.followers", 3443 },
    { "user1000", 3443 },
    { "foo{}{bar}", 8363 },
    { "foo{{bar}}zap", 4015 },
    { "{bar", 4015 },
    { "foo{bar}{zap}", 5061 },
    { "bar", 5061 },
    { "a{", 14311 },
    { "a}b{c}d", 7365 },
    { "c", 7365 }
};


typedef struct {
    const char  *text;
    ngx_int_t    rc;
    ngx_uint_t   ask;
    ngx_uint_t   slot;
    const char  *host;
    ngx_uint_t   port;
} redirect_t;


static redirect_t  redirects[] = {
    { "MOVED 3999 127.0.0.1:6381", NGX_OK, 0, 3999, "127.0.0.1", 6381 },
    { "ASK 0 127.0.0.1:6381", NGX_OK, 1, 0, "127.0.0.1", 6381 },
    { "MOVED 16383 ::1:6381", NGX_OK, 0, 16383, "::1", 6381 },
    { "MOVED 1 [::1]:6381", NGX_OK, 0, 1, "::1", 6381 },
    { "MOVED 1 fe80::1%eth0:1", NGX_OK, 0, 1, "fe80::1%eth0", 1 },
    { "MOVED 1 node-1.redis.test:6381", NGX_OK, 0, 1, "node-1.redis.test",
      6381 },
    { "MOVED 1 :6381", NGX_OK, 0, 1, "", 6381 },
    { "ASK 1 ?:65535", NGX_OK, 1, 1, "", 65535 },
    { "ERR no", NGX_DECLINED, 0, 0, "", 0 },
    { "MOVED", NGX_DECLINED, 0, 0, "", 0 },
    { "ASKING", NGX_DECLINED, 0, 0, "", 0 },
    { "moved 1 a:1", NGX_DECLINED, 0, 0, "", 0 },
    { "MOVED ", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED 1", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED 1 ", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED 1 a", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED 1 6381", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED 1 a:", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED 1 a:0", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED 1 a:65536", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED 1 a:99999999999999999999", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED 1 a:1x", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED 1 a b:1", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED 1 a/b:1", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED 16384 a:1", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED -1 a:1", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED x a:1", NGX_ERROR, 0, 0, "", 0 },
    { "MOVED  1 a:1", NGX_ERROR, 0, 0, "", 0 }
};


#define NODE(host, port)  "*3\r\n" host port "$2\r\nid\r\n"
#define A                 "$9\r\n127.0.0.1\r\n"
#define PORT              ":7001\r\n"
#define RANGE             "*3\r\n:0\r\n:16383\r\n"

typedef struct {
    const char  *text;
    ngx_int_t    rc;
    const char  *name;
} reply_t;


static reply_t  maps[] = {
    { "*1\r\n" RANGE NODE(A, PORT), NGX_OK, "one range" },
    { "*1\r\n*4\r\n:5\r\n:5\r\n" NODE(A, PORT) NODE(A, ":1\r\n"), NGX_OK,
      "one slot, a replica" },
    { "*1\r\n" RANGE "*4\r\n" A PORT "$2\r\nid\r\n*2\r\n$8\r\nhostname\r\n"
      "$1\r\na\r\n", NGX_OK, "metadata of Redis 7" },
    { "*1\r\n" RANGE "*2\r\n" A PORT, NGX_OK, "no id" },
    { "*1\r\n" RANGE NODE("$-1\r\n", PORT), NGX_OK, "no host: null" },
    { "*1\r\n" RANGE NODE("$0\r\n\r\n", PORT), NGX_OK, "no host: empty" },
    { "*1\r\n" RANGE NODE("$1\r\n?\r\n", PORT), NGX_OK, "no host: ?" },
    { "*1\r\n" RANGE NODE("$3\r\n::1\r\n", PORT), NGX_OK, "IPv6" },
    { "*1\r\n" RANGE NODE(A, ":0\r\n"), NGX_OK, "no port" },
    { "*0\r\n", NGX_ERROR, "nothing" },
    { "*-1\r\n", NGX_ERROR, "null" },
    { "$2\r\nOK\r\n", NGX_ERROR, "a string" },
    { ":1\r\n", NGX_ERROR, "a number" },
    { "*1\r\n:1\r\n", NGX_ERROR, "a number in place of a range" },
    { "*1\r\n*2\r\n:0\r\n:1\r\n", NGX_ERROR, "no members" },
    { "*1\r\n*3\r\n:0\r\n:1\r\n:2\r\n", NGX_ERROR, "a number for a member" },
    { "*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n" A, NGX_ERROR, "a host only" },
    { "*1\r\n*3\r\n:0\r\n:1\r\n*0\r\n", NGX_ERROR, "an empty member" },
    { "*1\r\n*3\r\n:0\r\n:16384\r\n" NODE(A, PORT), NGX_ERROR,
      "a slot too many" },
    { "*1\r\n*3\r\n:-1\r\n:1\r\n" NODE(A, PORT), NGX_ERROR,
      "a negative slot" },
    { "*1\r\n*3\r\n:2\r\n:1\r\n" NODE(A, PORT), NGX_ERROR, "backwards" },
    { "*1\r\n*3\r\n$1\r\n0\r\n:1\r\n" NODE(A, PORT), NGX_ERROR,
      "a string for a slot" },
    { "*1\r\n" RANGE NODE(A, ":65536\r\n"), NGX_ERROR, "a port too large" },
    { "*1\r\n" RANGE NODE(A, ":-1\r\n"), NGX_ERROR, "a negative port" },
    { "*1\r\n" RANGE NODE(A, "$4\r\n7001\r\n"), NGX_ERROR,
      "a string for a port" },
    { "*1\r\n" RANGE NODE(":1\r\n", PORT), NGX_ERROR, "a number for a host" },
    { "*1\r\n" RANGE NODE("$3\r\na\nb\r\n", PORT), NGX_ERROR,
      "a newline in a host" },
    { "*2\r\n" RANGE NODE(A, PORT) "*0\r\n", NGX_ERROR,
      "the second range is empty" }
};


static reply_t  masters[] = {
    { "*2\r\n" A "$4\r\n6379\r\n", NGX_OK, "an address" },
    { "*2\r\n$9\r\nnode.test\r\n$1\r\n1\r\n", NGX_OK, "a name" },
    { "*-1\r\n", NGX_DECLINED, "null" },
    { "$-1\r\n", NGX_DECLINED, "null, as a string" },
    { "*1\r\n" A, NGX_ERROR, "a host only" },
    { "*3\r\n" A "$1\r\n1\r\n:1\r\n", NGX_ERROR, "one more" },
    { "*2\r\n" A ":6379\r\n", NGX_ERROR, "a number for a port" },
    { "*2\r\n" A "$1\r\n0\r\n", NGX_ERROR, "port 0" },
    { "*2\r\n" A "$5\r\n65536\r\n", NGX_ERROR, "a port too large" },
    { "*2\r\n" A "$0\r\n\r\n", NGX_ERROR, "no port" },
    { "*2\r\n$0\r\n\r\n$1\r\n1\r\n", NGX_ERROR, "no host" },
    { "*2\r\n$1\r\n?\r\n$1\r\n1\r\n", NGX_ERROR, "host ?" },
    { "*2\r\n$3\r\na b\r\n$1\r\n1\r\n", NGX_ERROR, "a space in a host" },
    { "$2\r\nOK\r\n", NGX_ERROR, "a string" }
};


typedef struct {
    const char  *text;
    ngx_int_t    rc;
} switch_t;


static switch_t  switches[] = {
    { "main 127.0.0.1 6379 127.0.0.2 6380", NGX_OK },
    { "main ::1 6379 127.0.0.2 6380", NGX_OK },
    { "other 127.0.0.1 6379 127.0.0.2 6380", NGX_DECLINED },
    { "mai 127.0.0.1 6379 127.0.0.2 6380", NGX_DECLINED },
    { "", NGX_ERROR },
    { "main", NGX_ERROR },
    { "main 127.0.0.1 6379 127.0.0.2", NGX_ERROR },
    { "main 127.0.0.1 6379 127.0.0.2 ", NGX_ERROR },
    { "main 127.0.0.1 6379 127.0.0.2 6380 more", NGX_ERROR },
    { "main 127.0.0.1 6379 127.0.0.2 6380 ", NGX_ERROR },
    { "main 127.0.0.1 6379  6380", NGX_ERROR },
    { "main 127.0.0.1 6379 127.0.0.2 0", NGX_ERROR },
    { "main 127.0.0.1 6379 127.0.0.2 66666", NGX_ERROR },
    { "main 127.0.0.1 6379 ? 6380", NGX_ERROR }
};


static redisReply *
reply(const char *text, size_t len)
{
    void         *r;
    redisReader  *reader;

    r = NULL;
    reader = redisReaderCreate();

    redisReaderFeed(reader, text, len);

    if (redisReaderGetReply(reader, &r) != REDIS_OK) {
        r = NULL;
    }

    redisReaderFree(reader);

    return r;
}


static void
test_slots(void)
{
    u_char      *key;
    size_t       len;
    ngx_uint_t   i;

    for (i = 0; i < sizeof(slots) / sizeof(slots[0]); i++) {
        len = strlen(slots[i].key);
        key = malloc(len + 1);
        memcpy(key, slots[i].key, len);

        ok(ngx_redis_slot(key, len) == slots[i].slot,
           "slot of \"%s\"", slots[i].key);

        free(key);
    }
}


static void
test_redirects(void)
{
    char                            text[256];
    ngx_int_t                       rc;
    ngx_uint_t                      i;
    redisReply                     *r;
    redirect_t                     *t;
    ngx_redis_redirect_t  to;

    for (i = 0; i < sizeof(redirects) / sizeof(redirects[0]); i++) {
        t = &redirects[i];

        r = reply(text, (size_t) sprintf(text, "-%s\r\n", t->text));
        rc = ngx_redis_redirect(r, &to);

        ok(rc == t->rc
           && (rc != NGX_OK
               || (to.ask == t->ask && to.slot == t->slot
                   && to.port == t->port && to.host.len == strlen(t->host)
                   && memcmp(to.host.data, t->host, to.host.len) == 0)),
           "redirect \"%s\"", t->text);

        freeReplyObject(r);
    }
}


static void
test_replies(void)
{
    in_port_t    port;
    ngx_int_t    rc;
    ngx_str_t    host, text, name;
    ngx_uint_t   i;
    redisReply  *r;

    for (i = 0; i < sizeof(maps) / sizeof(maps[0]); i++) {
        r = reply(maps[i].text, strlen(maps[i].text));

        ok(r && ngx_redis_slots_check(r) == maps[i].rc,
           "slots: %s", maps[i].name);

        freeReplyObject(r);
    }

    for (i = 0; i < sizeof(masters) / sizeof(masters[0]); i++) {
        r = reply(masters[i].text, strlen(masters[i].text));

        ok(r && ngx_redis_master_addr(r, &host, &port)
                == masters[i].rc,
           "master: %s", masters[i].name);

        freeReplyObject(r);
    }

    ngx_str_set(&name, "main");

    for (i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        text.len = strlen(switches[i].text);
        text.data = malloc(text.len + 1);
        memcpy(text.data, switches[i].text, text.len);

        rc = ngx_redis_switched(&text, &name, &host, &port);

        ok(rc == switches[i].rc
           && (rc != NGX_OK
               || (port == 6380 && host.len == 9
                   && memcmp(host.data, "127.0.0.2", 9) == 0)),
           "switch: \"%s\"", switches[i].text);

        free(text.data);
    }
}


static void
test_members(void)
{
    in_port_t                    port;
    ngx_str_t                    host;
    redisReply                  *r;
    ngx_redis_range_t  range;

    static const char  text[] =
        "*1\r\n*5\r\n:7\r\n:9\r\n" NODE(A, PORT) NODE("$-1\r\n", ":7002\r\n")
        NODE(A, ":0\r\n");

    r = reply(text, sizeof(text) - 1);

    ok(ngx_redis_range(r, 0, &range) == NGX_OK
       && range.first == 7 && range.last == 9 && range.members == 3,
       "a range");
    ok(ngx_redis_range(r, 1, &range) == NGX_ERROR,
       "no other range");

    ok(ngx_redis_member(&range, 0, &host, &port) == NGX_OK
       && port == 7001 && host.len == 9
       && memcmp(host.data, "127.0.0.1", 9) == 0, "its master");
    ok(ngx_redis_member(&range, 1, &host, &port) == NGX_OK
       && port == 7002 && host.len == 0, "a replica without a host");
    ok(ngx_redis_member(&range, 2, &host, &port)
       == NGX_DECLINED, "a replica without a port");
    ok(ngx_redis_member(&range, 3, &host, &port)
       == NGX_ERROR, "no other member");

    freeReplyObject(r);
}


/* nginx's, as far as it is asked for here: digits only */

off_t
ngx_atoof(u_char *line, size_t n)
{
    off_t  value;

    if (n == 0) {
        return NGX_ERROR;
    }

    for (value = 0; n--; line++) {
        if (*line < '0' || *line > '9' || value > NGX_MAX_OFF_T_VALUE / 10 - 1)
        {
            return NGX_ERROR;
        }

        value = value * 10 + (*line - '0');
    }

    return value;
}


ngx_int_t
ngx_atoi(u_char *line, size_t n)
{
    return (ngx_int_t) ngx_atoof(line, n);
}


static void
test_epochs(void)
{
    ngx_uint_t   i;
    redisReply  *r;

    static struct {
        const char  *text;
        int64_t      epoch;
    } epochs[] = {
        { "*4\r\n$4\r\nname\r\n$1\r\nm\r\n$12\r\nconfig-epoch\r\n$1\r\n7\r\n",
          7 },
        { "*2\r\n$12\r\nconfig-epoch\r\n$1\r\nx\r\n",
          NGX_REDIS_NO_EPOCH },
        { "*2\r\n$4\r\nname\r\n$12\r\nconfig-epoch\r\n",
          NGX_REDIS_NO_EPOCH },
        { "*1\r\n$12\r\nconfig-epoch\r\n",
          NGX_REDIS_NO_EPOCH },
        { "$1\r\n7\r\n", NGX_REDIS_NO_EPOCH }
    };

    for (i = 0; i < sizeof(epochs) / sizeof(epochs[0]); i++) {
        r = reply(epochs[i].text, strlen(epochs[i].text));

        ok(ngx_redis_config_epoch(r) == epochs[i].epoch,
           "epoch %d", (int) i);

        freeReplyObject(r);
    }
}


/* whatever comes, what is taken from it lies within bounds */

static void
test_random(void)
{
    char                            text[256];
    size_t                          len;
    in_port_t                       port;
    ngx_str_t                       host;
    ngx_uint_t                      i, n, bad;
    redisReply                     *r;
    ngx_redis_range_t     range;
    ngx_redis_redirect_t  to;

    bad = 0;

    for (i = 0; i < RANDOM_REPLIES; i++) {

        if (i & 1) {
            len = strlen(maps[i / 2 % 9].text);
            memcpy(text, maps[i / 2 % 9].text, len);

        } else {
            len = (size_t) sprintf(text, "-%s\r\n",
                                   redirects[i / 2 % 8].text);
        }

        for (n = 0; n < 1 + unit_random() % 3; n++) {
            text[unit_random() % len] = (char) (unit_random() % 256);
        }

        r = reply(text, len);

        if (r == NULL) {
            continue;
        }

        if (ngx_redis_redirect(r, &to) == NGX_OK) {
            bad += (to.slot >= 16384 || to.port == 0 || to.host.len > 255);
        }

        if (ngx_redis_slots_check(r) == NGX_OK) {
            for (n = 0; n < (ngx_uint_t) r->elements; n++) {
                bad += (ngx_redis_range(r, n, &range)
                        != NGX_OK
                        || range.last >= 16384
                        || ngx_redis_member(&range, 0, &host, &port)
                           == NGX_ERROR);
            }
        }

        (void) ngx_redis_master_addr(r, &host, &port);
        (void) ngx_redis_config_epoch(r);

        freeReplyObject(r);
    }

    ok(bad == 0, "%d replies changed at random", RANDOM_REPLIES);
}


int
main(void)
{
    plan(sizeof(slots) / sizeof(slots[0])
         + sizeof(redirects) / sizeof(redirects[0])
         + sizeof(maps) / sizeof(maps[0])
         + sizeof(masters) / sizeof(masters[0])
         + sizeof(switches) / sizeof(switches[0])
         + 5 + 6 + 1);

    test_slots();
    test_redirects();
    test_replies();
    test_members();
    test_epochs();
    test_random();

    return done();
}
