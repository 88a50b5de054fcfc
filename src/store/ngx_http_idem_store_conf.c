
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Directives in the block of a store, whichever backend it has: finds a
 * directive in a table, checks the number of its arguments, calls its slot,
 * and logs errors with a text that describes valid values.  Passwords have
 * slots of their own here; no message contains a password.
 *
 * Called by idempotency_store while the configuration is read; calls the
 * slots of nginx and of the backends.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem.h"
#include "store/ngx_http_idem_store.h"


#define NGX_HTTP_IDEM_PASSWORD_MAX  4096


static ngx_uint_t ngx_http_idem_store_args_valid(ngx_conf_t *cf,
    ngx_command_t *cmd);
static ngx_uint_t ngx_http_idem_store_is_word(ngx_command_t *cmd,
    ngx_str_t *value);
static const char *ngx_http_idem_store_read_password(ngx_conf_t *cf,
    ngx_fd_t fd, ngx_str_t *password);


static ngx_conf_enum_t  ngx_http_idem_store_flags[] = {
    { ngx_string("on"), 1 },
    { ngx_string("off"), 0 },
    { ngx_null_string, 0 }
};


ngx_http_idem_store_command_t *
ngx_http_idem_store_command(ngx_http_idem_store_command_t *table,
    ngx_str_t *name)
{
    ngx_http_idem_store_command_t  *c;

    for (c = table; c->command.name.len; c++) {
        if (ngx_http_idem_same_text(&c->command.name, name)) {
            return c;
        }
    }

    return NULL;
}


char *
ngx_http_idem_store_set(ngx_conf_t *cf, ngx_http_idem_store_command_t *c,
    void *conf)
{
    char           *rv;
    ngx_str_t      *value;
    ngx_command_t  *cmd;

    cmd = &c->command;
    value = cf->args->elts;

    if (!ngx_http_idem_store_args_valid(cf, cmd)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid number of arguments in \"%V\" directive: "
                           "it takes one%s, and is %s", &value[0],
                           (cmd->type & NGX_CONF_1MORE) ? " or more values"
                           : (cmd->type & NGX_CONF_TAKE2) ? " or two values"
                           : " value", c->right);
        return NGX_CONF_ERROR;
    }

    if (value[1].len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"\" in \"%V\" directive: it can't "
                           "be empty; it is %s", &value[0], c->right);
        return NGX_CONF_ERROR;
    }

    rv = ngx_http_idem_store_is_word(cmd, &value[1])
         ? cmd->set(cf, cmd, conf) : "invalid value";

    if (rv == NGX_CONF_OK || rv == NGX_CONF_ERROR) {
        return rv;
    }

    /* slots return "invalid value" or "invalid number" */

    if (ngx_strncmp(rv, "invalid ", 8) == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive: it is "
                           "%s", &value[1], &value[0], c->right);

    } else {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"%V\" directive %s",
                           &value[0], rv);
    }

    return NGX_CONF_ERROR;
}


/* as in ngx_conf_handler() */

static ngx_uint_t
ngx_http_idem_store_args_valid(ngx_conf_t *cf, ngx_command_t *cmd)
{
    ngx_uint_t  n;

    n = cf->args->nelts - 1;

    if (cmd->type & NGX_CONF_ANY) {
        return 1;
    }

    if (n == 0) {
        return 0;
    }

    if (cmd->type & NGX_CONF_1MORE) {
        return 1;
    }

    if (cmd->type & NGX_CONF_FLAG) {
        return n == 1;
    }

    return n < NGX_CONF_MAX_ARGS && (cmd->type & (NGX_CONF_NOARGS << n));
}


/*
 * Checked before the slot is called, since the messages of nginx's flag and
 * enum slots do not name the directive.
 */

static ngx_uint_t
ngx_http_idem_store_is_word(ngx_command_t *cmd, ngx_str_t *value)
{
    ngx_conf_enum_t  *e;

    if (cmd->set == ngx_conf_set_flag_slot) {
        e = ngx_http_idem_store_flags;

    } else if (cmd->set == ngx_conf_set_enum_slot) {
        e = cmd->post;

    } else {
        return 1;
    }

    for ( /* void */ ; e->name.len; e++) {
        if (ngx_http_idem_same_text(&e->name, value)) {
            return 1;
        }
    }

    return 0;
}


