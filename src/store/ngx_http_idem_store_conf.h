
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Directives in the block of a store: tables of nginx's own ngx_command_t,
 * with nginx's own slots, and for the error messages a text that describes
 * valid values.
 *
 * ..._store.h includes this header; do not include it directly.
 */


#ifndef _NGX_HTTP_IDEM_STORE_CONF_H_INCLUDED_
#define _NGX_HTTP_IDEM_STORE_CONF_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/* a table ends with { ngx_null_command, NULL } */

typedef struct {
    ngx_command_t    command;            /* .type: number of arguments only */
    const char      *right;              /* valid values; completes "it is
                                            ..." */
} ngx_http_idem_store_command_t;


/* valid values that several directives share */

#define NGX_HTTP_IDEM_RIGHT_FLAG  "\"on\" or \"off\""
#define NGX_HTTP_IDEM_RIGHT_TIME                                              \
    "a time from 1ms to 1h, for example 1s or 500ms"

#define NGX_HTTP_IDEM_HOUR        3600000


/* finds a directive in a table, or returns NULL */
ngx_http_idem_store_command_t *ngx_http_idem_store_command(
    ngx_http_idem_store_command_t *table, ngx_str_t *name);

/* sets the field of "conf" from cf->args; logs every failure */
char *ngx_http_idem_store_set(ngx_conf_t *cf,
    ngx_http_idem_store_command_t *c, void *conf);

/* logs an invalid argument, in any directive; returns NGX_CONF_ERROR */
char *ngx_http_idem_conf_invalid(ngx_conf_t *cf, ngx_str_t *value,
    const char *right);

/* logs an error of the block as a whole; returns NGX_CONF_ERROR */
char *ngx_http_idem_store_wrong(ngx_conf_t *cf, ngx_http_idem_store_t *store,
    const char *wrong);

/* A host name was not found.  Not an error with a resolver: workers retry. */
char *ngx_http_idem_store_not_found(ngx_conf_t *cf,
    ngx_http_idem_store_t *store, const char *directive, ngx_str_t *name,
    u_char *file, ngx_uint_t line);

/*
 * Whether an address has a user and a password in it, as in a URL: such a value
 * must not be in a message.  The path of a unix socket may have any character.
 */
#define ngx_http_idem_store_has_secret(value)                                 \
    (ngx_strlchr((value)->data, (value)->data + (value)->len, '@') != NULL    \
     && ngx_strncmp((value)->data, "unix:", 5) != 0)

#define NGX_HTTP_IDEM_STORE_SECRET                                            \
    "a \"%V\" has no user and no password in it: write them as \"user\" and "  \
    "\"password\""

/* whether a certificate or a key is given as it is, not by a file */
#define ngx_http_idem_store_is_data(value)                                    \
    ((value)->len >= 5 && ngx_strncmp((value)->data, "data:", 5) == 0)

/* slots for a ngx_str_t: the password, or the name of a file with it */
char *ngx_http_idem_store_password(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_store_password_file(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


/*
 * The handler in an ngx_conf_num_bounds_t, for numbers and times.  The
 * message of nginx's own ngx_conf_check_num_bounds() names neither the
 * directive nor the value.
 */

static ngx_inline char *
ngx_http_idem_store_bounds(ngx_conf_t *cf, void *post, void *data)
{
    ngx_conf_num_bounds_t  *bounds = post;
    ngx_int_t              *n = data;

    return (*n < bounds->low || *n > bounds->high) ? "invalid value"
                                                   : NGX_CONF_OK;
}


#endif /* _NGX_HTTP_IDEM_STORE_CONF_H_INCLUDED_ */
