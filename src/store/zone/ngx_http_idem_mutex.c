
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Takes the lock of a zone without ngx_shmtx_lock(), which sleeps on a
 * semaphore until it is woken: a worker that was killed may wake nobody.
 *
 *   - The master releases the locks of the zones of its current cycle only.
 *     A zone that a reload has dropped is still used by the workers of the
 *     previous cycle, and nothing would release its lock.
 *   - A worker that is killed after it released the lock, and before it posted
 *     the semaphore, leaves the others asleep until another worker unlocks.
 *
 * So a waiting worker polls the lock, and releases it if the process that
 * holds it does not exist any more.
 *
 * Called by all code that has state in shared memory.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_mutex.h"


/* as in nginx: growing numbers of CPU pauses */
#define NGX_HTTP_IDEM_MUTEX_SPIN    2048

/* then the worker yields this many times, then sleeps 1 ms at a time */
#define NGX_HTTP_IDEM_MUTEX_YIELDS  16


static ngx_uint_t ngx_http_idem_mutex_spin(ngx_shmtx_t *mutex);


void
ngx_http_idem_mutex_lock(ngx_slab_pool_t *shpool)
{
    ngx_pid_t     pid;
    ngx_uint_t    n;
    ngx_shmtx_t  *mutex;

    mutex = &shpool->mutex;

    if (ngx_shmtx_trylock(mutex)) {
        return;
    }

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


void
ngx_http_idem_mutex_unlock(ngx_slab_pool_t *shpool)
{
    ngx_shmtx_unlock(&shpool->mutex);
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
