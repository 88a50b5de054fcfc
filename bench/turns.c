
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * How long a worker of nginx is busy between two waits for events, in
 * processor time of its thread: preloaded (LD_PRELOAD), it writes each new
 * longest turn, in microseconds, to the file that IDEMPOTENCY_TURNS names,
 * with the pid of the worker behind it.  To truncate that file is to begin
 * anew.
 *
 * Used by bench/loop-turns.
 */


#define _GNU_SOURCE

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>


static long
now(void)
{
    struct timespec  t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);

    return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}


static void
turn(long took)
{
    int          n;
    char         text[64];
    const char  *name;
    struct stat  st;

    static int   fd = -1;
    static long  longest;

    if (fd == -1) {
        name = getenv("IDEMPOTENCY_TURNS");

        if (name == NULL) {
            return;
        }

        n = snprintf(text, sizeof(text), "%s", name);
        if (n >= (int) sizeof(text)) {
            return;
        }

        fd = open(name, O_WRONLY|O_CREAT|O_APPEND, 0666);
        if (fd == -1) {
            return;
        }
    }

    if (fstat(fd, &st) == 0 && st.st_size == 0) {
        longest = 0;
    }

    if (took <= longest) {
        return;
    }

    longest = took;

    n = snprintf(text, sizeof(text), "%ld %d\n", took, (int) getpid());

    if (write(fd, text, n) != n) {
        longest = 0;
    }
}


int
epoll_wait(int epfd, struct epoll_event *events, int n, int timeout)
{
    int          rc;

    static int   (*real)(int, struct epoll_event *, int, int);
    static long  since;

    if (real == NULL) {
        real = (int (*)(int, struct epoll_event *, int, int))
               dlsym(RTLD_NEXT, "epoll_wait");

    } else {
        turn(now() - since);
    }

    rc = real(epfd, events, n, timeout);

    since = now();

    return rc;
}
