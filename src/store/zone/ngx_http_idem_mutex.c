
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Waiting for the lock of a zone, without ngx_shmtx_lock(): that sleeps on a
 * semaphore and has to be woken, and a worker that was killed may wake nobody.
 *
 *   - The master frees the locks of the zones of its own cycle.  One that a
 *     reload has left out is still used by the workers of the cycle before,
 *     and nobody would free its lock.
 *   - A worker that is killed when it has freed the lock, and has not yet told
 *     those that sleep, leaves them asleep until somebody else comes.
 *
 * So a waiter looks again by itself, and frees the lock of a process that is
 * not there any more.
 *
 * Called by everything that has a state in shared memory.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_mutex.h"


/* as nginx's own: pauses of the processor, more and more of them */
#define NGX_HTTP_IDEM_MUTEX_SPIN    2048

/* then others run, so often, and then it sleeps for a millisecond */
#define NGX_HTTP_IDEM_MUTEX_YIELDS  16


static void ngx_http_idem_mutex_wait(ngx_shmtx_t *mutex);
static ngx_uint_t ngx_http_idem_mutex_spin(ngx_shmtx_t *mutex);


void
ngx_http_idem_mutex_lock(ngx_slab_pool_t *shpool)
{
    if (!ngx_shmtx_trylock(&shpool->mutex)) {
        ngx_http_idem_mutex_wait(&shpool->mutex);
    }
}


void
ngx_http_idem_mutex_unlock(ngx_slab_pool_t *shpool)
{
    ngx_shmtx_unlock(&shpool->mutex);
}


static void
ngx_http_idem_mutex_wait(ngx_shmtx_t *mutex)
{
    ngx_pid_t   pid;
    ngx_uint_t  n;

    for (n = 0; !ngx_http_idem_mutex_spin(mutex); n++) {

        if (n < NGX_HTTP_IDEM_MUTEX_YIELDS) {
            ngx_sched_yield();
            continue;
        }

        pid = (ngx_pid_t) *mutex->lock;

        if (pid && kill(pid, 0) == -1 && ngx_errno == NGX_ESRCH) {
            (void) ngx_shmtx_force_unlock(mutex, pid);
            continue;
        }

        ngx_msleep(1);
    }
}


static ngx_uint_t
ngx_http_idem_mutex_spin(ngx_shmtx_t *mutex)
{
    ngx_uint_t  i, n;

    if (ngx_ncpu > 1) {

        for (n = 1; n < NGX_HTTP_IDEM_MUTEX_SPIN; n <<= 1) {

            for (i = 0; i < n; i++) {
                ngx_cpu_pause();
            }

            if (ngx_shmtx_trylock(mutex)) {
                return 1;
            }
        }
    }

    return ngx_shmtx_trylock(mutex);
}
