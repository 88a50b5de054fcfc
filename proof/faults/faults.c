
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Makes allocations fail, one after the other, in the module as it is shipped,
 * and kills a worker at any instruction while it holds a lock.
 *
 * tools/build-faults links the objects of the normal build once more, with
 * the linker's --wrap: what the module calls to get memory, and what hiredis,
 * yajl and zlib call (they are linked in statically there), comes through
 * here.  So nothing of this is in the sources of the module, and a normal
 * build has no trace of it.
 *
 * A file that NGX_IDEMPOTENCY_FAULTS names is shared with the test: it says
 * which call, counted from when it was armed, is to fail, and is told how many
 * there were and which one failed.  See t/lib/IdempotencyTest/Faults.pm.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <dlfcn.h>
#include <ucontext.h>
#include <zlib.h>


/* places of a second module, that of PostgreSQL, are told apart by this */
#ifndef FAULTS_AT
#define FAULTS_AT       0
#endif

#define FAULTS_SITES    1024

#define FAULTS_POOL     1       /* memory of the process                    */
#define FAULTS_SLAB     2       /* shared memory                            */
#define FAULTS_LIBRARY  4       /* inside of hiredis, yajl, zlib            */


typedef struct {
    uint64_t   address;         /* where it returns to, within the module   */
    uint64_t   calls;
    uint64_t   failures;
} faults_site_t;


typedef struct {
    uint64_t       at;          /* 0: none fails                            */
    uint64_t       mode;        /* 0: that one, 1: it and all that follow   */
    uint64_t       classes;
    uint64_t       count;
    uint64_t       failed;
    uint64_t       address;     /* of the first that failed                 */
    char           name[48];
    int64_t        blocks;      /* of memory, and pools, that are not freed */
    int64_t        pools;
    uint64_t       nsites;
    faults_site_t  sites[FAULTS_SITES];
    int64_t        kill_in;     /* the lock of shared memory, counted from
                                   now on, whose holder dies; 0: none does  */
    uint64_t       kill_steps;  /* ... after so many instructions; 0: none  */
    uint64_t       kills;       /* so far                                   */
    uint64_t       killed;      /* the last one's pid                       */
} faults_t;


static faults_t  *faults;
static uint64_t   faults_base;


__attribute__((constructor)) static void
faults_open(void)
{
    int          fd;
    char        *path;
    void        *p;
    Dl_info      info;

    path = getenv("NGX_IDEMPOTENCY_FAULTS");

    if (path == NULL || dladdr((void *) faults_open, &info) == 0) {
        return;
    }

    fd = open(path, O_RDWR);
    if (fd == -1) {
        return;
    }

    p = mmap(NULL, sizeof(faults_t), PROT_READ|PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);

    if (p != MAP_FAILED) {
        faults_base = (uint64_t) (uintptr_t) info.dli_fbase;
        faults = p;
    }
}


static int
faults_hit(unsigned class, const char *name, void *from)
{
    uint64_t        address, i;
    faults_site_t  *site;

    if (faults == NULL || !(faults->classes & class)) {
        return 0;
    }

    address = FAULTS_AT + (uint64_t) (uintptr_t) from - faults_base;

    for (i = 0; i < faults->nsites; i++) {
        if (faults->sites[i].address == address) {
            break;
        }
    }

    if (i == FAULTS_SITES) {
        return 0;
    }

    site = &faults->sites[i];

    if (i == faults->nsites) {
        site->address = address;
        faults->nsites++;
    }

    site->calls++;
    faults->count++;

    if (faults->at == 0
        || faults->count < faults->at
        || (faults->count > faults->at && faults->mode == 0))
    {
        return 0;
    }

    if (faults->failed++ == 0) {
        faults->address = address;
        strncpy(faults->name, name, sizeof(faults->name) - 1);
    }

    site->failures++;
    errno = ENOMEM;

    return 1;
}


/* what was got and not given back, by the whole of the module */

static void *
faults_got(void *p, int64_t n)
{
    if (faults && p) {
        __sync_fetch_and_add(&faults->blocks, n);
    }

    return p;
}


