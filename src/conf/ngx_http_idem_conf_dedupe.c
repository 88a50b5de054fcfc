
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Directives for derived keys and adaptive windows: idempotency_dedupe and
 * idempotency_activity.
 *
 * Called by nginx while it reads the configuration, and by the merge.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


static char *ngx_http_idem_conf_dedupe_members(ngx_conf_t *cf,
    ngx_str_t *value);
static char *ngx_http_idem_conf_dedupe_option(ngx_conf_t *cf,
    ngx_http_idem_dedupe_t *dedupe, ngx_str_t *value);
static char *ngx_http_idem_conf_dedupe_strip(ngx_conf_t *cf,
    ngx_http_idem_dedupe_t *dedupe, ngx_str_t *value);
static char *ngx_http_idem_conf_dedupe_time(ngx_conf_t *cf,
    ngx_str_t *value, const char *name, ngx_http_idem_choice_t *t);


/* idempotency_dedupe body | json:<member>,... window=<time> [when=...] */

char *
ngx_http_idem_conf_dedupe(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t               *value;
    ngx_uint_t               i;
    ngx_http_idem_dedupe_t  *dedupe;

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_http_idem_conf_is(&value[1], "off"))
    {
        if (ilcf->dedupe != NGX_CONF_UNSET_PTR) {
            return "is duplicate";
        }

        ilcf->dedupe = NULL;
        return NGX_CONF_OK;
    }

    if (ilcf->dedupe == NULL) {
        return "is duplicate";
    }

    if (ilcf->dedupe == NGX_CONF_UNSET_PTR) {
        ilcf->dedupe = ngx_array_create(cf->pool, 2,
                                      sizeof(ngx_http_idem_dedupe_t));
        if (ilcf->dedupe == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    dedupe = ngx_array_push(ilcf->dedupe);
    if (dedupe == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(dedupe, sizeof(ngx_http_idem_dedupe_t));

    if (!ngx_http_idem_conf_is(&value[1], "body")
        && ngx_http_idem_conf_dedupe_members(cf, &value[1])
           != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    dedupe->name = value[1];

    for (i = 2; i < cf->args->nelts; i++) {
        if (ngx_http_idem_conf_dedupe_option(cf, dedupe, &value[i])
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    if (dedupe->window.value == 0 && dedupe->window.complex == NULL) {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it takes \"window=<time>\" as well, as "
                             "window=100ms");
    }

    if ((dedupe->url || dedupe->strip)
        && ngx_http_idem_conf_is(&value[1], "body"))
    {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "\"normalize=url\" and \"strip=\" are of members "
                             "that are URLs: json:url");
    }

    if (dedupe->strip && !dedupe->url) {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "\"strip=\" takes \"normalize=url\" as well");
    }

    return NGX_CONF_OK;
}


/* json:<member or pointer>,... */

static char *
ngx_http_idem_conf_dedupe_members(ngx_conf_t *cf, ngx_str_t *value)
{
    u_char     *p, *last;
    ngx_str_t   name;

    last = value->data + value->len;
    p = value->data + sizeof("json:") - 1;

    name.len = 0;

    if (value->len > 5 && ngx_strncmp(value->data, "json:", 5) == 0) {

        while (ngx_http_idem_conf_next(&p, last, &name)) {

            if (name.len == 0) {
                break;
            }

            if (ngx_http_idem_conf_member(cf, value, &name)
                != NGX_CONF_OK)
            {
                return NGX_CONF_ERROR;
            }
        }
    }

    if (name.len == 0) {
        return ngx_http_idem_conf_invalid(cf, value,
                             "it is \"body\", or \"json:\" and the names of "
                             "members or JSON Pointers: json:url or "
                             "json:/from/id,/to/id; or \"off\"");
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_conf_dedupe_option(ngx_conf_t *cf,
    ngx_http_idem_dedupe_t *dedupe, ngx_str_t *value)
{
    if (ngx_http_idem_conf_is(value, "when=missing")) {
        dedupe->always = 0;
        return NGX_CONF_OK;
    }

    if (ngx_http_idem_conf_is(value, "when=always")) {
        dedupe->always = 1;
        return NGX_CONF_OK;
    }

    if (ngx_http_idem_conf_is(value, "action=replay")) {
        dedupe->reject = 0;
        return NGX_CONF_OK;
    }

    if (ngx_http_idem_conf_is(value, "action=reject")) {
        dedupe->reject = 1;
        return NGX_CONF_OK;
    }

    if (ngx_http_idem_conf_is(value, "normalize=url")) {
        dedupe->url = 1;
        return NGX_CONF_OK;
    }

    if (value->len > 6 && ngx_strncmp(value->data, "strip=", 6) == 0) {
        return ngx_http_idem_conf_dedupe_strip(cf, dedupe, value);
    }

    if (ngx_http_idem_conf_dedupe_time(cf, value, "window=",
                                       &dedupe->window)
        == NGX_CONF_OK)
    {
        return NGX_CONF_OK;
    }

    if (ngx_http_idem_conf_dedupe_time(cf, value, "linger=",
                                       &dedupe->linger)
        == NGX_CONF_OK)
    {
        return NGX_CONF_OK;
    }

    return ngx_http_idem_conf_invalid(cf, value,
                             "it is \"window=<time>\" or \"linger=<time>\" "
                             "with a time above 0, \"when=missing\" or "
                             "\"when=always\", \"action=replay\" or "
                             "\"action=reject\", \"normalize=url\", or "
                             "\"strip=<argument>,...\"");
}


/* strip=utm_*,fbclid */

static char *
ngx_http_idem_conf_dedupe_strip(ngx_conf_t *cf,
    ngx_http_idem_dedupe_t *dedupe, ngx_str_t *value)
{
    u_char     *p, *last, *star;
    ngx_str_t  *name;

    if (dedupe->strip == NULL) {
        dedupe->strip = ngx_array_create(cf->pool, 4, sizeof(ngx_str_t));
        if (dedupe->strip == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    last = value->data + value->len;

    for (p = value->data + sizeof("strip=") - 1; p <= last; p++) {

        name = ngx_array_push(dedupe->strip);
        if (name == NULL) {
            return NGX_CONF_ERROR;
        }

        for (name->data = p; p < last && *p != ','; p++) { /* void */ }

        name->len = p - name->data;

        star = ngx_strlchr(name->data, p, '*');

        if (name->len == 0 || star == name->data
            || (star && star != p - 1)
            || ngx_strlchr(name->data, p, '=')
            || ngx_strlchr(name->data, p, '&'))
        {
            return ngx_http_idem_conf_invalid(cf, value,
                             "it is names of arguments, or how they begin: "
                             "strip=fbclid,utm_*");
        }
    }

    return NGX_CONF_OK;
}


/* NGX_CONF_ERROR without a message if "value" is not such a time */

static char *
ngx_http_idem_conf_dedupe_time(ngx_conf_t *cf, ngx_str_t *value,
    const char *name, ngx_http_idem_choice_t *t)
{
    size_t     len;
    ngx_str_t  s;

    len = ngx_strlen(name);

    if (value->len <= len || ngx_strncmp(value->data, name, len) != 0) {
        return NGX_CONF_ERROR;
    }

    s.data = value->data + len;
    s.len = value->len - len;

    t->choices = &ngx_http_idem_positive_times;

    return ngx_http_idem_conf_choose(cf, &s, t) == NGX_OK ? NGX_CONF_OK
                                                          : NGX_CONF_ERROR;
}


ngx_int_t
ngx_http_idem_number_dedupe(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf)
{
    u_char                  *p, *last;
    ngx_int_t                n;
    ngx_str_t                name;
    ngx_uint_t               i, *index;
    ngx_array_t             *rules;
    ngx_http_idem_dedupe_t  *dedupe;

    if (conf->dedupe == NULL) {
        return NGX_OK;
    }

    rules = ngx_array_create(cf->pool, conf->dedupe->nelts,
                             sizeof(ngx_http_idem_dedupe_t));
    if (rules == NULL) {
        return NGX_ERROR;
    }

    dedupe = ngx_array_push_n(rules, conf->dedupe->nelts);
    if (dedupe == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(dedupe, conf->dedupe->elts,
               rules->nelts * sizeof(ngx_http_idem_dedupe_t));

    conf->dedupe = rules;

    for (i = 0; i < rules->nelts; i++) {

        if (ngx_http_idem_conf_is(&dedupe[i].name, "body")) {
            continue;
        }

        dedupe[i].members = ngx_array_create(cf->pool, 2, sizeof(ngx_uint_t));
        if (dedupe[i].members == NULL) {
            return NGX_ERROR;
        }

        p = dedupe[i].name.data + sizeof("json:") - 1;
        last = dedupe[i].name.data + dedupe[i].name.len;

        while (p < last) {
            name.data = p;
            p = ngx_strlchr(p, last, ',');
            p = p ? p : last;
            name.len = p++ - name.data;

            n = ngx_http_idem_want(conf->wanted, &name);
            index = ngx_array_push(dedupe[i].members);

            if (n == NGX_ERROR || index == NULL) {
                return NGX_ERROR;
            }

            *index = n;
        }
    }

    return NGX_OK;
}


/* idempotency_activity <zone>:<size> window=<time>, or on | off */

char *
ngx_http_idem_conf_activity(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_int_t                       n;
    ngx_str_t                      *value, s;
    ngx_http_idem_main_conf_t      *mcf;
    ngx_http_idem_activity_conf_t  *activity;

    value = cf->args->elts;

    if (cf->args->nelts == 2) {

        if (ilcf->activity != NGX_CONF_UNSET) {
            return "is duplicate";
        }

        if (ngx_http_idem_conf_is(&value[1], "on")) {
            ilcf->activity = 1;
            return NGX_CONF_OK;
        }

        if (ngx_http_idem_conf_is(&value[1], "off")) {
            ilcf->activity = 0;
            return NGX_CONF_OK;
        }

        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it is \"on\" or \"off\"; or, in http, "
                             "\"<zone>:<size> window=<time>\"");
    }

    if (!(cf->cmd_type & NGX_HTTP_MAIN_CONF)) {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "a zone is declared in http; here it is \"on\" "
                             "or \"off\"");
    }

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    activity = &mcf->activity;

    if (activity->size) {
        return "is duplicate";
    }

    s.data = ngx_strlchr(value[1].data, value[1].data + value[1].len, ':');

    if (s.data == NULL || s.data == value[1].data) {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it is <zone>:<size>, as activity:1m");
    }

    activity->zone.data = value[1].data;
    activity->zone.len = s.data - value[1].data;

    s.data++;
    s.len = value[1].data + value[1].len - s.data;

    n = ngx_parse_size(&s);

    if (n == NGX_ERROR || n < (ngx_int_t) (8 * ngx_pagesize)) {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it is <zone>:<size>, as activity:1m, of 32k at "
                             "least");
    }

    activity->size = (size_t) n;

    s.data = value[2].data + 7;
    s.len = value[2].len - 7;

    n = (value[2].len > 7 && ngx_strncmp(value[2].data, "window=", 7) == 0)
        ? ngx_parse_time(&s, 0) : NGX_ERROR;

    if (n == NGX_ERROR || n == 0) {
        return ngx_http_idem_conf_invalid(cf, &value[2],
                             "it is \"window=<time>\", as window=24h");
    }

    activity->window = (ngx_msec_t) n;

    return NGX_CONF_OK;
}


char *
ngx_http_idem_check_activity(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf)
{
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    if (conf->activity && mcf->activity.size == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"idempotency_activity on\" takes a zone as "
                           "well, in http: \"idempotency_activity "
                           "<zone>:<size> window=<time>\"");
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}
