
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/store/ngx_http_idem_orphans.c */

/*
 * The register of locks that a worker has to give back: another worker takes
 * over those of a process that is gone, of its own store, while the record may
 * live, and each of them once.
 *
 * The table is in the memory of this process, which is one worker after the
 * other: ngx_pid says which.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <sys/wait.h>

#include "store/ngx_http_idem_store.h"
#include "unit.h"


#define ENTRIES  512


volatile ngx_msec_t  ngx_current_msec = 1000000;
ngx_pid_t            ngx_pid;
ngx_uint_t           ngx_pagesize = 4096;
ngx_module_t         ngx_http_core_module;
uint32_t            *ngx_crc32_table_short;

static uint32_t         crc[16];
static ngx_uint_t       locked;
static ngx_shm_zone_t   shm;
static ngx_slab_pool_t  pool;

static ngx_http_idem_store_t  one, two;


/* stand-ins */

ngx_shm_zone_t *
ngx_shared_memory_add(ngx_conf_t *cf, ngx_str_t *name, size_t size, void *tag)
{
    return &shm;
}

void *
ngx_slab_calloc(ngx_slab_pool_t *shpool, size_t size)
{
    return calloc(1, size);
}

void
ngx_http_idem_mutex_lock(ngx_slab_pool_t *shpool)
{
    locked++;
}

void
ngx_http_idem_mutex_unlock(ngx_slab_pool_t *shpool)
{
    locked--;
}


/* a process that is gone */

static ngx_pid_t
gone(void)
{
    pid_t  pid;

    pid = fork();

    if (pid == 0) {
        _exit(0);
    }

    (void) waitpid(pid, NULL, 0);

    return pid;
}


static ngx_http_idem_op_t *
lock_of(ngx_http_idem_store_t *store, ngx_uint_t n)
{
    static ngx_http_idem_op_t  op;

    ngx_memzero(&op, sizeof(ngx_http_idem_op_t));

    op.store = store;
    ngx_memcpy(op.id, &n, sizeof(ngx_uint_t));
    ngx_memcpy(op.token, &n, sizeof(ngx_uint_t));

    return &op;
}


/* the number of the lock that is taken over, or -1 */

static long long
adopted(ngx_http_idem_store_t *store, ngx_msec_t *life)
{
    u_char      id[NGX_HTTP_IDEM_ID_LEN], token[NGX_HTTP_IDEM_TOKEN_LEN];
    ngx_uint_t  n, m;

    if (ngx_http_idem_orphan_adopt(store, id, token, life) != NGX_OK) {
        return -1;
    }

    ngx_memcpy(&n, id, sizeof(ngx_uint_t));
    ngx_memcpy(&m, token, sizeof(ngx_uint_t));

    return n == m ? (long long) n : -2;
}


int
main(void)
{
    ngx_pid_t   first, second;
    ngx_uint_t  i, n, seen;
    ngx_msec_t  life;

    plan(18);

    for (i = 0; i < 16; i++) {
        crc[i] = (uint32_t) (i * 0x1db71064);
    }

    ngx_crc32_table_short = crc;

    ngx_str_set(&one.name, "one");
    ngx_str_set(&two.name, "two");

    first = gone();
    second = gone();

    is(adopted(&one, &life), -1, "there is no zone: nothing is found");
    ngx_http_idem_orphan_add(lock_of(&one, 1), 100);

    is(ngx_http_idem_orphans_zone(NULL), NGX_OK, "there is one");
    shm.shm.addr = (u_char *) &pool;
    is(shm.init(&shm, NULL), NGX_OK, "which is made");

    ngx_pid = first;
    ngx_http_idem_orphan_add(lock_of(&one, 7), 5000);

    is(adopted(&one, &life), -1, "a worker does not take over from itself");

    ngx_pid = getppid();
    ngx_http_idem_orphan_add(lock_of(&one, 8), 5000);

    ngx_pid = getpid();
    ngx_current_msec += 2000;

    is(adopted(&two, &life), -1, "another store has none");
    is(adopted(&one, &life), 7, "that of a worker that is gone is taken over");
    is(life, 3000, "... for what is left of its record");
    is(adopted(&one, &life), -1, "... once, and not that of one that lives");

    /* the release that follows enters it again, and is done */

    ngx_http_idem_orphan_add(lock_of(&one, 7), 3000);
    ngx_http_idem_orphan_remove(lock_of(&one, 7));
    ngx_pid = second;
    is(adopted(&one, &life), -1, "what was given back is not taken over");

    ngx_http_idem_orphan_add(lock_of(&one, 9), 5000);
    ngx_http_idem_orphan_add(lock_of(&one, 10), 1000);
    ngx_current_msec += 1000;
    ngx_pid = getpid();
    is(adopted(&one, &life), 9, "one that may last is taken over");
    is(adopted(&one, &life), -1, "... not one that has expired");
    ngx_http_idem_orphan_remove(lock_of(&one, 9));

    /* a reload finds it again */

    ngx_pid = first;
    ngx_http_idem_orphan_add(lock_of(&two, 11), 5000);
    is(shm.init(&shm, NULL), NGX_OK, "a reload");
    ngx_pid = getpid();
    is(adopted(&one, &life), -1, "of two stores");
    is(adopted(&two, &life), 11, "... each finds its own");
    ngx_http_idem_orphan_remove(lock_of(&two, 11));

    /* full: the oldest makes room */

    ngx_pid = first;

    for (i = 0; i < ENTRIES + 10; i++) {
        ngx_current_msec++;
        ngx_http_idem_orphan_add(lock_of(&one, 1000 + i), 100000);
    }

    ngx_pid = getpid();
    n = 0;
    seen = 0;

    for ( ;; ) {
        long long  k;

        k = adopted(&one, &life);

        if (k < 0) {
            break;
        }

        n++;
        seen += (k >= 1000 + 10) ? 1 : 0;
    }

    is(n, ENTRIES, "as many as there is room for");
    is(seen, ENTRIES, "... the latest of them");

    ngx_pid = getppid();
    ngx_http_idem_orphan_add(lock_of(&one, 8), 5000);
    ngx_pid = getpid();
    is(adopted(&one, &life), -1, "one that lives has its own");
    is(locked, 0, "nothing is locked");

    return done();
}
