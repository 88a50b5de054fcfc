
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/store/ngx_http_idem_orphans.c src/store/zone/ngx_http_idem_shared.c */

/*
 * The register of locks that a worker has to give back: another worker takes
 * over those of a process that is gone or does not send its releases, of its
 * own store, while the record may live, and each of them once.
 *
 * The table is in the memory of this process, which is one worker after the
 * other: ngx_pid says which.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <sys/wait.h>

#include "store/ngx_http_idem_store.h"
#include "unit.h"


/* of which every SETS-th of consecutive numbers has the same set */
#define ENTRIES  8192
#define SETS     128


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

void *
ngx_pnalloc(ngx_pool_t *p, size_t size)
{
    return NULL;
}

u_char * ngx_cdecl
ngx_sprintf(u_char *buf, const char *fmt, ...)
{
    return buf;
}

void ngx_cdecl
ngx_conf_log_error(ngx_uint_t level, ngx_conf_t *cf, ngx_err_t err,
    const char *fmt, ...)
{
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
    ngx_uint_t               n, m;
    ngx_http_idem_adopted_t  a;

    if (ngx_http_idem_orphans_adopt(store, &a, 1) != 1) {
        return -1;
    }

    ngx_memcpy(&n, a.id, sizeof(ngx_uint_t));
    ngx_memcpy(&m, a.token, sizeof(ngx_uint_t));
    *life = a.life;

    return n == m ? (long long) n : -2;
}


/* all that are taken over at once; how many of them are from..to */

static ngx_uint_t
adopted_all(ngx_uint_t from, ngx_uint_t to, ngx_uint_t *among)
{
    ngx_uint_t  i, n, k;

    static ngx_http_idem_adopted_t  all[ENTRIES];

    n = ngx_http_idem_orphans_adopt(&one, all, ENTRIES);
    *among = 0;

    for (i = 0; i < n; i++) {
        ngx_memcpy(&k, all[i].id, sizeof(ngx_uint_t));
        *among += (k >= from && k <= to);
    }

    return n;
}


int
main(void)
{
    ngx_pid_t   first, second;
    ngx_uint_t  i, n, seen, further;
    ngx_msec_t  life;

    plan(29);

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

    /* the release that follows is done */

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

    /* some at a time */

    ngx_pid = first;

    for (i = 0; i < 3; i++) {
        ngx_http_idem_orphan_add(lock_of(&one, 20 + i), 5000);
    }

    ngx_pid = getpid();
    (void) adopted(&one, &life);
    is(adopted_all(20, 22, &seen), 2, "the next call takes the rest");

    for (i = 0; i < 3; i++) {
        ngx_http_idem_orphan_remove(lock_of(&one, 20 + i));
    }

    /* full: the oldest makes room, and that is told */

    ngx_pid = getppid();
    ngx_http_idem_orphan_remove(lock_of(&one, 8));

    ngx_pid = first;
    n = 0;

    for (i = 0; i < ENTRIES + 10; i++) {
        ngx_current_msec++;
        n += ngx_http_idem_orphan_add(lock_of(&one, 1000 + i), 100000)
             == NGX_DECLINED;
    }

    is(n, 10, "what has no room is told");

    ngx_pid = getpid();
    is(adopted_all(1000 + 10, 1000 + 10 + ENTRIES, &seen), ENTRIES,
       "as many as there is room for");
    is(seen, ENTRIES, "... the latest of them");

    /* what was released once makes room first */

    for (i = 0; i < 5; i++) {
        ngx_http_idem_orphan_due(lock_of(&one, 1000 + ENTRIES + i), 0, 1);
    }

    n = 0;
    further = 1000 + 2 * ENTRIES;

    for (i = 0; i < 5; i++) {
        n += ngx_http_idem_orphan_add(lock_of(&one, further + i), 100000)
             == NGX_OK;
    }

    is(n, 5, "what was released once makes room first");
    is(ngx_http_idem_orphan_add(lock_of(&one, further + 5), 100000),
       NGX_DECLINED, "... then the oldest");

    for (i = 0; i < ENTRIES + 10; i++) {
        ngx_http_idem_orphan_remove(lock_of(&one, 1000 + i));
    }

    for (i = 0; i < 6; i++) {
        ngx_http_idem_orphan_remove(lock_of(&one, further + i));
    }

    /* a set that is full, in a table that is not */

    ngx_pid = first;
    n = 0;

    for (i = 0; i < ENTRIES / SETS + 3; i++) {
        ngx_current_msec++;
        n += ngx_http_idem_orphan_add(lock_of(&one, 1000 + i * SETS), 100000)
             == NGX_DECLINED;
    }

    is(n, 3, "ids that meet replace one another");

    for (i = 0; i < ENTRIES / SETS + 3; i++) {
        ngx_http_idem_orphan_remove(lock_of(&one, 1000 + i * SETS));
    }

    ngx_pid = second;
    ngx_http_idem_orphan_add(lock_of(&one, 30), 5000);
    ngx_pid = getpid();
    is(adopted_all(30, 30, &seen), 1, "all of them are gone again");
    is(seen, 1, "... and there is room");
    ngx_http_idem_orphan_remove(lock_of(&one, 30));

    ngx_pid = getppid();
    ngx_http_idem_orphan_add(lock_of(&one, 8), 50000);
    ngx_pid = getpid();
    is(adopted(&one, &life), -1, "one that lives has its own");

    /* the number of a dead process is another one's by now */

    ngx_pid = getppid();
    ngx_http_idem_orphan_due(lock_of(&one, 8), 1500, 0);
    ngx_pid = getpid();
    ngx_current_msec += 11500;
    is(adopted(&one, &life), -1, "a release that is late is waited for");
    ngx_current_msec++;
    is(adopted(&one, &life), 8, "... and taken over when it is overdue");
    is(life, 50000 - 11501, "... for what is left of its record");
    is(adopted(&one, &life), -1, "... once");
    ngx_http_idem_orphan_remove(lock_of(&one, 8));
    is(locked, 0, "nothing is locked");

    return done();
}
