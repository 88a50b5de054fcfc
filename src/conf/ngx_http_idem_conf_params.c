
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Parameters of directives: values with variables, name=value, lists.
 *
 * Called by the handlers of the directives.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


static ngx_uint_t ngx_http_idem_conf_has(ngx_str_t *value,
    const ngx_str_t *names);


static const ngx_str_t  ngx_http_idem_late[] = {
    ngx_string("upstream_http_"), ngx_string("upstream_cookie_"),
    ngx_string("upstream_trailer_"), ngx_string("sent_http_"),
    ngx_string("sent_trailer_"), ngx_null_string
};

static const ngx_str_t  ngx_http_idem_changing[] = {
    ngx_string("request_id"), ngx_string("msec"), ngx_string("connection"),
    ngx_null_string
};


char *
ngx_http_idem_conf_complex(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_complex_value_t *cv)
{
    ngx_http_compile_complex_value_t  ccv;

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = value;
    ccv.complex_value = cv;

    return ngx_http_compile_complex_value(&ccv) == NGX_OK
           ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/* the next variable of a value; 0 after the last one */

ngx_uint_t
ngx_http_idem_conf_variable(ngx_str_t *rest, ngx_str_t *name)
{
    u_char  *p, *last;

    last = rest->data + rest->len;
    p = ngx_strlchr(rest->data, last, '$');

    if (p == NULL) {
        return 0;
    }

    p++;

    if (p < last && *p == '{') {
        p++;
    }

    for (name->data = p; p < last; p++) {
        if (*p != '_' && !(*p >= '0' && *p <= '9')
            && !((*p | 0x20) >= 'a' && (*p | 0x20) <= 'z'))
        {
            break;
        }
    }

    name->len = p - name->data;

    rest->data = p;
    rest->len = last - p;

    return 1;
}


/* whether a parameter is "<name>=<text>"; "name" ends with "=" */

ngx_uint_t
ngx_http_idem_conf_option(ngx_str_t *value, const char *name, ngx_str_t *text)
{
    size_t  len;

    len = ngx_strlen(name);

    if (value->len <= len || ngx_strncmp(value->data, name, len) != 0) {
        return 0;
    }

    text->data = value->data + len;
    text->len = value->len - len;

    return 1;
}


/*
 * Warns of values that can't tell requests apart, or retries together: those
 * of a response are empty when a request begins, and others are new in each
 * request.
 */

void
ngx_http_idem_conf_warn_useless(ngx_conf_t *cf)
{
    ngx_str_t   *value;
    ngx_uint_t   i;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_http_idem_conf_has(&value[i], ngx_http_idem_late)) {
            ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                               "\"%V\" in \"%V\" directive belongs to a "
                               "response, and is empty when a request begins; "
                               "take a header over that \"auth_request\" got "
                               "with \"auth_request_set\"", &value[i],
                               &value[0]);
        }

        if (ngx_http_idem_conf_has(&value[i], ngx_http_idem_changing)) {
            ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                               "\"%V\" in \"%V\" directive is new in each "
                               "request, and a retry has another one; the "
                               "header X-Request-Id of a client is "
                               "$http_x_request_id", &value[i], &value[0]);
        }
    }
}


/* whether a value has one of these variables; "_" at the end: any of them */

static ngx_uint_t
ngx_http_idem_conf_has(ngx_str_t *value, const ngx_str_t *names)
{
    ngx_str_t         rest, variable;
    const ngx_str_t  *name;

    rest = *value;

    while (ngx_http_idem_conf_variable(&rest, &variable)) {

        for (name = names; name->len; name++) {

            if (variable.len >= name->len
                && ngx_strncasecmp(variable.data, name->data, name->len) == 0
                && (variable.len == name->len
                    || name->data[name->len - 1] == '_'))
            {
                return 1;
            }
        }
    }

    return 0;
}


/* "500" alone replaces the default: each retry of a request that succeeded
   runs again */

