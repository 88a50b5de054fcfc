
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Directives for the sources and the format of keys: idempotency_key and
 * idempotency_key_format; and for what passes with a key: idempotency_methods
 * and idempotency_bypass.
 *
 * Called by nginx while it reads the configuration.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"
#include "canonical/ngx_http_idem_json_pointer.h"


static ngx_uint_t ngx_http_idem_conf_key_hyphen(ngx_str_t *value);
static ngx_uint_t ngx_http_idem_conf_key_of_itself(ngx_str_t *value);
static char *ngx_http_idem_conf_key_headers(ngx_conf_t *cf, ngx_str_t *value,
    ngx_array_t **headers);
static char *ngx_http_idem_conf_key_limits(ngx_conf_t *cf,
    ngx_http_idem_key_format_t *format);
static char *ngx_http_idem_conf_key_option(ngx_conf_t *cf,
    ngx_http_idem_key_format_t *format, ngx_str_t *value);
static ngx_uint_t ngx_http_idem_conf_method_known(ngx_str_t *method);


static ngx_http_idem_choices_t  ngx_http_idem_key_choices = {
    "it is \"token\", \"uuid\", \"uuid4\" or \"string\"",
    NGX_HTTP_IDEM_UNIT_NONE, 0, 0,
    { { ngx_string("token"), NGX_HTTP_IDEM_KEY_TOKEN },
      { ngx_string("uuid"), NGX_HTTP_IDEM_KEY_UUID },
      { ngx_string("uuid4"), NGX_HTTP_IDEM_KEY_UUID4 },
      { ngx_string("string"), NGX_HTTP_IDEM_KEY_STRING } }
};


/* idempotency_key <value> ... */

