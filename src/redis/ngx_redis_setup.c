
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * From an address to a connection that is ready: the socket, TLS, and the
 * setup commands (AUTH; SELECT, or SUBSCRIBE on a subscriber; HELLO, whose
 * reply tells the server's version; ROLE with sentinels).
 *
 * A password is sent to the server only: no log message contains an argument
 * of a command, and of an error in reply to AUTH only the first word is
 * logged.
 *
 * Called by the connection; a failure drops the connection.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_event_connect.h>

#include "ngx_redis.h"
#include "ngx_redis_topology.h"


#define NGX_REDIS_POOL_SIZE  512


#if (NGX_SSL)
static void ngx_redis_handshake(ngx_redis_conn_t *conn);
static void ngx_redis_handshake_handler(ngx_connection_t *c);
static ngx_int_t ngx_redis_is_address(ngx_str_t *name);
#endif
static void ngx_redis_setup(ngx_redis_conn_t *conn);
static ngx_int_t ngx_redis_setup_ask(ngx_redis_conn_t *conn);
static void ngx_redis_authenticated(ngx_redis_conn_t *conn,
    redisReply *reply);
static ngx_int_t ngx_redis_accepted(ngx_redis_conn_t *conn,
    redisReply *reply, const char *what);
static void ngx_redis_selected(ngx_redis_conn_t *conn, redisReply *reply);
static void ngx_redis_hello(ngx_redis_conn_t *conn, redisReply *reply);
static void ngx_redis_role(ngx_redis_conn_t *conn, redisReply *reply);
static void ngx_redis_subscribed(ngx_redis_conn_t *conn, redisReply *reply);


void
ngx_redis_connect(ngx_redis_conn_t *conn)
{
    ngx_int_t          rc;
    ngx_addr_t        *addr;
    ngx_connection_t  *c;
    ngx_redis_node_t  *node;

    node = conn->node;

    conn->state = NGX_REDIS_CONNECTING;
    conn->answered = 0;
    conn->replica = 0;
    conn->flags = 0;
    conn->version = 0;
    conn->last_read = ngx_current_msec;

    if (node->naddrs == 0) {
        ngx_redis_lookup(conn);
        return;
    }

    if (!node->resolved) {

        /* the addresses from the configuration may be outdated */

        ngx_redis_resolve_soon(node);
    }

    addr = &node->addrs[node->addr];

    conn->socklen = addr->socklen;
    ngx_memcpy(&conn->sockaddr, addr->sockaddr, addr->socklen);

    rc = ngx_redis_attempt(conn, ngx_redis_connect_handler, &c);

    if (rc == NGX_ERROR) {
        ngx_redis_drop(conn, "the connection is refused");
        return;
    }

    conn->connection = c;

    conn->reader = ngx_redis_reader(conn->owner ? NGX_REDIS_SLOTS : 0);
    c->pool = ngx_create_pool(NGX_REDIS_POOL_SIZE, ngx_cycle->log);

    if (conn->reader == NULL || c->pool == NULL) {
        ngx_redis_drop(conn, "no memory");
        return;
    }

    ngx_add_timer(&conn->timer, conn->redis->connect_timeout);

    if (rc == NGX_OK) {
        ngx_redis_connected(conn);
        return;
    }

    ngx_redis_probe(conn);
}


/* starts to connect; NGX_OK: connected already, NGX_AGAIN, NGX_ERROR */

ngx_int_t
ngx_redis_attempt(ngx_redis_conn_t *conn, ngx_event_handler_pt handler,
    ngx_connection_t **c)
{
    ngx_int_t              rc;
    ngx_peer_connection_t  pc;

    ngx_memzero(&pc, sizeof(ngx_peer_connection_t));

    pc.sockaddr = &conn->sockaddr.sockaddr;
    pc.socklen = conn->socklen;
    pc.name = ngx_redis_node_label(conn->node);
    pc.get = ngx_event_get_peer;
    pc.log = ngx_cycle->log;
    pc.log_error = NGX_ERROR_INFO;

    rc = ngx_event_connect_peer(&pc);

    if (rc != NGX_OK && rc != NGX_AGAIN) {
        return NGX_ERROR;
    }

    *c = pc.connection;

    (*c)->data = conn;
    (*c)->read->handler = handler;
    (*c)->write->handler = handler;

    return rc;
}


void
ngx_redis_connect_handler(ngx_event_t *ev)
{
    ngx_err_t          err;
    ngx_connection_t  *c;
    ngx_redis_conn_t  *conn;

    c = ev->data;
    conn = c->data;

    err = ngx_redis_connect_error(c);

    if (err) {
        u_char  *last, text[NGX_MAX_CONF_ERRSTR / 8];

        last = ngx_strerror(err, text, sizeof(text) - 1);
        *last = '\0';

        ngx_redis_drop(conn, "%s", text);
        return;
    }

    if (ev->write) {
        ngx_redis_connected(conn);
    }
}


ngx_err_t
ngx_redis_connect_error(ngx_connection_t *c)
{
    int        err;
    socklen_t  len;

    err = 0;
    len = sizeof(int);

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len) == -1) {
        err = ngx_socket_errno;
    }

    return err;
}