char *
ngx_http_idem_store_wrong(ngx_conf_t *cf, ngx_http_idem_store_t *store,
    const char *wrong)
{
    ngx_log_error(NGX_LOG_EMERG, cf->log, 0, "store \"%V\" in %s:%ui %s",
                  &store->name, store->file, store->line, wrong);

    return NGX_CONF_ERROR;
}


char *
ngx_http_idem_store_not_found(ngx_conf_t *cf, ngx_http_idem_store_t *store,
    const char *directive, ngx_str_t *name, u_char *file, ngx_uint_t line)
{
    ngx_uint_t  level;

    level = store->resolver ? NGX_LOG_WARN : NGX_LOG_EMERG;

    ngx_log_error(level, cf->log, 0,
                  "host not found in \"%s %V\" of store \"%V\" in %s:%ui%s",
                  directive, name, &store->name, file, line,
                  store->resolver ? "; workers will look for it"
                      : "; with a \"resolver\" in the http block, workers "
                        "would look for it");

    return store->resolver ? NGX_CONF_OK : NGX_CONF_ERROR;
}


char *
ngx_http_idem_store_password(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_str_t  *value, *password;

    password = (ngx_str_t *) (p + cmd->offset);

    if (password->data) {
        return "is duplicate: there is one password, in \"password\" or in "
               "\"password_file\"";
    }

    value = cf->args->elts;
    *password = value[1];

    return NGX_CONF_OK;
}


/* the master reads the file: workers may lack permission */

char *
ngx_http_idem_store_password_file(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    char  *p = conf;

    char        *rv;
    ngx_fd_t     fd;
    ngx_str_t   *value, *name;
    const char  *wrong;

    rv = ngx_http_idem_store_password(cf, cmd, conf);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    value = cf->args->elts;
    name = &value[1];

    if (ngx_conf_full_name(cf->cycle, name, 1) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    fd = ngx_open_file(name->data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" of \"%V\" failed",
                           name, &value[0]);
        return NGX_CONF_ERROR;
    }

    wrong = ngx_http_idem_store_read_password(cf, fd,
                                      (ngx_str_t *) (p + cmd->offset));

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_ALERT, cf, ngx_errno,
                           ngx_close_file_n " \"%V\" failed", name);
    }

    if (wrong) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid %V \"%V\": %s; it holds the password "
                           "and nothing else", &value[0], name, wrong);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* the password is followed by a NUL */

static const char *
ngx_http_idem_store_read_password(ngx_conf_t *cf, ngx_fd_t fd,
    ngx_str_t *password)
{
    u_char   *p, *last;
    ssize_t   n;

    p = ngx_pnalloc(cf->pool, NGX_HTTP_IDEM_PASSWORD_MAX);
    if (p == NULL) {
        return "there is no memory for it";
    }

    n = ngx_read_fd(fd, p, NGX_HTTP_IDEM_PASSWORD_MAX);

    if (n == -1) {
        return "it can't be read";
    }

    if (n == NGX_HTTP_IDEM_PASSWORD_MAX) {
        return "it is too long";
    }

    last = p + n;

    if (last > p && last[-1] == LF) {
        last--;
    }

    if (last > p && last[-1] == CR) {
        last--;
    }

    if (last == p) {
        return "it is empty";
    }

    if (ngx_strlchr(p, last, LF) || ngx_strlchr(p, last, '\0')) {
        return "it has more than one line, or a NUL";
    }

    *last = '\0';

    password->data = p;
    password->len = last - p;

    return NULL;
}


char *
ngx_http_idem_conf_invalid(ngx_conf_t *cf, ngx_str_t *value,
    const char *right)
{
    ngx_str_t  *args;

    args = cf->args->elts;

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" in \"%V\" directive: %s",
                       value, &args[0], right);

    return NGX_CONF_ERROR;
}
