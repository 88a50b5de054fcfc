
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A client that sends at a fixed rate, which wrk can not: for the latency that
 * a gateway adds below its full load.  A request that is due while all
 * connections are busy waits, and its time counts from when it was due, so a
 * gateway that stalls can not hide it by being asked less.
 *
 *   paced <port> <requests a second> <seconds> <connections>
 *         fresh|replay <prefix of keys> <number of keys>
 *
 * The path is in BENCH_URI, the body in BENCH_BODY.  Prints how many answers
 * there were, the latency at p50, p99 and p99.9 in microseconds, and how many
 * of the requests were sent more than a millisecond late: if that is more than
 * a few, somebody can't keep up with the rate.
 */

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS  1024
#define BUFFER           65536
#define LATE             1000.0           /* us */


typedef struct {
    int       fd;
    double    due;
    size_t    len;
    char      buf[BUFFER];
} connection_t;


static connection_t  *idle[MAX_CONNECTIONS];
static int            idle_n;

static const char    *uri, *body, *mode, *prefix;
static long           keys, key_n;


static double
now(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return ts.tv_sec * 1e6 + ts.tv_nsec / 1e3;
}


static void
fail(const char *what)
{
    fprintf(stderr, "paced: %s: %s\n", what, strerror(errno));
    exit(1);
}


static int
by_value(const void *a, const void *b)
{
    double  x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}


static void
send_request(double due)
{
    int            n;
    char           request[4096];
    connection_t  *c;

    c = idle[--idle_n];
    c->due = due;
    c->len = 0;

    n = snprintf(request, sizeof(request),
                 "POST %s HTTP/1.1\r\nHost: bench\r\n"
                 "Content-Type: application/json\r\n"
                 "Idempotency-Key: %s-%ld\r\nContent-Length: %zu\r\n\r\n%s",
                 uri, prefix, key_n % keys + 1, strlen(body), body);
    key_n++;

    if (write(c->fd, request, n) != n) {
        fail("write");
    }
}


/* 1: the answer is there, 0: not all of it */

static int
read_answer(connection_t *c)
{
    char     *end, *length;
    ssize_t   n;

    n = read(c->fd, c->buf + c->len, BUFFER - 1 - c->len);

    if (n <= 0) {
        fail("read");
    }

    c->len += n;
    c->buf[c->len] = '\0';

    end = strstr(c->buf, "\r\n\r\n");

    if (end == NULL) {
        return 0;
    }

    if (strncmp(c->buf, "HTTP/1.1 201", 12) != 0) {
        fprintf(stderr, "paced: %.200s\n", c->buf);
        exit(1);
    }

    length = strcasestr(c->buf, "\r\nContent-Length:");

    if (length == NULL) {
        fprintf(stderr, "paced: no length\n");
        exit(1);
    }

    return c->len >= (size_t) (end + 4 - c->buf)
                     + strtoul(length + 17, NULL, 10);
}


int
main(int argc, char **argv)
{
    int                 ep, timer, n, i, one = 1, connections;
    long                sent = 0, done = 0, late = 0, total;
    double              start, interval, *latency, give_up;
    uint64_t            ticks;
    connection_t       *c;
    struct sockaddr_in  addr;
    struct itimerspec   every;
    struct epoll_event  ev, events[64];

    uri = getenv("BENCH_URI");
    body = getenv("BENCH_BODY");

    if (argc != 8 || uri == NULL || body == NULL) {
        fprintf(stderr, "paced: see the head of bench/paced.c\n");
        return 1;
    }

    interval = 1e6 / atof(argv[2]);
    total = atof(argv[2]) * atof(argv[3]);
    connections = atoi(argv[4]);
    mode = argv[5];
    prefix = argv[6];
    keys = strcmp(mode, "fresh") == 0 ? 1L << 60 : atol(argv[7]);

    if (connections < 1 || connections > MAX_CONNECTIONS || total < 1) {
        fprintf(stderr, "paced: out of range\n");
        return 1;
    }

    latency = malloc(total * sizeof(double));
    ep = epoll_create1(0);

    memset(&addr, 0, sizeof(addr));
    addr.sin_family = AF_INET;
    addr.sin_port = htons(atoi(argv[1]));
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);

    for (i = 0; i < connections; i++) {
        c = malloc(sizeof(connection_t));
        c->fd = socket(AF_INET, SOCK_STREAM, 0);

        if (connect(c->fd, (struct sockaddr *) &addr, sizeof(addr)) != 0) {
            fail("connect");
        }

        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));

        ev.events = EPOLLIN;
        ev.data.ptr = c;
        epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &ev);

        idle[idle_n++] = c;
    }

    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    memset(&every, 0, sizeof(every));
    every.it_value.tv_nsec = every.it_interval.tv_nsec = interval * 1e3;
    timerfd_settime(timer, 0, &every, NULL);

    ev.events = EPOLLIN;
    ev.data.ptr = NULL;
    epoll_ctl(ep, EPOLL_CTL_ADD, timer, &ev);

    start = now();
    give_up = start + (atof(argv[3]) + 10) * 1e6;

    while (done < total && now() < give_up) {

        n = epoll_wait(ep, events, 64, 100);

        for (i = 0; i < n; i++) {
            c = events[i].data.ptr;

            if (c == NULL) {
                (void) !read(timer, &ticks, sizeof(ticks));

            } else if (read_answer(c)) {
                latency[done++] = now() - c->due;
                idle[idle_n++] = c;
            }
        }

        while (sent < total && idle_n > 0
               && now() >= start + sent * interval)
        {
            if (now() - (start + sent * interval) > LATE) {
                late++;
            }

            send_request(start + sent * interval);
            sent++;
        }
    }

    if (done == 0) {
        fprintf(stderr, "paced: no answers\n");
        return 1;
    }

    qsort(latency, done, sizeof(double), by_value);

    printf("%ld of %ld answers, p50 %.1f, p99 %.1f, p99.9 %.1f us, "
           "%.2f %% late\n",
           done, total, latency[done / 2], latency[(long) (done * 0.99)],
           latency[(long) (done * 0.999)], 100.0 * late / sent);

    return done == total ? 0 : 1;
}
