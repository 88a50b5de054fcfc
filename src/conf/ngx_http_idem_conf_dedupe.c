
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
    ngx_http_idem_dedupe_t *dedupe, ngx_str_t *value);
static char *ngx_http_idem_conf_dedupe_option(ngx_conf_t *cf,
    ngx_http_idem_dedupe_t *dedupe, ngx_str_t *value);
static char *ngx_http_idem_conf_dedupe_strip(ngx_conf_t *cf,
    ngx_http_idem_dedupe_t *dedupe, ngx_str_t *value, ngx_str_t *list);


static ngx_http_idem_choices_t  ngx_http_idem_when = {
    "it is \"missing\" or \"always\"", NGX_HTTP_IDEM_UNIT_NONE, 0, 0,
    { { ngx_string("missing"), 0 },
      { ngx_string("always"), 1 } }
};


static ngx_http_idem_choices_t  ngx_http_idem_action = {
    "it is \"replay\" or \"reject\"", NGX_HTTP_IDEM_UNIT_NONE, 0, 0,
    { { ngx_string("replay"), 0 },
      { ngx_string("reject"), 1 } }
};


/* idempotency_dedupe body | json:<member>,... window=<time> [when=...] */

char *
ngx_http_idem_conf_dedupe(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t               *value;
    ngx_uint_t               i;
    ngx_http_idem_dedupe_t  *dedupe;

    value = cf->args->elts;

    if (ngx_http_idem_conf_is_off(cf)) {
        return ngx_http_idem_conf_list_off(cf, &ilcf->dedupe, NULL);
    }

    if (ilcf->dedupe == NULL) {
        return "is duplicate";
    }

    dedupe = ngx_http_idem_conf_add(cf, &ilcf->dedupe,
                                    sizeof(ngx_http_idem_dedupe_t));
    if (dedupe == NULL) {
        return NGX_CONF_ERROR;
    }

    if (!ngx_http_idem_conf_is(&value[1], "body")
        && ngx_http_idem_conf_dedupe_members(cf, dedupe, &value[1])
           != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    dedupe->name = value[1];

    if (ngx_http_idem_conf_once(cf, 2) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

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
ngx_http_idem_conf_dedupe_members(ngx_conf_t *cf,
    ngx_http_idem_dedupe_t *dedupe, ngx_str_t *value)
{
    ngx_str_t  list, name;

    ngx_str_null(&list);
    name.len = 0;

    (void) ngx_http_idem_conf_option(value, "json:", &list);

    while (ngx_http_idem_conf_next(&list, &name)) {

        if (name.len == 0) {
            break;
        }

        if (ngx_http_idem_conf_member(cf, value, &name) != NGX_CONF_OK
            || ngx_http_idem_conf_part(cf, &dedupe->members, &name)
               != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
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
    ngx_str_t                 text;
    ngx_http_idem_choice_t   *c;
    ngx_http_idem_choices_t  *choices;

    if (ngx_http_idem_conf_is(value, "normalize=url")) {
        dedupe->url = 1;
        return NGX_CONF_OK;
    }

    if (ngx_http_idem_conf_option(value, "strip=", &text)) {
        return ngx_http_idem_conf_dedupe_strip(cf, dedupe, value, &text);
    }

    c = NULL;
    choices = &ngx_http_idem_positive_times;

    if (ngx_http_idem_conf_option(value, "window=", &text)) {
        c = &dedupe->window;

    } else if (ngx_http_idem_conf_option(value, "linger=", &text)) {
        c = &dedupe->linger;

    } else if (ngx_http_idem_conf_option(value, "when=", &text)) {
        c = &dedupe->always;
        choices = &ngx_http_idem_when;

    } else if (ngx_http_idem_conf_option(value, "action=", &text)) {
        c = &dedupe->reject;
        choices = &ngx_http_idem_action;
    }

    if (c == NULL
        || ngx_http_idem_conf_choose(cf, &text, choices, c) != NGX_OK)
    {
        return ngx_http_idem_conf_invalid(cf, value,
                             "it is \"window=<time>\" or \"linger=<time>\" "
                             "with a time above 0, \"when=missing\" or "
                             "\"when=always\", \"action=replay\" or "
                             "\"action=reject\", \"normalize=url\", or "
                             "\"strip=<argument>,...\"");
    }

    return NGX_CONF_OK;
}


/* strip=utm_*,fbclid */

static char *
ngx_http_idem_conf_dedupe_strip(ngx_conf_t *cf,
    ngx_http_idem_dedupe_t *dedupe, ngx_str_t *value, ngx_str_t *list)
{
    u_char     *last, *star;
    ngx_str_t   name;

    while (ngx_http_idem_conf_next(list, &name)) {
        last = name.data + name.len;
        star = ngx_strlchr(name.data, last, '*');

        if (name.len == 0 || star == name.data
            || (star && star != last - 1)
            || ngx_strlchr(name.data, last, '=')
            || ngx_strlchr(name.data, last, '&'))
        {
            return ngx_http_idem_conf_invalid(cf, value,
                             "it is names of arguments, or how they begin: "
                             "strip=fbclid,utm_*");
        }

        if (ngx_http_idem_conf_part(cf, &dedupe->strip, &name)
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
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
            ilcf->activity_file = cf->conf_file->file.name.data;
            ilcf->activity_line = cf->conf_file->line;
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

    n = ngx_http_idem_conf_option(&value[2], "window=", &s)
        ? ngx_parse_time(&s, 0) : NGX_ERROR;

    if (n == NGX_ERROR || n == 0) {
        return ngx_http_idem_conf_invalid(cf, &value[2],
                             "it is \"window=<time>\", as window=24h");
    }

    activity->window = (ngx_msec_t) n;

    return NGX_CONF_OK;
}


/* called by the merge: the zone may be declared below the line that uses it */

char *
ngx_http_idem_check_activity(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf)
{
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    if (conf->activity && mcf->activity.size == 0) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "invalid value \"on\" in \"idempotency_activity\" "
                      "directive in %s:%ui: it takes a zone as well, in "
                      "http: \"idempotency_activity <zone>:<size> "
                      "window=<time>\"", conf->activity_file,
                      conf->activity_line);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}
