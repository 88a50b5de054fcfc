
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Waiters.  A watch marks the record as waited for.  The script of a commit
 * or a release then publishes the key of the record; after a native commit
 * the backend does so.  The subscriber of each worker receives the message
 * and wakes the waiters of that worker, which are in ..._poll.c.
 *
 * Called by ..._remote.c, and by the subscriber's connection with messages.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"


/* limit of the polling interval while there is no subscriber, ms */
#define NGX_HTTP_IDEM_REDIS_POLL  1000


void
ngx_http_idem_redis_listen(ngx_http_idem_op_t *op)
{
    ngx_redis_listen_enter(&ngx_http_idem_redis_conf(op)->client);
}


void
ngx_http_idem_redis_unlisten(ngx_http_idem_op_t *op)
{
    ngx_redis_listen_leave(&ngx_http_idem_redis_conf(op)->client);
}


/* the record is in progress, for another op->found.left ms at most */

void
ngx_http_idem_redis_wait(ngx_http_idem_op_t *op)
{
    ngx_redis_t  *client;

    client = &ngx_http_idem_redis_conf(op)->client;

    if (!op->woken) {
        ngx_redis_check(&client->subscriber);
    }

    ngx_http_idem_poll_wait(op, client->subscriber.state == NGX_REDIS_READY
                                ? 0 : NGX_HTTP_IDEM_REDIS_POLL);
}


/* the subscriber is ready; earlier messages were missed */

void
ngx_http_idem_redis_wake_all(ngx_redis_t *client)
{
    ngx_http_idem_redis_t  *redis;

    redis = client->data;

    ngx_http_idem_polls_wake(&redis->remote.polls, NULL);
}


/*
 * The key of a record, followed by "-" if an administrator has removed it.
 * Other clients may publish anything on this channel.
 */

void
ngx_http_idem_redis_message(ngx_redis_t *client, ngx_str_t *text)
{
    ngx_str_t               key;
    ngx_uint_t              removed;
    ngx_http_idem_redis_t  *redis;

    redis = client->data;

    key = *text;
    removed = (key.len && key.data[key.len - 1] == '-');
    key.len -= removed;

    if (key.len > redis->prefix.len) {
        ngx_http_idem_remote_message(&redis->remote, redis->store,
                                     key.data + redis->prefix.len,
                                     key.len - redis->prefix.len, removed);
    }
}
