
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Handlers of directives, and their error messages.
 *
 * Called by nginx while it reads the configuration.  A message names the
 * wrong value, the directive and the valid values; nginx adds file and line.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


#define NGX_HTTP_IDEM_STATUS_SYNTAX                                           \
    "a status as 201, a class as 2xx, or \"any\", with a \"!\" before it "    \
    "to leave it out"


static ngx_uint_t ngx_http_idem_conf_is_name(ngx_str_t *value,
    ngx_uint_t method);
static char *ngx_http_idem_conf_keep_values(ngx_conf_t *cf,
    ngx_http_complex_value_t **cv);
static ngx_int_t ngx_http_idem_status_add(ngx_str_t *word,
    ngx_http_idem_statuses_t *in, ngx_http_idem_statuses_t *out);


ngx_http_idem_choices_t  ngx_http_idem_times = {
    "it is a time, as 24h or 30s or 500ms", NGX_HTTP_IDEM_UNIT_TIME, 0, 0,
    { { ngx_null_string, 0 } }
};


/* with a TTL or a lease of 0, retries would run again */

ngx_http_idem_choices_t  ngx_http_idem_positive_times = {
    "it is a time above 0, as 24h or 30s or 500ms", NGX_HTTP_IDEM_UNIT_TIME,
    1, 0, { { ngx_null_string, 0 } }
};


ngx_http_idem_choices_t  ngx_http_idem_sizes = {
    "it is a size, as 64k or 1m", NGX_HTTP_IDEM_UNIT_SIZE, 0, 0,
    { { ngx_null_string, 0 } }
};


/* a list of header names, or "off" */

char *
ngx_http_idem_conf_header_names(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    char  *p = conf;

    ngx_str_t     *value;
    ngx_uint_t     i;
    ngx_array_t  **names;

    names = (ngx_array_t **) (p + cmd->offset);

    if (*names == NGX_CONF_UNSET_PTR && ngx_http_idem_conf_is_off(cf)) {
        *names = NULL;
        return NGX_CONF_OK;
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts && cf->args->nelts > 2; i++) {
        if (ngx_http_idem_conf_is(&value[i], "off")) {
            return ngx_http_idem_conf_invalid(cf, &value[i],
                                              "\"off\" stands alone");
        }
    }

    return ngx_http_idem_conf_names(cf, cmd, conf);
}


/* a list of method or header names */

