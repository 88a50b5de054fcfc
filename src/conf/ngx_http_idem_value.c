
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Values of directives that may differ by request.
 *
 * Most values are one variable, a request header or $host.  Such a value is
 * read directly from the request, without a script and without an indexed
 * variable, which nginx would allocate for every request of the server.  If a
 * variable of the same name is defined elsewhere, as by "set $http_x_api_key
 * ...", that variable is used.
 *
 * Values are compiled while the configuration is read, and evaluated by all
 * rooms that need them.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


static ngx_int_t ngx_http_idem_value_header(ngx_conf_t *cf,
    ngx_str_t *text, ngx_str_t *header);
static ngx_int_t ngx_http_idem_values_resolve(ngx_conf_t *cf,
    ngx_array_t *values);
static ngx_int_t ngx_http_idem_value_resolve(ngx_conf_t *cf,
    ngx_http_idem_value_t *value);
static ngx_http_variable_t *ngx_http_idem_value_defined(ngx_conf_t *cf,
    ngx_str_t *header);
static ngx_int_t ngx_http_idem_value_joined(ngx_http_request_t *r,
    ngx_str_t *header, ngx_str_t *s);
static ngx_uint_t ngx_http_idem_is_header(ngx_table_elt_t *h,
    ngx_str_t *name);


char *
ngx_http_idem_conf_compile(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_idem_value_t *value)
{
    ngx_memzero(value, sizeof(ngx_http_idem_value_t));

    value->text = *text;

    switch (ngx_http_idem_value_header(cf, text, &value->header)) {

    case NGX_OK:
        /* ..._values_init() compiles it if the variable is redefined */
        value->kind = NGX_HTTP_IDEM_VALUE_HEADER;
        return NGX_CONF_OK;

    case NGX_ERROR:
        return NGX_CONF_ERROR;

    default:
        break;
    }

    if (ngx_http_idem_conf_is(text, "$host")) {
        value->kind = NGX_HTTP_IDEM_VALUE_HOST;
        return NGX_CONF_OK;
    }

#if (NGX_HTTP_SSL)

    if (ngx_http_idem_conf_is(text, "$ssl_client_fingerprint")) {
        value->kind = NGX_HTTP_IDEM_VALUE_CERTIFICATE;
        return NGX_CONF_OK;
    }

#endif

    return ngx_http_idem_conf_complex(cf, text, &value->script);
}


ngx_http_idem_value_t *
ngx_http_idem_conf_compiled(ngx_conf_t *cf, ngx_str_t *text)
{
    ngx_http_idem_value_t  *value;

    value = ngx_palloc(cf->pool, sizeof(ngx_http_idem_value_t));

    return value && ngx_http_idem_conf_compile(cf, text, value) == NGX_CONF_OK
           ? value : NULL;
}