#define FAULTS_WRAP(class, type, name, failure, params, args)                 \
    type __real_##name params;                                                \
    type __wrap_##name params;                                                \
                                                                              \
    type __wrap_##name params                                                 \
    {                                                                         \
        if (faults_hit(class, #name, __builtin_return_address(0))) {          \
            return failure;                                                   \
        }                                                                     \
                                                                              \
        return __real_##name args;                                            \
    }


FAULTS_WRAP(FAULTS_POOL, void *, ngx_palloc, NULL,
            (ngx_pool_t *pool, size_t size), (pool, size))
FAULTS_WRAP(FAULTS_POOL, void *, ngx_pnalloc, NULL,
            (ngx_pool_t *pool, size_t size), (pool, size))
FAULTS_WRAP(FAULTS_POOL, void *, ngx_pcalloc, NULL,
            (ngx_pool_t *pool, size_t size), (pool, size))
FAULTS_WRAP(FAULTS_POOL, u_char *, ngx_pstrdup, NULL,
            (ngx_pool_t *pool, ngx_str_t *src), (pool, src))
FAULTS_WRAP(FAULTS_POOL, ngx_array_t *, ngx_array_create, NULL,
            (ngx_pool_t *p, ngx_uint_t n, size_t size), (p, n, size))
FAULTS_WRAP(FAULTS_POOL, void *, ngx_array_push, NULL,
            (ngx_array_t *a), (a))
FAULTS_WRAP(FAULTS_POOL, void *, ngx_array_push_n, NULL,
            (ngx_array_t *a, ngx_uint_t n), (a, n))
FAULTS_WRAP(FAULTS_POOL, void *, ngx_list_push, NULL,
            (ngx_list_t *list), (list))
FAULTS_WRAP(FAULTS_POOL, ngx_chain_t *, ngx_alloc_chain_link, NULL,
            (ngx_pool_t *pool), (pool))
FAULTS_WRAP(FAULTS_POOL, ngx_buf_t *, ngx_create_temp_buf, NULL,
            (ngx_pool_t *pool, size_t size), (pool, size))
FAULTS_WRAP(FAULTS_POOL, ngx_pool_cleanup_t *, ngx_pool_cleanup_add, NULL,
            (ngx_pool_t *p, size_t size), (p, size))
FAULTS_WRAP(FAULTS_POOL, ngx_http_cleanup_t *, ngx_http_cleanup_add, NULL,
            (ngx_http_request_t *r, size_t size), (r, size))
FAULTS_WRAP(FAULTS_POOL, ngx_int_t, ngx_http_complex_value, NGX_ERROR,
            (ngx_http_request_t *r, ngx_http_complex_value_t *val,
             ngx_str_t *value), (r, val, value))
FAULTS_WRAP(FAULTS_POOL, ngx_connection_t *, ngx_get_connection, NULL,
            (ngx_socket_t s, ngx_log_t *log), (s, log))
FAULTS_WRAP(FAULTS_POOL, ngx_int_t, ngx_event_connect_peer, NGX_ERROR,
            (ngx_peer_connection_t *pc), (pc))
FAULTS_WRAP(FAULTS_POOL, ngx_int_t, ngx_ssl_create_connection, NGX_ERROR,
            (ngx_ssl_t *ssl, ngx_connection_t *c, ngx_uint_t flags),
            (ssl, c, flags))
FAULTS_WRAP(FAULTS_POOL, ngx_thread_task_t *, ngx_thread_task_alloc, NULL,
            (ngx_pool_t *pool, size_t size), (pool, size))
FAULTS_WRAP(FAULTS_POOL, ngx_int_t, ngx_thread_task_post, NGX_ERROR,
            (ngx_thread_pool_t *tp, ngx_thread_task_t *task), (tp, task))
FAULTS_WRAP(FAULTS_POOL, ngx_http_variable_t *, ngx_http_add_variable, NULL,
            (ngx_conf_t *cf, ngx_str_t *name, ngx_uint_t flags),
            (cf, name, flags))
FAULTS_WRAP(FAULTS_POOL, ngx_shm_zone_t *, ngx_shared_memory_add, NULL,
            (ngx_conf_t *cf, ngx_str_t *name, size_t size, void *tag),
            (cf, name, size, tag))
FAULTS_WRAP(FAULTS_POOL, ngx_open_file_t *, ngx_conf_open_file, NULL,
            (ngx_cycle_t *cycle, ngx_str_t *name), (cycle, name))

FAULTS_WRAP(FAULTS_SLAB, void *, ngx_slab_alloc, NULL,
            (ngx_slab_pool_t *pool, size_t size), (pool, size))
FAULTS_WRAP(FAULTS_SLAB, void *, ngx_slab_alloc_locked, NULL,
            (ngx_slab_pool_t *pool, size_t size), (pool, size))
FAULTS_WRAP(FAULTS_SLAB, void *, ngx_slab_calloc, NULL,
            (ngx_slab_pool_t *pool, size_t size), (pool, size))
FAULTS_WRAP(FAULTS_SLAB, void *, ngx_slab_calloc_locked, NULL,
            (ngx_slab_pool_t *pool, size_t size), (pool, size))
FAULTS_WRAP(FAULTS_SLAB, void *, ngx_http_idem_arena_alloc, NULL,
            (void *arena, ngx_uint_t kind), (arena, kind))


#define FAULTS_WRAP_BLOCK(class, type, name, params, args)                    \
    type __real_##name params;                                                \
    type __wrap_##name params;                                                \
                                                                              \
    type __wrap_##name params                                                 \
    {                                                                         \
        if (faults_hit(class, #name, __builtin_return_address(0))) {          \
            return NULL;                                                      \
        }                                                                     \
                                                                              \
        return faults_got(__real_##name args, 1);                             \
    }


FAULTS_WRAP_BLOCK(FAULTS_POOL, void *, ngx_alloc,
                  (size_t size, ngx_log_t *log), (size, log))
FAULTS_WRAP_BLOCK(FAULTS_POOL, void *, ngx_calloc,
                  (size_t size, ngx_log_t *log), (size, log))
FAULTS_WRAP_BLOCK(FAULTS_LIBRARY, void *, malloc, (size_t size), (size))
FAULTS_WRAP_BLOCK(FAULTS_LIBRARY, void *, calloc, (size_t n, size_t size),
                  (n, size))


void *__real_realloc(void *p, size_t size);
void *__wrap_realloc(void *p, size_t size);

void *
__wrap_realloc(void *p, size_t size)
{
    void  *new;

    if (faults_hit(FAULTS_LIBRARY, "realloc", __builtin_return_address(0))) {
        return NULL;
    }

    new = __real_realloc(p, size);

    return p ? new : faults_got(new, 1);
}


void __real_free(void *p);
void __wrap_free(void *p);

void
__wrap_free(void *p)
{
    (void) faults_got(p, -1);
    __real_free(p);
}


ngx_pool_t *__real_ngx_create_pool(size_t size, ngx_log_t *log);
ngx_pool_t *__wrap_ngx_create_pool(size_t size, ngx_log_t *log);

ngx_pool_t *
__wrap_ngx_create_pool(size_t size, ngx_log_t *log)
{
    ngx_pool_t  *pool;

    if (faults_hit(FAULTS_POOL, "ngx_create_pool",
                   __builtin_return_address(0)))
    {
        return NULL;
    }

    pool = __real_ngx_create_pool(size, log);

    if (faults && pool) {
        __sync_fetch_and_add(&faults->pools, 1);
    }

    return pool;
}


void __real_ngx_destroy_pool(ngx_pool_t *pool);
void __wrap_ngx_destroy_pool(ngx_pool_t *pool);

void
__wrap_ngx_destroy_pool(ngx_pool_t *pool)
{
    if (faults) {
        __sync_fetch_and_add(&faults->pools, -1);
    }

    __real_ngx_destroy_pool(pool);
}


/*
 * The worker dies with the lock: the processor stops after each instruction
 * (its trap flag), and the handler counts.  One who gives the lock back before
 * lives, and the next one that takes it is tried.  Where there is no such flag
 * the worker dies as soon as it has the lock.
 */

void __real_ngx_http_idem_mutex_lock(ngx_slab_pool_t *shpool);
void __wrap_ngx_http_idem_mutex_lock(ngx_slab_pool_t *shpool);
void __real_ngx_http_idem_mutex_unlock(ngx_slab_pool_t *shpool);
void __wrap_ngx_http_idem_mutex_unlock(ngx_slab_pool_t *shpool);


static volatile uint64_t  faults_steps;


static void
faults_die(void)
{
    faults->killed = (uint64_t) getpid();
    __sync_fetch_and_add(&faults->kills, 1);

    (void) kill(getpid(), SIGKILL);
}


#if defined(__x86_64__)

static void
faults_step(int signo, siginfo_t *info, void *context)
{
    ucontext_t  *uc = context;

    if (faults_steps == 0) {
        uc->uc_mcontext.gregs[REG_EFL] &= ~0x100;
        return;
    }

    if (--faults_steps == 0) {
        faults_die();
    }
}


static void
faults_walk(uint64_t steps)
{
    struct sigaction  sa;

    memset(&sa, 0, sizeof(sa));
    sa.sa_sigaction = faults_step;
    sa.sa_flags = SA_SIGINFO;

    if (sigaction(SIGTRAP, &sa, NULL) == -1) {
        return;
    }

    /* what leads back to the module counts, too */

    faults_steps = steps + 8;

    __asm__ volatile ("subq $128, %%rsp\n\t"
                      "pushfq\n\t"
                      "orq $0x100, (%%rsp)\n\t"
                      "popfq\n\t"
                      "addq $128, %%rsp" ::: "memory", "cc");
}

#else

static void
faults_walk(uint64_t steps)
{
    faults_die();
}

#endif


void
__wrap_ngx_http_idem_mutex_lock(ngx_slab_pool_t *shpool)
{
    __real_ngx_http_idem_mutex_lock(shpool);

    if (faults && faults->kill_in > 0 && faults->kill_steps
        && ngx_process == NGX_PROCESS_WORKER
        && __sync_sub_and_fetch(&faults->kill_in, 1) == 0)
    {
        faults_walk(faults->kill_steps);
    }
}


void
__wrap_ngx_http_idem_mutex_unlock(ngx_slab_pool_t *shpool)
{
    if (faults_steps) {
        faults_steps = 0;

        if (faults->kill_steps) {
            faults->kill_in = 1;
        }
    }

    __real_ngx_http_idem_mutex_unlock(shpool);
}
