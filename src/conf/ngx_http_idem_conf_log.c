
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * idempotency_log: destination, level and sampling of events.
 *
 * Called by nginx while it reads the configuration.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


static char *ngx_http_idem_conf_log_destination(ngx_conf_t *cf,
    ngx_http_idem_log_t *log, ngx_str_t *value);
static char *ngx_http_idem_conf_log_syslog(ngx_conf_t *cf,
    ngx_http_idem_log_t *log, ngx_str_t *value);
static char *ngx_http_idem_conf_log_store(ngx_conf_t *cf,
    ngx_http_idem_log_t *log, ngx_str_t *value);
static char *ngx_http_idem_conf_log_option(ngx_conf_t *cf,
    ngx_http_idem_log_t *log, ngx_str_t *value);
static char *ngx_http_idem_conf_sample(ngx_conf_t *cf,
    ngx_http_idem_log_t *log, ngx_str_t *value, ngx_str_t *list);


/*
 * idempotency_log <file> | syslog:... | store:<name> | off [level=...]
 *                 [sample=...] [max=...]
 */

char *
ngx_http_idem_conf_log(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t                  *value;
    ngx_uint_t                  i;
    ngx_http_idem_log_t        *log;
    ngx_http_idem_main_conf_t  *mcf;

    if (ilcf->log != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_http_idem_conf_is(&value[1], "off")) {

        if (cf->args->nelts > 2) {
            return ngx_http_idem_conf_invalid(cf, &value[2],
                                              "\"off\" stands alone");
        }

        ilcf->log = NULL;
        return NGX_CONF_OK;
    }

    log = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_log_t));
    if (log == NULL) {
        return NGX_CONF_ERROR;
    }

    ilcf->log = log;

    log->conf_file = cf->conf_file->file.name.data;
    log->conf_line = cf->conf_file->line;
    log->level = NGX_HTTP_IDEM_LEVEL_INFO;

    for (i = 0; i < NGX_HTTP_IDEM_LEVEL_N; i++) {
        log->sample[i] = NGX_HTTP_IDEM_SAMPLE_ALL;
    }

    if (ngx_http_idem_conf_log_destination(cf, log, &value[1]) != NGX_CONF_OK
        || ngx_http_idem_conf_once(cf, 2) != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    for (i = 2; i < cf->args->nelts; i++) {
        if (ngx_http_idem_conf_log_option(cf, log, &value[i])
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    ngx_queue_insert_tail(&mcf->logs, &log->queue);

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_conf_log_destination(ngx_conf_t *cf, ngx_http_idem_log_t *log,
    ngx_str_t *value)
{
    ngx_int_t  rc;

    if (value->len == 0) {
        return ngx_http_idem_conf_invalid(cf, value, "it is a file, "
                                          "\"syslog:server=<address>\", "
                                          "\"store:<name>\" or \"off\"");
    }

    if (ngx_strncmp(value->data, "syslog:", 7) == 0) {
        return ngx_http_idem_conf_log_syslog(cf, log, value);
    }

    if (ngx_strncmp(value->data, "store:", 6) == 0) {
        return ngx_http_idem_conf_log_store(cf, log, value);
    }

    if (ngx_http_script_variables_count(value)) {
        return ngx_http_idem_conf_invalid(cf, value,
                             "the name of a file has no variables here");
    }

    rc = ngx_http_idem_log_file(cf, log, value);

    if (rc == NGX_BUSY) {
        return ngx_http_idem_conf_invalid(cf, value,
                             "the file is used by another log with a "
                             "buffer of its own");
    }

    return rc == NGX_OK ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/* what nginx says of a parameter does not name the directive */

static char *
ngx_http_idem_conf_log_syslog(ngx_conf_t *cf, ngx_http_idem_log_t *log,
    ngx_str_t *value)
{
    ngx_str_t  text;

    /* nginx writes into the value */

    text.len = value->len;
    text.data = ngx_pstrdup(cf->pool, value);

    log->syslog = ngx_pcalloc(cf->pool, sizeof(ngx_syslog_peer_t));

    if (text.data == NULL || log->syslog == NULL) {
        return NGX_CONF_ERROR;
    }

    if (ngx_syslog_process_conf(cf, log->syslog) != NGX_CONF_OK) {
        return ngx_http_idem_conf_invalid(cf, &text,
                             "it is \"syslog:server=<address>\" and other "
                             "parameters of nginx's \"error_log\", separated "
                             "by commas");
    }

    return NGX_CONF_OK;
}


/*
 * The store may be declared later. ..._init_trail() checks then whether it
 * keeps events.
 */

static char *
ngx_http_idem_conf_log_store(ngx_conf_t *cf, ngx_http_idem_log_t *log,
    ngx_str_t *value)
{
    ngx_str_t               name;
    ngx_http_idem_store_t  *store;

    if (!ngx_http_idem_conf_option(value, "store:", &name)) {
        return ngx_http_idem_conf_invalid(cf, value,
                             "it is \"store:<name>\", the name of an "
                             "\"idempotency_store\"");
    }

    store = ngx_http_idem_conf_get_store(cf, &name);

    if (store == NULL || ngx_http_idem_trail_init(cf, log, store) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_conf_log_option(ngx_conf_t *cf,
    ngx_http_idem_log_t *log, ngx_str_t *value)
{
    ngx_int_t   n;
    ngx_str_t   s;
    ngx_uint_t  i;

    if (ngx_http_idem_conf_option(value, "level=", &s)) {

        for (i = 0; i < NGX_HTTP_IDEM_LEVEL_N; i++) {
            if (ngx_http_idem_same_text(&ngx_http_idem_level_names[i], &s)) {
                log->level = i;
                return NGX_CONF_OK;
            }
        }

        return ngx_http_idem_conf_invalid(cf, value,
                             "the level is \"error\", \"warn\", \"info\" "
                             "or \"debug\"");
    }

    if (ngx_http_idem_conf_option(value, "sample=", &s)) {
        return ngx_http_idem_conf_sample(cf, log, value, &s);
    }

    if (log->send && ngx_http_idem_conf_option(value, "max=", &s)) {
        n = ngx_atoi(s.data, s.len);

        if (n < 1) {
            return ngx_http_idem_conf_invalid(cf, value,
                             "it is how many events stay, as max=100000");
        }

        log->max = n;
        return NGX_CONF_OK;
    }

    return ngx_http_idem_conf_invalid(cf, value,
                             "it is \"level=...\" or \"sample=...\"");
}


/* sample=0.1 is for level info; sample=info:0.1,warn:0.5 names the levels */

static char *
ngx_http_idem_conf_sample(ngx_conf_t *cf,
    ngx_http_idem_log_t *log, ngx_str_t *value, ngx_str_t *list)
{
    u_char      *p, *last, *end;
    ngx_int_t    n;
    ngx_str_t   *name;
    ngx_uint_t   i, level;

    p = list->data;
    last = list->data + list->len;

    while (p < last) {

        end = ngx_strlchr(p, last, ',');
        end = end ? end : last;

        level = NGX_HTTP_IDEM_LEVEL_INFO;

        for (i = 0; i < NGX_HTTP_IDEM_LEVEL_N; i++) {
            name = &ngx_http_idem_level_names[i];

            if ((size_t) (end - p) > name->len && p[name->len] == ':'
                && ngx_strncmp(p, name->data, name->len) == 0)
            {
                level = i;
                p += name->len + 1;
                break;
            }
        }

        n = ngx_atofp(p, end - p, 6);

        if (n == NGX_ERROR || n > NGX_HTTP_IDEM_SAMPLE_ALL) {
            return ngx_http_idem_conf_invalid(cf, value,
                             "a sample is 0 to 1, as sample=0.1, or "
                             "sample=info:0.1,warn:1");
        }

        log->sample[level] = n;

        p = end + 1;
    }

    return NGX_CONF_OK;
}