char *
ngx_http_idem_conf_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_str_t     *value;
    ngx_uint_t     i, methods;
    ngx_array_t  **names;

    names = (ngx_array_t **) (p + cmd->offset);

    if (*names != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    methods = (cmd->offset == offsetof(ngx_http_idem_loc_conf_t, methods));
    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (!ngx_http_idem_conf_is_name(&value[i], methods)) {
            return ngx_http_idem_conf_invalid(cf, &value[i],
                         methods ? "it is a method, in capitals: POST"
                                 : "it is the name of a header");
        }

        if (ngx_http_idem_conf_part(cf, names, &value[i]) != NGX_CONF_OK) {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static ngx_uint_t
ngx_http_idem_conf_is_name(ngx_str_t *value, ngx_uint_t method)
{
    u_char      ch;
    ngx_uint_t  i;

    for (i = 0; i < value->len; i++) {
        ch = value->data[i];

        if ((ch >= 'A' && ch <= 'Z') || ch == '-' || ch == '_') {
            continue;
        }

        if (!method && ((ch >= 'a' && ch <= 'z') || (ch >= '0' && ch <= '9')))
        {
            continue;
        }

        return 0;
    }

    return value->len != 0;
}


/* a list of values that may have variables */

char *
ngx_http_idem_conf_values(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_str_t     *value;
    ngx_array_t  **values;

    values = (ngx_array_t **) (p + cmd->offset);

    if (*values != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ngx_http_idem_conf_warn_useless(cf);

    return ngx_http_idem_conf_compile_all(cf, &value[1], cf->args->nelts - 1,
                                          values);
}


/* a value that may have variables */

char *
ngx_http_idem_conf_value(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_str_t               *value;
    ngx_http_idem_value_t  **compiled;

    compiled = (ngx_http_idem_value_t **) (p + cmd->offset);

    if (*compiled != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cmd->offset == offsetof(ngx_http_idem_loc_conf_t, scope)) {
        ngx_http_idem_conf_warn_useless(cf);
    }

    *compiled = ngx_http_idem_conf_compiled(cf, &value[1]);

    return *compiled ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/* on | off | <value> */

char *
ngx_http_idem_conf_on_off(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_str_t               *value;
    ngx_http_idem_value_t  **compiled;

    compiled = (ngx_http_idem_value_t **) (p + cmd->offset);

    if (*compiled != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcasecmp(value[1].data, (u_char *) "off") == 0) {
        *compiled = NULL;
        return NGX_CONF_OK;
    }

    if (ngx_strcasecmp(value[1].data, (u_char *) "on") != 0
        && ngx_http_script_variables_count(&value[1]) == 0)
    {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it is \"on\", \"off\", or a value with "
                             "variables");
    }

    return ngx_http_idem_conf_value(cf, cmd, conf);
}


/* one of the choices in cmd->post, or variables that evaluate to one */

char *
ngx_http_idem_conf_choice(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_str_t               *value;
    ngx_http_idem_choice_t  *c;

    c = (ngx_http_idem_choice_t *) (p + cmd->offset);

    if (!ngx_http_idem_is_unset(c)) {
        return "is duplicate";
    }

    value = cf->args->elts;
    c->value = NGX_CONF_UNSET_UINT;

    switch (ngx_http_idem_conf_choose(cf, &value[1], cmd->post, c)) {

    case NGX_OK:
        break;

    case NGX_DECLINED:
        return ngx_http_idem_conf_invalid(cf, &value[1], c->choices->valid);

    default: /* NGX_ERROR */
        return NGX_CONF_ERROR;
    }

    if (c->value < NGX_HTTP_IDEM_LEASE_MIN
        && ngx_http_idem_conf_is(&cmd->name, "idempotency_lease"))
    {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "\"idempotency_lease %V\" is too short, it counts "
                           "as %dms", &value[1], NGX_HTTP_IDEM_LEASE_MIN);
    }

    return NGX_CONF_OK;
}


/* NGX_DECLINED: it is none of the choices */

ngx_int_t
ngx_http_idem_conf_choose(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_idem_choices_t *choices, ngx_http_idem_choice_t *c)
{
    ngx_int_t  n;

    c->choices = choices;

    if (ngx_http_script_variables_count(value)) {
        c->complex = ngx_palloc(cf->pool, sizeof(ngx_http_complex_value_t));

        return c->complex
               && ngx_http_idem_conf_complex(cf, value, c->complex)
                  == NGX_CONF_OK
               ? NGX_OK : NGX_ERROR;
    }

    n = ngx_http_idem_choice_parse(c->choices, value);

    if (n == NGX_ERROR || (c->choices->unit && n < c->choices->min)) {
        return NGX_DECLINED;
    }

    c->value = (ngx_uint_t) n;

    return NGX_OK;
}


/* idempotency_group <value> */

char *
ngx_http_idem_conf_group(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t  *value;

    if (ilcf->group_name.data || ilcf->group_value) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len == 0) {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it is a name, or a value with variables");
    }

    ilcf->group_named = 1;

    if (ngx_http_script_variables_count(&value[1]) == 0) {
        ilcf->group_name = value[1];
        return NGX_CONF_OK;
    }

    ilcf->group_value = ngx_http_idem_conf_compiled(cf, &value[1]);

    return ilcf->group_value ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/* idempotency_ttl_header <name> max=<time> */

char *
ngx_http_idem_conf_ttl_header(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t   *value, s;
    ngx_uint_t   i;

    if (!ngx_http_idem_is_unset(&ilcf->ttl_header_max)) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2) {

        if (ngx_http_idem_conf_is(&value[1], "off")) {
            ilcf->ttl_header_max.choices = &ngx_http_idem_positive_times;
            return NGX_CONF_OK;
        }

        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it is \"off\", or the name of a header and "
                             "\"max=<time>\"");
    }

    if (!ngx_http_idem_conf_is_name(&value[1], 0)) {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it is the name of a header");
    }

    if (ngx_http_idem_conf_is(&value[1], "off")) {
        return ngx_http_idem_conf_invalid(cf, &value[2],
                                          "\"off\" stands alone");
    }

    if (!ngx_http_idem_conf_option(&value[2], "max=", &s)
        || ngx_http_idem_conf_choose(cf, &s, &ngx_http_idem_positive_times,
                                     &ilcf->ttl_header_max)
           != NGX_OK)
    {
        return ngx_http_idem_conf_invalid(cf, &value[2],
                             "it is \"max=<time>\", as max=7d");
    }

    ilcf->ttl_header = value[1];

    for (i = 0; i < value[1].len; i++) {
        value[1].data[i] = (value[1].data[i] == '-')
                           ? '_' : ngx_tolower(value[1].data[i]);
    }

    return NGX_CONF_OK;
}


