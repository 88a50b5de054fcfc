
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * How long a worker of nginx is busy between two waits for events: preloaded
 * (LD_PRELOAD), it writes each new longest turn, in microseconds, to the file
 * that IDEMPOTENCY_TURNS names, with the pid of the worker and the time behind
 * it.  To truncate that file is to begin anew.
 *
 * Processor time of its thread; or, with IDEMPOTENCY_TURNS_CLOCK=wall, also
 * that in which it was blocked.  For how long it was ready and had no processor
 * is the kernel's to tell (schedstat) and does not count.
 *
 * Used by bench/loop-turns, bench/loop-faults and proof/history.
 */


#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>


static char  file[1024];
static int   wall;


/* workers have another environment than their master */

static void __attribute__ ((constructor))
init(void)
{
    const char  *name, *clock;

    name = getenv("IDEMPOTENCY_TURNS");
    clock = getenv("IDEMPOTENCY_TURNS_CLOCK");

    if (name == NULL || strlen(name) >= sizeof(file)
        || strcmp(program_invocation_short_name, "nginx") != 0)
    {
        return;
    }

    strcpy(file, name);
    wall = clock && strcmp(clock, "wall") == 0;
}


/* microseconds for which this thread was ready to run, and did not */

static long
starved(void)
{
    int                  n;
    char                 text[128];
    unsigned long long   ran, waited;

    static int    fd = -1;
    static pid_t  pid;

    if (pid != getpid()) {
        if (fd != -1) {
            close(fd);
        }

        fd = open("/proc/self/schedstat", O_RDONLY|O_CLOEXEC);
        pid = getpid();
    }

    n = fd == -1 ? -1 : pread(fd, text, sizeof(text) - 1, 0);

    if (n <= 0) {
        return 0;
    }

    text[n] = '\0';

    return sscanf(text, "%llu %llu", &ran, &waited) == 2 ? waited / 1000 : 0;
}


static long
now(void)
{
    struct timespec  t;

    clock_gettime(wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);

    return t.tv_sec * 1000000L + t.tv_nsec / 1000 - (wall ? starved() : 0);
}


static void
turn(long took)
{
    int              n;
    char             text[64];
    struct stat      st;
    struct timespec  t;

    static int   fd = -1;
    static long  longest;

    if (fd == -1) {
        fd = open(file, O_WRONLY|O_CREAT|O_APPEND|O_CLOEXEC, 0666);
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

    clock_gettime(CLOCK_REALTIME, &t);

    n = snprintf(text, sizeof(text), "%ld %d %ld.%03ld\n", took, (int) getpid(),
                 (long) t.tv_sec, t.tv_nsec / 1000000);

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

    } else if (file[0] && since) {
        turn(now() - since);
    }

    rc = real(epfd, events, n, timeout);

    since = file[0] ? now() : 0;

    return rc;
}