char *
ngx_http_idem_conf_warn_statuses(ngx_conf_t *cf,
    ngx_http_idem_statuses_t *kept)
{
    ngx_uint_t  status;

    if (kept == NULL) {
        return NGX_CONF_ERROR;
    }

    for (status = 200; status < 300; status++) {
        if (ngx_http_idem_status_kept(kept, status)) {
            return NGX_CONF_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                       "\"idempotency_keep_status\" keeps no 2xx: a retry of "
                       "a request that succeeded runs again; the list "
                       "replaces the default, which has 2xx, 3xx and 4xx "
                       "less some");

    return NGX_CONF_OK;
}


/* "off" alone, where a list would be inherited */

ngx_uint_t
ngx_http_idem_conf_is_off(ngx_conf_t *cf)
{
    ngx_str_t  *value;

    value = cf->args->elts;

    return cf->args->nelts == 2 && ngx_http_idem_conf_is(&value[1], "off");
}


/* the only argument of a directive that adds to a list by two or more */

char *
ngx_http_idem_conf_list_off(ngx_conf_t *cf, ngx_array_t **list,
    const char *usage)
{
    ngx_str_t  *value;

    value = cf->args->elts;

    if (*list == NULL
        || (*list != NGX_CONF_UNSET_PTR && ngx_http_idem_conf_is_off(cf)))
    {
        return "is duplicate";
    }

    if (!ngx_http_idem_conf_is_off(cf)) {
        return ngx_http_idem_conf_invalid(cf, &value[1], usage);
    }

    *list = NULL;

    return NGX_CONF_OK;
}


/*
 * Refuses a parameter that is given twice, as in "min=1 min=2".  Lists that
 * are separated by commas may be given in parts.
 */

char *
ngx_http_idem_conf_once(ngx_conf_t *cf, ngx_uint_t first)
{
    u_char      *p;
    size_t       len;
    ngx_str_t   *value, *list;
    ngx_uint_t   i, k;

    static ngx_str_t  lists[] = {
        ngx_string("exclude"), ngx_string("include"), ngx_string("strip"),
        ngx_null_string
    };

    value = cf->args->elts;

    for (i = first + 1; i < cf->args->nelts; i++) {

        p = ngx_strlchr(value[i].data, value[i].data + value[i].len, '=');

        if (p == NULL) {
            continue;
        }

        len = p - value[i].data;

        for (list = lists; list->len; list++) {
            if (list->len == len
                && ngx_strncmp(list->data, value[i].data, len) == 0)
            {
                break;
            }
        }

        if (list->len) {
            continue;
        }

        for (k = first; k < i; k++) {
            if (value[k].len > len
                && ngx_strncmp(value[k].data, value[i].data, len + 1) == 0)
            {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "duplicate parameter \"%V\" in \"%V\" "
                                   "directive", &value[i], &value[0]);
                return NGX_CONF_ERROR;
            }
        }
    }

    return NGX_CONF_OK;
}


/* the next name of a list that is separated by commas; 0 after the last one */

ngx_uint_t
ngx_http_idem_conf_next(ngx_str_t *list, ngx_str_t *name)
{
    u_char  *p, *last;

    if (list->data == NULL) {
        return 0;
    }

    last = list->data + list->len;
    p = ngx_strlchr(list->data, last, ',');

    name->data = list->data;
    name->len = (p ? p : last) - list->data;

    list->data = p ? p + 1 : NULL;
    list->len = p ? last - list->data : 0;

    return 1;
}


/* adds a zeroed element to an array, which may be NULL or unset */

void *
ngx_http_idem_conf_add(ngx_conf_t *cf, ngx_array_t **array, size_t size)
{
    void  *element;

    if (*array == NULL || *array == NGX_CONF_UNSET_PTR) {
        *array = ngx_array_create(cf->pool, 4, size);
        if (*array == NULL) {
            return NULL;
        }
    }

    element = ngx_array_push(*array);

    if (element) {
        ngx_memzero(element, size);
    }

    return element;
}


char *
ngx_http_idem_conf_part(ngx_conf_t *cf, ngx_array_t **names, ngx_str_t *name)
{
    ngx_str_t  *s;

    s = ngx_http_idem_conf_add(cf, names, sizeof(ngx_str_t));
    if (s == NULL) {
        return NGX_CONF_ERROR;
    }

    *s = *name;

    return NGX_CONF_OK;
}


/* a list of names and JSON Pointers that is separated by commas */

char *
ngx_http_idem_conf_parts(ngx_conf_t *cf, ngx_array_t **names,
    ngx_str_t *value, ngx_str_t *list)
{
    ngx_str_t  name;

    while (ngx_http_idem_conf_next(list, &name)) {

        if (name.len == 0) {
            return ngx_http_idem_conf_invalid(cf, value, "a name is empty");
        }

        if ((name.data[0] == '/'
             && ngx_http_idem_conf_pointer(cf, value, &name) != NGX_CONF_OK)
            || ngx_http_idem_conf_part(cf, names, &name) != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}