/* idempotency_stream tee [<media type> ...] | pass */

char *
ngx_http_idem_conf_stream(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    char        *rv;
    ngx_str_t   *value;
    ngx_uint_t   i;

    rv = ngx_http_idem_conf_choice(cf, cmd, conf);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    value = cf->args->elts;

    for (i = 2; i < cf->args->nelts; i++) {

        if (ilcf->stream.value == NGX_HTTP_IDEM_STREAM_PASS
            || ngx_strlchr(value[i].data, value[i].data + value[i].len, '/')
               == NULL)
        {
            return ngx_http_idem_conf_invalid(cf, &value[i],
                         "it is a media type behind \"tee\", as "
                         "application/x-ndjson");
        }

        if (ngx_http_idem_conf_part(cf, &ilcf->stream_types, &value[i])
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* idempotency_keep_status [!]<code> | [!]<n>xx | any ... | <value> ... */

char *
ngx_http_idem_conf_keep_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t   *value, *bad;
    ngx_uint_t   i;

    if (ilcf->keep_status != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        if (ngx_http_script_variables_count(&value[i])) {
            ilcf->keep_status = NULL;
            return ngx_http_idem_conf_keep_values(cf, &ilcf->keep_values);
        }
    }

    ilcf->keep_status = ngx_http_idem_statuses(cf->pool, &value[1],
                                               cf->args->nelts - 1, &bad);

    if (ilcf->keep_status == NULL && bad) {
        return ngx_http_idem_conf_invalid(cf, bad,
                             "it is " NGX_HTTP_IDEM_STATUS_SYNTAX);
    }

    return ngx_http_idem_conf_warn_statuses(cf, ilcf->keep_status);
}


/* the values in one, since a variable may have several statuses, or none */

static char *
ngx_http_idem_conf_keep_values(ngx_conf_t *cf, ngx_http_complex_value_t **cv)
{
    size_t       len;
    u_char      *p;
    ngx_str_t   *value, all;
    ngx_uint_t   i;

    value = cf->args->elts;

    for (len = 0, i = 1; i < cf->args->nelts; i++) {
        len += value[i].len + 1;
    }

    *cv = ngx_palloc(cf->pool, sizeof(ngx_http_complex_value_t));
    p = ngx_pnalloc(cf->pool, len);

    if (*cv == NULL || p == NULL) {
        return NGX_CONF_ERROR;
    }

    all.data = p;

    for (i = 1; i < cf->args->nelts; i++) {
        p = ngx_cpymem(p, value[i].data, value[i].len);
        *p++ = ' ';
    }

    all.len = p - all.data - 1;

    return ngx_http_idem_conf_complex(cf, &all, *cv);
}


/*
 * The statuses that are kept of this request's response.  Without memory to
 * find out, all of them: nothing runs twice.
 */

ngx_http_idem_statuses_t *
ngx_http_idem_kept_statuses(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf)
{
    u_char                    *p, *last;
    ngx_str_t                  s, *bad, *word;
    ngx_array_t                words;
    ngx_http_idem_statuses_t  *statuses;

    static ngx_http_idem_statuses_t  all;

    if (conf->keep_values == NULL) {
        return conf->keep_status;
    }

    ngx_memset(all.bits, 0xff, sizeof(all.bits));

    if (ngx_http_complex_value(r, conf->keep_values, &s) != NGX_OK
        || ngx_array_init(&words, r->pool, 4, sizeof(ngx_str_t)) != NGX_OK)
    {
        return &all;
    }

    last = s.data + s.len;

    for (p = s.data; p < last; p++) {

        if (*p == ' ') {
            continue;
        }

        word = ngx_array_push(&words);
        if (word == NULL) {
            return &all;
        }

        word->data = p;

        while (p < last && *p != ' ') {
            p++;
        }

        word->len = p - word->data;
    }

    if (words.nelts == 0) {
        return conf->keep_status;
    }

    statuses = ngx_http_idem_statuses(r->pool, words.elts, words.nelts, &bad);

    if (statuses) {
        return statuses;
    }

    if (bad == NULL) {
        return &all;
    }

    if (!ngx_http_idem_log_is_repeated(NGX_LOG_ERR,
                      "idempotency: \"idempotency_keep_status\" evaluates to "
                      "a wrong value"))
    {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idempotency: \"idempotency_keep_status\" evaluates to "
                      "\"%V\" with \"%V\", it is " NGX_HTTP_IDEM_STATUS_SYNTAX
                      "; its default is used", &s, bad);
    }

    return conf->keep_status;
}


/*
 * The kept statuses.  Where there are none but those with "!", these are left
 * out of the default.  NULL with "bad": a word is no status.
 */

ngx_http_idem_statuses_t *
ngx_http_idem_statuses(ngx_pool_t *pool, ngx_str_t *word, ngx_uint_t n,
    ngx_str_t **bad)
{
    ngx_uint_t                 i;
    ngx_http_idem_statuses_t  *statuses, out;

    /* without the statuses that may change on a retry */

    static ngx_str_t  kept[] = {
        ngx_string("2xx"), ngx_string("3xx"), ngx_string("4xx"),
        ngx_string("!401"), ngx_string("!403"), ngx_string("!407"),
        ngx_string("!408"), ngx_string("!409"), ngx_string("!423"),
        ngx_string("!425"), ngx_string("!429"), ngx_null_string
    };

    *bad = NULL;

    ngx_memzero(&out, sizeof(ngx_http_idem_statuses_t));

    statuses = ngx_pcalloc(pool, sizeof(ngx_http_idem_statuses_t));
    if (statuses == NULL) {
        return NULL;
    }

    for (i = 0; i < n && word[i].len && word[i].data[0] == '!'; i++) {
        /* void */
    }

    if (i == n) {
        for (i = 0; kept[i].len; i++) {
            (void) ngx_http_idem_status_add(&kept[i], statuses, &out);
        }
    }

    for (i = 0; i < n; i++) {
        if (ngx_http_idem_status_add(&word[i], statuses, &out) != NGX_OK) {
            *bad = &word[i];
            return NULL;
        }
    }

    for (i = 0; i < 32; i++) {
        statuses->bits[i] &= ~out.bits[i];
    }

    return statuses;
}


/* adds a status or a range to "in", or with "!" to "out" */

static ngx_int_t
ngx_http_idem_status_add(ngx_str_t *word, ngx_http_idem_statuses_t *in,
    ngx_http_idem_statuses_t *out)
{
    u_char      *p;
    size_t       len;
    ngx_int_t    n;
    ngx_uint_t   first, last;

    p = word->data;
    len = word->len;

    if (len && *p == '!') {
        p++;
        len--;
        in = out;
    }

    if (len != 3) {
        return NGX_DECLINED;
    }

    n = ngx_atoi(p, 3);

    if (ngx_strncmp(p, "any", 3) == 0) {
        first = 200;
        last = 999;

    } else if (p[0] >= '2' && p[0] <= '5' && ngx_strncmp(p + 1, "xx", 2) == 0)
    {
        first = (p[0] - '0') * 100;
        last = first + 99;

    } else if (n >= 200 && n <= 599) {
        first = n;
        last = n;

    } else {
        return NGX_DECLINED;
    }

    for ( /* void */ ; first <= last; first++) {
        in->bits[first / 32] |= (uint32_t) 1 << (first % 32);
    }

    return NGX_OK;
}