char *
ngx_http_idem_conf_key(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t                   *value, name;
    ngx_uint_t                   i;
    ngx_http_idem_key_source_t  *source;

    if (ilcf->keys != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ngx_http_idem_conf_warn_useless(cf);

    for (i = 1; i < cf->args->nelts; i++) {

        source = ngx_http_idem_conf_add(cf, &ilcf->keys,
                                        sizeof(ngx_http_idem_key_source_t));
        if (source == NULL) {
            return NGX_CONF_ERROR;
        }

        name = value[i];

        if (ngx_strncmp(name.data, "json:", 5) == 0) {

            if (!ngx_http_idem_conf_option(&name, "json:", &source->member)
                || ngx_http_script_variables_count(&name))
            {
                return ngx_http_idem_conf_invalid(cf, &name,
                             "it is \"json:\" and the name of one member, or "
                             "a JSON Pointer as json:/a/b, without variables");
            }

            if (ngx_http_idem_conf_member(cf, &name, &source->member)
                != NGX_CONF_OK)
            {
                return NGX_CONF_ERROR;
            }

            continue;
        }

        if (ngx_http_idem_conf_key_hyphen(&name)) {
            return ngx_http_idem_conf_invalid(cf, &name,
                             "a variable ends before a hyphen: a header has "
                             "underscores in its name there, as in "
                             "$http_idempotency_key; ${http_a}-b is for what "
                             "follows it");
        }

        if (ngx_http_script_variables_count(&name) == 0) {
            return ngx_http_idem_conf_invalid(cf, &name,
                             "it is the same for every request: it takes a "
                             "variable, as $http_idempotency_key, or "
                             "\"json:<member>\"");
        }

        if (ngx_http_idem_conf_key_of_itself(&name)) {
            return ngx_http_idem_conf_invalid(cf, &name,
                             "it is made of the key; a header is "
                             "$http_<name>, as $http_idempotency_key");
        }

        /*
         * a plain header compiles to a kind whose occurrences can be counted
         */

        if (ngx_http_idem_conf_compile(cf, &name, &source->value)
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }

        if (source->value.kind != NGX_HTTP_IDEM_VALUE_HEADER
            && ngx_http_idem_conf_key_headers(cf, &name, &source->headers)
               != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* whether a value is a variable that is known only once there is a key */

static ngx_uint_t
ngx_http_idem_conf_key_of_itself(ngx_str_t *value)
{
    ngx_str_t   rest, name;
    ngx_uint_t  i;

    static const ngx_str_t  own[] = {
        ngx_string("idempotency_key"), ngx_string("idempotency_key_hash"),
        ngx_string("idempotency_key_json"), ngx_string("idempotency_record")
    };

    rest = *value;

    if (value->data[0] != '$' || !ngx_http_idem_conf_variable(&rest, &name)
        || rest.len > 1 || (rest.len == 1 && rest.data[0] != '}'))
    {
        return 0;
    }

    for (i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        if (name.len == own[i].len
            && ngx_strncasecmp(name.data, own[i].data, name.len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


/* the headers of a value as "$http_a:${http_b}", each as a value of its own */

static char *
ngx_http_idem_conf_key_headers(ngx_conf_t *cf, ngx_str_t *value,
    ngx_array_t **headers)
{
    ngx_str_t               rest, name;
    ngx_http_idem_value_t  *header;

    rest = *value;

    while (ngx_http_idem_conf_variable(&rest, &name)) {

        if (name.len <= 5
            || ngx_strncasecmp(name.data, (u_char *) "http_", 5) != 0)
        {
            continue;
        }

        header = ngx_http_idem_conf_add(cf, headers,
                                        sizeof(ngx_http_idem_value_t));
        if (header == NULL) {
            return NGX_CONF_ERROR;
        }

        header->text.len = name.len + 1;
        header->text.data = ngx_pnalloc(cf->pool, header->text.len);
        if (header->text.data == NULL) {
            return NGX_CONF_ERROR;
        }

        header->text.data[0] = '$';
        ngx_strlow(header->text.data + 1, name.data, name.len);

        name = header->text;

        if (ngx_http_idem_conf_compile(cf, &name, header) != NGX_CONF_OK) {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/*
 * A member name, or a JSON Pointer.  A name that looks like a path is
 * refused, since it would match no member.
 */

char *
ngx_http_idem_conf_member(ngx_conf_t *cf, ngx_str_t *value, ngx_str_t *name)
{
    ngx_uint_t  i;

    if (name->data[0] == '/') {
        return ngx_http_idem_conf_pointer(cf, value, name);
    }

    for (i = 0; i < name->len; i++) {
        if (ngx_strchr("./[,", name->data[i])) {
            return ngx_http_idem_conf_invalid(cf, value,
                             "it is one member of the body itself; what is "
                             "deeper is json:/a/b, a name with such a "
                             "character is json:/a.b, and several are several "
                             "values");
        }
    }

    return NGX_CONF_OK;
}


char *
ngx_http_idem_conf_pointer(ngx_conf_t *cf, ngx_str_t *value,
    ngx_str_t *pointer)
{
    if (!ngx_http_idem_json_pointer_valid(pointer)) {
        return ngx_http_idem_conf_invalid(cf, value,
                             "in a JSON Pointer \"~\" is written \"~0\", and "
                             "a \"/\" in a name \"~1\"");
    }

    return NGX_CONF_OK;
}


/*
 * $http_idempotency-key would be "-key" for all requests without the header
 */

static ngx_uint_t
ngx_http_idem_conf_key_hyphen(ngx_str_t *value)
{
    ngx_str_t  rest, name;

    rest = *value;

    while (ngx_http_idem_conf_variable(&rest, &name)) {

        if (name.len >= 5 && ngx_strncmp(name.data, "http_", 5) == 0
            && name.data[-1] == '$'
            && rest.len > 1 && rest.data[0] == '-'
            && (rest.data[1] | 0x20) >= 'a' && (rest.data[1] | 0x20) <= 'z')
        {
            return 1;
        }
    }

    return 0;
}


/* idempotency_key_format <kind> [min=n] [max=n] [quoted=...] */

char *
ngx_http_idem_conf_key_format(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_int_t                    kind;
    ngx_str_t                   *value;
    ngx_uint_t                   i;
    ngx_http_idem_key_format_t  *format;

    if (ilcf->key_format != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    format = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_key_format_t));
    if (format == NULL) {
        return NGX_CONF_ERROR;
    }

    ilcf->key_format = format;

    format->min = NGX_HTTP_IDEM_KEY_MIN;
    format->max = NGX_HTTP_IDEM_KEY_MAX;

    value = cf->args->elts;

    if (ngx_http_script_variables_count(&value[1])) {
        kind = NGX_HTTP_IDEM_KEY_TOKEN;

        ilcf->key_kind.value = kind;

        if (ngx_http_idem_conf_choose(cf, &value[1],
                                      &ngx_http_idem_key_choices,
                                      &ilcf->key_kind)
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }

    } else {
        kind = ngx_http_idem_conf_enum(ngx_http_idem_key_choices.names,
                                       &value[1]);
    }

    if (kind == NGX_ERROR) {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                                          ngx_http_idem_key_choices.valid);
    }

    format->kind = kind;

    if (ngx_http_idem_conf_once(cf, 2) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    for (i = 2; i < cf->args->nelts; i++) {
        if (ngx_http_idem_conf_key_option(cf, format, &value[i])
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return ngx_http_idem_conf_key_limits(cf, format);
}


/* whether a key can have a length from "min" to "max" */

static char *
ngx_http_idem_conf_key_limits(ngx_conf_t *cf,
    ngx_http_idem_key_format_t *format)
{
    ngx_str_t  *value;

    value = cf->args->elts;

    if (format->min > format->max) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid min=%uz max=%uz in \"%V\" directive: "
                           "no key is that long", format->min, format->max,
                           &value[0]);
        return NGX_CONF_ERROR;
    }

    if ((format->kind == NGX_HTTP_IDEM_KEY_UUID
         || format->kind == NGX_HTTP_IDEM_KEY_UUID4)
        && (format->min > NGX_HTTP_IDEM_KEY_UUID_LEN
            || format->max < NGX_HTTP_IDEM_KEY_UUID_LEN))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid min=%uz max=%uz in \"%V\" directive: "
                           "a UUID has %d characters", format->min,
                           format->max, &value[0], NGX_HTTP_IDEM_KEY_UUID_LEN);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_conf_key_option(ngx_conf_t *cf,
    ngx_http_idem_key_format_t *format, ngx_str_t *value)
{
    size_t     *limit;
    ngx_int_t   n;
    ngx_str_t   s;

    if (ngx_http_idem_conf_is(value, "quoted=optional")) {
        format->quoted_required = 0;
        return NGX_CONF_OK;
    }

    if (ngx_http_idem_conf_is(value, "quoted=required")) {
        format->quoted_required = 1;
        return NGX_CONF_OK;
    }

    limit = ngx_http_idem_conf_option(value, "min=", &s) ? &format->min
            : ngx_http_idem_conf_option(value, "max=", &s) ? &format->max
            : NULL;

    n = limit ? ngx_atoi(s.data, s.len) : NGX_ERROR;

    if (n > 0) {
        *limit = (size_t) n;
        return NGX_CONF_OK;
    }

    return ngx_http_idem_conf_invalid(cf, value,
                         "it is \"min=n\", \"max=n\" with n of 1 or more, "
                         "\"quoted=optional\" or \"quoted=required\"");
}


/* idempotency_bypass <value> ... */

char *
ngx_http_idem_conf_bypass_values(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    char        *rv;
    ngx_str_t   *value;
    ngx_uint_t   i;

    rv = ngx_http_idem_conf_values(cf, cmd, conf);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (value[i].len == 0
            || (value[i].len == 1 && value[i].data[0] == '0')
            || ngx_http_script_variables_count(&value[i]))
        {
            continue;
        }

        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "\"idempotency_bypass\" with \"%V\" lets every "
                           "request pass untouched; to undo that of an "
                           "enclosing level, write \"0\"", &value[i]);
    }

    return NGX_CONF_OK;
}


/* idempotency_methods <method> ... */

char *
ngx_http_idem_conf_method_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char        *rv;
    ngx_str_t   *value;
    ngx_uint_t   i;

    rv = ngx_http_idem_conf_names(cf, cmd, conf);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        if (!ngx_http_idem_conf_method_known(&value[i])) {
            ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                               "\"%V\" is no method that is known, in "
                               "\"idempotency_methods\" directive: if it is "
                               "misspelt, requests are not protected",
                               &value[i]);
        }
    }

    return NGX_CONF_OK;
}


/* the methods of the registry of IANA, those of UPnP, and PURGE */

static ngx_uint_t
ngx_http_idem_conf_method_known(ngx_str_t *method)
{
    size_t       len;
    const char  *p;

    static const char  known[] =
        " ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE GET"
        " HEAD LABEL LINK LOCK M-SEARCH MERGE MKACTIVITY MKCALENDAR MKCOL"
        " MKREDIRECTREF MKWORKSPACE MOVE NOTIFY OPTIONS ORDERPATCH PATCH"
        " POST PROPFIND PROPPATCH PURGE PUT QUERY REBIND REPORT SEARCH"
        " SUBSCRIBE TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UNSUBSCRIBE"
        " UPDATE UPDATEREDIRECTREF VERSION-CONTROL ";

    len = method->len;

    for (p = known; p[1]; p = ngx_strchr(p + 1, ' ')) {
        if (ngx_strncmp(p + 1, method->data, len) == 0 && p[len + 1] == ' ') {
            return 1;
        }
    }

    return 0;
}