char *
ngx_http_idem_conf_compile_all(ngx_conf_t *cf, ngx_str_t *text, ngx_uint_t n,
    ngx_array_t **values)
{
    ngx_uint_t              i;
    ngx_http_idem_value_t  *value;

    for (i = 0; i < n; i++) {
        value = ngx_http_idem_conf_add(cf, values,
                                       sizeof(ngx_http_idem_value_t));

        if (value == NULL
            || ngx_http_idem_conf_compile(cf, &text[i], value) != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* NGX_DECLINED if the text is more, or other, than one header */

static ngx_int_t
ngx_http_idem_value_header(ngx_conf_t *cf, ngx_str_t *text, ngx_str_t *header)
{
    size_t   len;
    u_char  *p, ch;

    if (text->len <= 6
        || ngx_strncasecmp(text->data, (u_char *) "$http_", 6) != 0)
    {
        return NGX_DECLINED;
    }

    p = text->data + 6;
    len = text->len - 6;

    header->data = ngx_pnalloc(cf->pool, len);
    if (header->data == NULL) {
        return NGX_ERROR;
    }

    for (header->len = 0; header->len < len; header->len++) {
        ch = ngx_tolower(p[header->len]);

        if (!((ch >= 'a' && ch <= 'z') || (ch >= '0' && ch <= '9')
              || ch == '_'))
        {
            ngx_str_null(header);
            return NGX_DECLINED;
        }

        header->data[header->len] = ch;
    }

    return NGX_OK;
}


/*
 * Called after the whole configuration was read, when all variables are
 * defined.
 */

ngx_int_t
ngx_http_idem_values_init(ngx_conf_t *cf)
{
    ngx_uint_t                    i, k;
    ngx_http_idem_loc_conf_t    **conf;
    ngx_http_idem_main_conf_t    *mcf;
    ngx_http_idem_key_source_t   *source;

    static ngx_str_t  request_id = ngx_string("request_id");
    static ngx_str_t  request_body = ngx_string("request_body");

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    conf = mcf->locations.elts;

    for (i = 0; i < mcf->locations.nelts; i++) {

        if (ngx_http_idem_values_resolve(cf, conf[i]->keys) != NGX_OK
            || ngx_http_idem_values_resolve(cf, conf[i]->bypass) != NGX_OK
            || ngx_http_idem_values_resolve(cf, conf[i]->identity) != NGX_OK
            || ngx_http_idem_values_resolve(cf, conf[i]->log_fields) != NGX_OK
            || ngx_http_idem_value_resolve(cf, conf[i]->scope) != NGX_OK
            || ngx_http_idem_value_resolve(cf, conf[i]->documentation)
               != NGX_OK
            || ngx_http_idem_value_resolve(cf, conf[i]->group_value) != NGX_OK
            || ngx_http_idem_value_resolve(cf, conf[i]->required) != NGX_OK
            || ngx_http_idem_value_resolve(cf, conf[i]->dry_run) != NGX_OK
            || ngx_http_idem_value_resolve(cf, conf[i]->tenant) != NGX_OK
            || ngx_http_idem_value_resolve(cf, conf[i]->actor) != NGX_OK)
        {
            return NGX_ERROR;
        }

        source = conf[i]->keys ? conf[i]->keys->elts : NULL;

        for (k = 0; source && k < conf[i]->keys->nelts; k++) {
            if (ngx_http_idem_values_resolve(cf, source[k].headers) != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    /*
     * njs and perl look up variables by name; an indexed $request_body shows
     * that it was evaluated.  Without an index, $request_id would differ each
     * time.
     */

    mcf->request_body = ngx_http_get_variable_index(cf, &request_body);
    mcf->request_id = ngx_http_get_variable_index(cf, &request_id);

    return (mcf->request_body == NGX_ERROR || mcf->request_id == NGX_ERROR)
           ? NGX_ERROR : NGX_OK;
}


/* the elements have a value as their first member */

static ngx_int_t
ngx_http_idem_values_resolve(ngx_conf_t *cf, ngx_array_t *values)
{
    u_char      *p;
    ngx_uint_t   i;

    if (values == NULL) {
        return NGX_OK;
    }

    p = values->elts;

    for (i = 0; i < values->nelts; i++) {
        if (ngx_http_idem_value_resolve(cf,
                           (ngx_http_idem_value_t *) (p + i * values->size))
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_value_resolve(ngx_conf_t *cf, ngx_http_idem_value_t *value)
{
    ngx_http_variable_t  *v;

    if (value == NULL || value->kind != NGX_HTTP_IDEM_VALUE_HEADER) {
        return NGX_OK;
    }

    v = ngx_http_idem_value_defined(cf, &value->header);

    if (v == NULL) {
        return NGX_OK;
    }

    value->kind = NGX_HTTP_IDEM_VALUE_SCRIPT;

    if (v->flags & NGX_HTTP_VAR_CHANGEABLE) {
        /* defined by "set", "map" or the like, so not a header */
        ngx_str_null(&value->header);
    }

    return ngx_http_idem_conf_complex(cf, &value->text, &value->script)
           == NGX_CONF_OK ? NGX_OK : NGX_ERROR;
}


/*
 * a variable defined by nginx ($http_cookie joins headers) or by the operator
 */

static ngx_http_variable_t *
ngx_http_idem_value_defined(ngx_conf_t *cf, ngx_str_t *header)
{
    ngx_uint_t                  i;
    ngx_hash_key_t             *key;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    key = cmcf->variables_keys->keys.elts;

    for (i = 0; i < cmcf->variables_keys->keys.nelts; i++) {
        if (key[i].key.len == header->len + 5
            && ngx_strncmp(key[i].key.data, "http_", 5) == 0
            && ngx_strncmp(key[i].key.data + 5, header->data, header->len)
               == 0)
        {
            return key[i].value;
        }
    }

    return NULL;
}


ngx_int_t
ngx_http_idem_value(ngx_http_request_t *r,
    ngx_http_idem_value_t *value, ngx_str_t *s)
{
    ngx_uint_t                 n;
    ngx_table_elt_t           *h;
    ngx_http_core_srv_conf_t  *cscf;

    switch (value->kind) {

    case NGX_HTTP_IDEM_VALUE_HEADER:

        h = ngx_http_idem_request_header(r, &value->header, &n);

        if (n > 1) {
            return ngx_http_idem_value_joined(r, &value->header, s);
        }

        if (n) {
            *s = h->value;

        } else {
            ngx_str_null(s);
        }

        return NGX_OK;

    case NGX_HTTP_IDEM_VALUE_HOST:

        *s = r->headers_in.server;

        if (s->len == 0) {
            cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);
            *s = cscf->server_name;
        }

        return NGX_OK;

#if (NGX_HTTP_SSL)

    case NGX_HTTP_IDEM_VALUE_CERTIFICATE:

        ngx_str_null(s);

        return r->connection->ssl
               ? ngx_ssl_get_fingerprint(r->connection, r->pool, s) : NGX_OK;

#endif

    default:
        return ngx_http_complex_value(r, &value->script, s);
    }
}


/*
 * Evaluates a value before the body is read.  Returns NGX_AGAIN if the value
 * depends on the body, even indirectly: $request_body was evaluated.  The
 * cached variables are then restored, so that they are evaluated again once
 * the body was read.
 */

ngx_int_t
ngx_http_idem_value_early(ngx_http_request_t *r,
    ngx_http_idem_value_t *value, ngx_str_t *s)
{
    size_t                      size;
    ngx_http_core_main_conf_t  *cmcf;
    ngx_http_variable_value_t  *v, *before;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    if (value->kind != NGX_HTTP_IDEM_VALUE_SCRIPT
        || value->script.lengths == NULL || r->request_body)
    {
        return ngx_http_idem_value(r, value, s);
    }

    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);

    size = cmcf->variables.nelts * sizeof(ngx_http_variable_value_t);

    before = ngx_palloc(r->pool, size);
    if (before == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(before, r->variables, size);

    v = &r->variables[mcf->request_body];

    v->valid = 0;
    v->not_found = 0;

    if (ngx_http_idem_value(r, value, s) != NGX_OK) {
        return NGX_ERROR;
    }

    if (v->valid || v->not_found) {
        ngx_memcpy(r->variables, before, size);
        return NGX_AGAIN;
    }

    *v = before[mcf->request_body];

    return NGX_OK;
}


/* forgets that $request_body was found empty before the body was read */

void
ngx_http_idem_value_body_read(ngx_http_request_t *r)
{
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    r->variables[mcf->request_body].not_found = 0;
}


/*
 * whether $request_body was evaluated before the body was read, as by "set"
 */

ngx_uint_t
ngx_http_idem_value_too_early(ngx_http_request_t *r)
{
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    return r->request_body == NULL
           && r->variables[mcf->request_body].not_found;
}


/*
 * Joins the values of a header that was sent more than once, as newer
 * versions of nginx do.  Older versions take the first.
 */

static ngx_int_t
ngx_http_idem_value_joined(ngx_http_request_t *r, ngx_str_t *header,
    ngx_str_t *s)
{
    size_t            len;
    u_char           *p;
    ngx_uint_t        i, pass;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    len = 0;
    p = NULL;

    for (pass = 0; pass < 2; pass++) {

        part = &r->headers_in.headers.part;

        do {
            h = part->elts;

            for (i = 0; i < part->nelts; i++) {

                if (!ngx_http_idem_is_header(&h[i], header)) {
                    continue;
                }

                if (pass == 0) {
                    len += h[i].value.len + 2;
                    continue;
                }

                if (p != s->data) {
                    *p++ = ',';
                    *p++ = ' ';
                }

                p = ngx_cpymem(p, h[i].value.data, h[i].value.len);
            }

            part = part->next;

        } while (part);

        if (pass == 0) {
            p = ngx_pnalloc(r->pool, len);
            if (p == NULL) {
                return NGX_ERROR;
            }

            s->data = p;
        }
    }

    s->len = p - s->data;

    return NGX_OK;
}


/*
 * Finds a header by the name in $http_name, and counts its occurrences.  The
 * variable itself is the first value or all of them, depending on the version
 * of nginx.
 */

ngx_table_elt_t *
ngx_http_idem_request_header(ngx_http_request_t *r, ngx_str_t *name,
    ngx_uint_t *n)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h, *first;

    *n = 0;
    first = NULL;

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            /* the length first: no call for most headers */

            if (h[i].key.len == name->len
                && ngx_http_idem_is_header(&h[i], name)
                && (*n)++ == 0)
            {
                first = &h[i];
            }
        }
    }

    return first;
}


/* '_' stands for '-', as in variable names */

static ngx_uint_t
ngx_http_idem_is_header(ngx_table_elt_t *h, ngx_str_t *name)
{
    u_char      ch;
    ngx_uint_t  i;

    if (h->hash == 0 || h->key.len != name->len) {
        return 0;
    }

    for (i = 0; i < name->len; i++) {
        ch = h->key.data[i];

        if (ch != name->data[i]
            && (ch == '-' ? '_' : ngx_tolower(ch)) != name->data[i])
        {
            return 0;
        }
    }

    return 1;
}


/* "failed": the result if the value can't be evaluated */

ngx_uint_t
ngx_http_idem_choice_eval(ngx_http_request_t *r, ngx_http_idem_choice_t *c,
    const char *directive, ngx_uint_t failed)
{
    ngx_int_t    n;
    ngx_str_t    value;
    const char  *why;

    static const char  *invalid[] = {
        NULL, "which is no time", "which is no size"
    };

    if (ngx_http_complex_value(r, c->complex, &value) != NGX_OK) {
        return failed;
    }

    if (value.len == 0) {
        return c->value;
    }

    n = ngx_http_idem_choice_parse(c->choices, &value);

    if (n != NGX_ERROR) {
        return (ngx_uint_t) n;
    }

    why = c->choices->unit ? invalid[c->choices->unit] : c->choices->valid;

    if (!ngx_http_idem_log_is_repeated(NGX_LOG_ERR, "idempotency: \"%s\" "
                                       "evaluates to a wrong value, %s",
                                       directive, why))
    {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idempotency: \"%s\" evaluates to \"%V\", %s; its "
                      "default is used", directive, &value, why);
    }

    return c->value;
}


ngx_int_t
ngx_http_idem_choice_parse(ngx_http_idem_choices_t *choices, ngx_str_t *value)
{
    ngx_int_t         n;
    ngx_conf_enum_t  *e;

    switch (choices->unit) {

    case NGX_HTTP_IDEM_UNIT_TIME:
        return ngx_parse_time(value, 0);

    case NGX_HTTP_IDEM_UNIT_SIZE:
        return ngx_parse_size(value);

    default:
        break;
    }

    /* in any case, as nginx's own "on" and "off" */

    for (e = choices->names; e->name.len; e++) {
        if (e->name.len == value->len
            && ngx_strncasecmp(e->name.data, value->data, value->len) == 0)
        {
            return (ngx_int_t) e->value;
        }
    }

    n = ngx_atoi(value->data, value->len);

    return (n >= choices->min && n <= choices->max && choices->max)
           ? n : NGX_ERROR;
}


/* the value of a name, or NGX_ERROR */

ngx_int_t
ngx_http_idem_conf_enum(ngx_conf_enum_t *e, ngx_str_t *value)
{
    for ( /* void */ ; e->name.len; e++) {
        if (ngx_http_idem_same_text(&e->name, value)) {
            return (ngx_int_t) e->value;
        }
    }

    return NGX_ERROR;
}


/* on unless empty, "0" or "off"; NGX_ERROR if it can't be evaluated */

ngx_int_t
ngx_http_idem_switch(ngx_http_request_t *r, ngx_http_idem_value_t *value)
{
    ngx_str_t  s;

    if (value == NULL) {
        return 0;
    }

    if (ngx_http_idem_value(r, value, &s) != NGX_OK) {
        return NGX_ERROR;
    }

    return s.len && !(s.len == 1 && s.data[0] == '0')
           && !ngx_http_idem_conf_is(&s, "off");
}