void
ngx_redis_connected(ngx_redis_conn_t *conn)
{
    ngx_connection_t  *c;

    ngx_redis_probe_stop(conn);

    c = conn->connection;

    if (conn->node->addrs[conn->node->addr].sockaddr->sa_family != AF_UNIX
        && ngx_tcp_nodelay(c) != NGX_OK)
    {
        ngx_redis_drop(conn, "no TCP_NODELAY");
        return;
    }

#if (NGX_SSL)

    if (conn->node->sentinel ? conn->redis->sentinel_tls : conn->redis->tls) {
        ngx_redis_handshake(conn);
        return;
    }

#endif

    ngx_redis_setup(conn);
}


#if (NGX_SSL)

static void
ngx_redis_handshake(ngx_redis_conn_t *conn)
{
    ngx_str_t         *name;
    ngx_connection_t  *c;
    ngx_redis_t       *redis;

    c = conn->connection;
    redis = conn->redis;
    name = redis->tls_name.len ? &redis->tls_name : &conn->node->host;

    if (ngx_ssl_create_connection(redis->ssl, c, NGX_SSL_CLIENT) != NGX_OK) {
        ngx_redis_drop(conn, "no TLS connection");
        return;
    }

    /* the buffer moves when it grows, also between two attempts to write */

    SSL_set_mode(c->ssl->connection, SSL_MODE_ENABLE_PARTIAL_WRITE
                                     |SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);

    /* both names are NUL-terminated */

    if (name->len && !ngx_redis_is_address(name)
        && SSL_set_tlsext_host_name(c->ssl->connection, (char *) name->data)
           == 0)
    {
        ngx_redis_drop(conn, "no TLS server name");
        return;
    }

    c->ssl->handler = ngx_redis_handshake_handler;

    if (ngx_ssl_handshake(c) == NGX_AGAIN) {
        return;
    }

    ngx_redis_handshake_handler(c);
}


static void
ngx_redis_handshake_handler(ngx_connection_t *c)
{
    long               rc;
    X509              *cert;
    ngx_str_t         *name;
    ngx_uint_t         matches;
    ngx_redis_t       *redis;
    ngx_redis_conn_t  *conn;

    conn = c->data;
    redis = conn->redis;

    if (!c->ssl->handshaked) {
        ngx_redis_drop(conn, "the TLS handshake failed");
        return;
    }

    if (redis->tls_verify) {
        rc = SSL_get_verify_result(c->ssl->connection);

        if (rc != X509_V_OK) {
            ngx_redis_drop(conn,
                                  "its certificate is not accepted: %s",
                                  X509_verify_cert_error_string(rc));
            return;
        }

        name = redis->tls_name.len ? &redis->tls_name : &conn->node->host;

        if (ngx_redis_is_address(name)) {
            cert = SSL_get_peer_certificate(c->ssl->connection);
            matches = cert
                      && X509_check_ip_asc(cert, (char *) name->data, 0) == 1;
            X509_free(cert);

        } else {
            matches = (ngx_ssl_check_host(c, name) == NGX_OK);
        }

        if (!matches) {
            ngx_redis_drop(conn, "its certificate is not for \"%V\"", name);
            return;
        }
    }

    ngx_redis_setup(conn);
}


