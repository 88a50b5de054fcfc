
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Runs an operation in a child, one instruction at a time (ptrace), and takes
 * the lock after each that changed the zone.
 */


#ifndef _ZONE_STEPS_H_INCLUDED_
#define _ZONE_STEPS_H_INCLUDED_


#include "zone_whole.h"

#include <sys/ptrace.h>
#include <sys/wait.h>


static u_char  image[SIZE], last[SIZE];
static ngx_uint_t  points, steps, nested;


/*
 * The outbox looks without the lock whether there is anything in it: it must
 * never miss what is there
 */

static ngx_uint_t
counted(void)
{
    ngx_uint_t             i, n;
    ngx_http_idem_item_t  *item;

    n = 0;

    for (i = 0; i <= m.z.zone->mask; i++) {
        for (item = m.z.zone->buckets[i]; item; item = item->next) {
            if (n++ > KEYS) {
                return wrong("a bucket has no end");
            }
        }
    }

    return (n && m.z.zone->records == 0) ? wrong("it says that it is empty")
                                         : 1;
}


/* the child was killed here: another one takes the lock */

static ngx_uint_t
recovers(ngx_uint_t thorough)
{
    ngx_uint_t  rc;

    if (!counted()) {
        return 0;
    }

    ngx_memcpy(image, mem, SIZE);

    ngx_http_idem_zone_lock(&m.z);
    repairs += (((ngx_http_idem_zone_t *)
                 (image + ((u_char *) m.z.zone - mem)))->busy != 0);
    ngx_http_idem_zone_unlock(&m.z);

    rc = (whole(&at) && kept_promises());

    if (rc && alerts) {
        rc = wrong("it says that it met what can't be");
    }

    if (rc && thorough) {
        rc = goes_on();
    }

    ngx_memcpy(mem, image, SIZE);

    return rc;
}


static pid_t
spawn(void (*operate)(void))
{
    int    status;
    pid_t  pid;

    pid = fork();

    if (pid == -1) {
        perror("fork");
        exit(2);
    }

    if (pid == 0) {
        (void) ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        traced = 1;
        operate();
        _exit(1);
    }

    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) {
        printf("Bail out! a process can't be traced here\n");
        exit(2);
    }

    return pid;
}


/* returns 0 when the child is through */

static ngx_uint_t
step(pid_t pid)
{
    int  status;

    if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == -1
        || waitpid(pid, &status, 0) != pid)
    {
        perror("ptrace");
        exit(2);
    }

    steps++;

    return WIFSTOPPED(status);
}


static void
repair_only(void)
{
    ngx_http_idem_zone_lock(&m.z);
    ngx_http_idem_zone_unlock(&m.z);
}


/* at each instruction of the repair of what is there now */

static ngx_uint_t
recovers_from_repair(void)
{
    pid_t       pid;
    ngx_uint_t  rc;

    static u_char  start[SIZE];

    rc = 1;

    ngx_memcpy(start, mem, SIZE);
    ngx_memcpy(last, mem, SIZE);

    pid = spawn(repair_only);

    while (step(pid)) {

        if (rc && ngx_memcmp(last, mem, SIZE) != 0) {
            ngx_memcpy(last, mem, SIZE);
            nested++;

            rc = recovers(0);

            if (!rc) {
                /* it runs to its end */
                (void) ptrace(PTRACE_CONT, pid, NULL, NULL);
                (void) waitpid(pid, NULL, 0);
                break;
            }
        }
    }

    ngx_memcpy(mem, start, SIZE);
    ngx_memcpy(last, mem, SIZE);

    return rc;
}


typedef struct {
    const char            *name;
    ngx_http_idem_full_e   full;
    ngx_uint_t             subject;
    void                        (*prepare)(void);
    void                        (*operate)(void);
    ngx_uint_t                    repair;        /* is killed, too          */
} scenario_t;


static void
run(scenario_t *s)
{
    int         status;
    pid_t       pid;
    ngx_uint_t  n, failed, tried;

    subject = s->subject;
    failed = 0;
    tried = 0;
    n = 0;

    create(s->full);
    s->prepare();

    if (!whole(&before)) {
        ok(0, "%s: not whole before it begins: %s", s->name, why);
        return;
    }

    /* as it is when nobody is killed */

    ngx_memcpy(image, mem, SIZE);

    pid = fork();

    if (pid == 0) {
        s->operate();
        _exit(0);
    }

    (void) waitpid(pid, &status, 0);

    if (!whole(&after)) {
        ok(0, "%s: not whole when it ends: %s", s->name, why);
        return;
    }

    ngx_memcpy(mem, image, SIZE);
    ngx_memcpy(last, mem, SIZE);

    pid = spawn(s->operate);

    while (step(pid)) {

        if (failed || ngx_memcmp(last, mem, SIZE) == 0) {
            continue;
        }

        ngx_memcpy(last, mem, SIZE);
        n++;

        if (!recovers(n % 16 == 0)) {
            failed = n;
            (void) ptrace(PTRACE_CONT, pid, NULL, NULL);
            (void) waitpid(pid, NULL, 0);
            break;
        }

        /* the worst place: in the middle of a change */

        if (s->repair && !tried && (m.z.zone->undo.item || n == 60)) {
            tried = 1;

            if (!recovers_from_repair()) {
                failed = n;
            }
        }
    }

    points += n;

    ok(!failed, "%s", s->name);

    if (failed) {
        printf("# killed after store %lu: %s\n", failed, why);
    }
}


#endif /* _ZONE_STEPS_H_INCLUDED_ */
