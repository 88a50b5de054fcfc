
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Wakes the waiters of a record in all workers.
 *
 * nginx's channel between processes has no hook for modules.  So each worker
 * has a datagram socket.  Its pid is in a slot of the zone, and a record has
 * a bit for each slot whose worker waits for it.  A datagram contains the id
 * of a record.  Datagrams may get lost or be forged, see ..._poll.c.
 *
 * Called by the operations of the embedded store.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/memory/ngx_http_idem_memory.h"


/* limit of the polling interval without a socket, ms */
#define NGX_HTTP_IDEM_POLL  1000


#if (NGX_LINUX)
static socklen_t ngx_http_idem_wake_address(
    ngx_http_idem_memory_t *m, ngx_pid_t pid, struct sockaddr_un *sun);
static ngx_int_t ngx_http_idem_wake_slot(ngx_http_idem_memory_t *m);
static ngx_int_t ngx_http_idem_wake_listen(ngx_cycle_t *cycle,
    ngx_http_idem_memory_t *m, ngx_socket_t fd);
static void ngx_http_idem_wake_read(ngx_event_t *ev);
#endif


ngx_int_t
ngx_http_idem_wake_init(ngx_cycle_t *cycle, ngx_http_idem_memory_t *m)
{
    ngx_http_idem_polls_init(&m->polls);

#if (NGX_LINUX)
    {
    ngx_socket_t         fd;
    socklen_t            len;
    struct sockaddr_un   sun;

    fd = socket(AF_UNIX, SOCK_DGRAM, 0);

    if (fd == (ngx_socket_t) -1) {
        ngx_log_error(NGX_LOG_WARN, cycle->log, ngx_socket_errno,
                      "idempotency: " ngx_socket_n " failed, waiters in this "
                      "worker look by themselves");
        return NGX_OK;
    }

    len = ngx_http_idem_wake_address(m, ngx_pid, &sun);

    if (ngx_nonblocking(fd) == -1
        || fcntl(fd, F_SETFD, FD_CLOEXEC) == -1
        || bind(fd, (struct sockaddr *) &sun, len) == -1)
    {
        ngx_log_error(NGX_LOG_WARN, cycle->log, ngx_socket_errno,
                      "idempotency: a datagram socket can't be had, waiters "
                      "in this worker look by themselves");
        goto failed;
    }

    if (ngx_http_idem_wake_listen(cycle, m, fd) != NGX_OK) {
        goto failed;
    }

    m->fd = fd;
    m->slot = ngx_http_idem_wake_slot(m);

    return NGX_OK;

failed:

    (void) ngx_close_socket(fd);
    }
#endif

    return NGX_OK;
}


void
ngx_http_idem_wake_exit(ngx_http_idem_memory_t *m)
{
    if (m->slot < 0) {
        return;
    }

    ngx_http_idem_zone_lock(&m->z);
    m->z.zone->workers[m->slot] = 0;
    ngx_http_idem_zone_unlock(&m->z);

    m->slot = -1;
}


/* wakes the workers whose slots are in "waiting" */

void
ngx_http_idem_wake(ngx_http_idem_memory_t *m, u_char *id, uint64_t waiting)
{
    ngx_int_t  i;

    if (waiting == 0) {
        return;
    }

    for (i = 0; i < NGX_HTTP_IDEM_WORKERS; i++) {

        if (!(waiting & ((uint64_t) 1 << i))) {
            continue;
        }

        if (i == m->slot) {
            ngx_http_idem_polls_wake(&m->polls, id);
            continue;
        }

#if (NGX_LINUX)
        {
        ngx_pid_t           pid;
        socklen_t           len;
        struct sockaddr_un  sun;

        pid = m->z.zone->workers[i];

        if (pid && m->fd != (ngx_socket_t) -1) {
            len = ngx_http_idem_wake_address(m, pid, &sun);

            /* if the worker is gone or its queue is full, its watch polls */

            (void) sendto(m->fd, id, NGX_HTTP_IDEM_ID_LEN, 0,
                          (struct sockaddr *) &sun, len);
        }
        }
#endif
    }
}


void
ngx_http_idem_wake_watch(ngx_http_idem_memory_t *m,
    ngx_http_idem_op_t *op, ngx_msec_t lease_left)
{
    op->woken = 0;
    op->found.left = lease_left;

    ngx_queue_insert_tail(&m->polls.by_id[op->id[0]], &op->queue);

    ngx_http_idem_poll_wait(op, m->slot < 0 ? NGX_HTTP_IDEM_POLL : 0);
}


#if (NGX_LINUX)

/* in the abstract namespace: leaves no file behind */

static socklen_t
ngx_http_idem_wake_address(ngx_http_idem_memory_t *m,
    ngx_pid_t pid, struct sockaddr_un *sun)
{
    u_char  *p;

    ngx_memzero(sun, sizeof(struct sockaddr_un));

    sun->sun_family = AF_UNIX;

    p = (u_char *) sun->sun_path + 1;
    p = ngx_cpymem(p, "ngx_http_idempotency.", 21);
    p = ngx_hex_dump(p, m->z.zone->nonce, sizeof(m->z.zone->nonce));
    p = ngx_sprintf(p, ".%P", pid);

    return (socklen_t) (p - (u_char *) sun);
}


static ngx_int_t
ngx_http_idem_wake_slot(ngx_http_idem_memory_t *m)
{
    ngx_int_t   i, slot;
    ngx_pid_t  *workers;

    slot = -1;
    workers = m->z.zone->workers;

    ngx_http_idem_zone_lock(&m->z);

    for (i = 0; i < NGX_HTTP_IDEM_WORKERS; i++) {

        /* a slot whose worker was killed is free, too */

        if (workers[i] == 0
            || workers[i] == ngx_pid
            || (kill(workers[i], 0) == -1 && ngx_errno == ESRCH))
        {
            slot = i;
            workers[i] = ngx_pid;
            break;
        }
    }

    ngx_http_idem_zone_unlock(&m->z);

    return slot;
}


static ngx_int_t
ngx_http_idem_wake_listen(ngx_cycle_t *cycle,
    ngx_http_idem_memory_t *m, ngx_socket_t fd)
{
    ngx_connection_t  *c;

    c = ngx_get_connection(fd, cycle->log);
    if (c == NULL) {
        return NGX_ERROR;
    }

    c->pool = cycle->pool;
    c->data = m;

    c->read->log = cycle->log;
    c->write->log = cycle->log;

    /* as nginx's own channel: not reported as an open connection at exit */

    c->read->channel = 1;
    c->write->channel = 1;

    c->read->handler = ngx_http_idem_wake_read;

    if (ngx_add_event(c->read, NGX_READ_EVENT,
                      (ngx_event_flags & NGX_USE_CLEAR_EVENT)
                      ? NGX_CLEAR_EVENT : 0)
        == NGX_ERROR)
    {
        ngx_free_connection(c);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static void
ngx_http_idem_wake_read(ngx_event_t *ev)
{
    u_char                   id[NGX_HTTP_IDEM_ID_LEN];
    ssize_t                  n;
    ngx_connection_t        *c;
    ngx_http_idem_memory_t  *m;

    c = ev->data;
    m = c->data;

    for ( ;; ) {
        n = recv(c->fd, id, NGX_HTTP_IDEM_ID_LEN, 0);

        if (n == -1) {
            if (ngx_socket_errno == NGX_EINTR) {
                continue;
            }

            return;
        }

        if (n == NGX_HTTP_IDEM_ID_LEN) {
            ngx_http_idem_polls_wake(&m->polls, id);
        }
    }
}

#endif