static ngx_int_t
ngx_redis_is_address(ngx_str_t *name)
{
#if (NGX_HAVE_INET6)
    struct in6_addr  in6;

    if (ngx_inet6_addr(name->data, name->len, in6.s6_addr) == NGX_OK) {
        return 1;
    }

#endif

    return ngx_inet_addr(name->data, name->len) != INADDR_NONE;
}

#endif


static void
ngx_redis_setup(ngx_redis_conn_t *conn)
{
    ngx_connection_t  *c;

    c = conn->connection;

    c->read->handler = ngx_redis_read_handler;
    c->write->handler = ngx_redis_write_handler;

    /* worker_shutdown_timeout may have expired during connect or handshake */

    c->close = 0;
    c->error = 0;

    conn->state = NGX_REDIS_SETUP;

    if (ngx_redis_setup_ask(conn) != NGX_OK) {
        ngx_redis_drop(conn, "no memory");
        return;
    }

    if (ngx_queue_empty(&conn->sent)) {
        ngx_redis_ready(conn);
        return;
    }

    if (ngx_handle_read_event(c->read, 0) != NGX_OK) {
        ngx_redis_drop(conn, "no memory");
        return;
    }

    ngx_redis_send(conn);
}


static ngx_int_t
ngx_redis_setup_ask(ngx_redis_conn_t *conn)
{
    u_char        db[NGX_INT_T_LEN];
    ngx_uint_t    n;
    ngx_str_t     args[3], *user, *password;
    ngx_redis_t  *redis;

    redis = conn->redis;

    user = conn->node->sentinel ? &redis->sentinel_user : &redis->user;
    password = conn->node->sentinel ? &redis->sentinel_password
                                    : &redis->password;

    if (password->len) {
        ngx_str_set(&args[0], "AUTH");
        args[1] = *user;

        n = user->len ? 2 : 1;
        args[n++] = *password;

        if (ngx_redis_ask(conn, ngx_redis_authenticated, args, n) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (conn->channel) {
        ngx_str_set(&args[0], "SUBSCRIBE");
        args[1] = *conn->channel;

        if (ngx_redis_ask(conn, ngx_redis_subscribed, args, 2) != NGX_OK) {
            return NGX_ERROR;
        }

        if (conn->second_channel == NULL) {
            return NGX_OK;
        }

        /* an error is ignored: if the user may not use the channel, it does
           without */

        args[1] = *conn->second_channel;

        return ngx_redis_ask(conn, NULL, args, 2);
    }

    if (conn->owner) {
        return NGX_OK;
    }

    if (redis->db) {
        ngx_str_set(&args[0], "SELECT");
        args[1].data = db;
        args[1].len = ngx_sprintf(db, "%i", redis->db) - db;

        if (ngx_redis_ask(conn, ngx_redis_selected, args, 2) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    /* HELLO needs no ACL permission, except in Redis 6.0: refused, the version
       is unknown */

    ngx_str_set(&args[0], "HELLO");
    ngx_str_set(&args[1], "2");

    if (ngx_redis_ask(conn, ngx_redis_hello, args, 2) != NGX_OK) {
        return NGX_ERROR;
    }

    if (redis->sentinels.nelts == 0) {
        return NGX_OK;
    }

    ngx_str_set(&args[0], "ROLE");

    return ngx_redis_ask(conn, ngx_redis_role, args, 1);
}


static void
ngx_redis_authenticated(ngx_redis_conn_t *conn, redisReply *reply)
{
    u_char  *p, code[16];

    if (reply->type != REDIS_REPLY_ERROR) {
        return;
    }

    /* the rest of the error may quote the arguments */

    for (p = code; p < code + sizeof(code) - 1; p++) {
        *p = (u_char) reply->str[p - code];

        if (*p < 'A' || *p > 'Z') {
            break;
        }
    }

    *p = '\0';

    ngx_redis_drop(conn, "authentication failed (%s)", code);
}


/* NGX_DECLINED: the command was refused, and the connection was dropped */

static ngx_int_t
ngx_redis_accepted(ngx_redis_conn_t *conn, redisReply *reply,
    const char *what)
{
    u_char  text[128];

    if (reply->type != REDIS_REPLY_ERROR) {
        return NGX_OK;
    }

    (void) ngx_redis_error_text(text, text + sizeof(text), reply);

    ngx_redis_drop(conn, "%s is refused: %s", what, text);

    return NGX_DECLINED;
}


static void
ngx_redis_selected(ngx_redis_conn_t *conn, redisReply *reply)
{
    u_char  what[sizeof("db ") + NGX_INT_T_LEN];

    (void) ngx_sprintf(what, "db %i%Z", conn->redis->db);
    (void) ngx_redis_accepted(conn, reply, (char *) what);
}


static void
ngx_redis_subscribed(ngx_redis_conn_t *conn, redisReply *reply)
{
    (void) ngx_redis_accepted(conn, reply, "SUBSCRIBE");
}


/* the kind of server and its version; 0 if the server does not report it */

static void
ngx_redis_hello(ngx_redis_conn_t *conn, redisReply *reply)
{
    u_char      *p, *last;
    ngx_str_t    server, version;
    ngx_uint_t   major, minor;

    ngx_redis_value(reply, "server", &server);
    ngx_redis_value(reply, "version", &version);

    major = 0;
    minor = 0;
    last = version.data + version.len;

    for (p = version.data; p < last && *p >= '0' && *p <= '9'; p++) {
        major = major * 10 + (*p - '0');
    }

    for (p++; p < last && *p >= '0' && *p <= '9'; p++) {
        minor = minor * 10 + (*p - '0');
    }

    conn->valkey = (server.len == 6
                    && ngx_strncmp(server.data, "valkey", 6) == 0);
    conn->version = ngx_redis_version(major, minor);
}


/* sentinels may report a server that is not the master any more */

static void
ngx_redis_role(ngx_redis_conn_t *conn, redisReply *reply)
{
    ngx_str_t  role;

    if (ngx_redis_accepted(conn, reply, "ROLE") != NGX_OK) {
        return;
    }

    if (ngx_redis_field(reply, 0, &role) != NGX_OK
        || role.len != 6 || ngx_strncmp(role.data, "master", 6) != 0)
    {
        ngx_redis_drop(conn, "it is not a master");
    }
}


void
ngx_redis_ready(ngx_redis_conn_t *conn)
{
    ngx_redis_t  *redis;

    redis = conn->redis;

    ngx_del_timer(&conn->timer);

    conn->state = NGX_REDIS_READY;
    conn->ready_since = ngx_current_msec;

    if (conn->owner) {
        conn->owner->ready(conn);

        if (conn->connection == NULL) {
            return;
        }

    } else if (conn->channel) {
        ngx_redis_first_reply(conn);

        redis->hooks->listening(redis);

    } else {

        if (!conn->waits) {
            ngx_redis_suspect_loss(conn, 1);
        }

        redis->hooks->ready(conn);
    }

    if (ngx_handle_read_event(conn->connection->read, 0) != NGX_OK) {
        ngx_redis_drop(conn, "no event for reading");
        return;
    }

    ngx_redis_flush(conn);
}
