
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Directives for bodies: idempotency_fingerprint, idempotency_keep_json,
 * idempotency_replay_json and idempotency_compress.
 *
 * Called by nginx while it reads the configuration, and by the merge.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"
#include "canonical/ngx_http_idem_json_pointer.h"


#define NGX_HTTP_IDEM_COMPRESS_MIN  1024


static char *ngx_http_idem_conf_canonical(ngx_conf_t *cf,
    ngx_http_idem_canonical_t *canonical, ngx_str_t *value);
static void ngx_http_idem_names(ngx_array_t *array, ngx_str_t **names,
    ngx_uint_t *n);
static void ngx_http_idem_scheme_names(uint32_t *crc, ngx_array_t *names,
    const char *before, const char *behind);
static ngx_int_t ngx_http_idem_members_collect(ngx_http_idem_loc_conf_t *conf,
    ngx_array_t *wanted);
static ngx_int_t ngx_http_idem_member_add(ngx_array_t *wanted,
    ngx_str_t *name);


static ngx_conf_enum_t  ngx_http_idem_modes[] = {
    { ngx_string("raw"), NGX_HTTP_IDEM_FINGERPRINT_RAW },
    { ngx_string("json"), NGX_HTTP_IDEM_FINGERPRINT_JSON },
    { ngx_string("form"), NGX_HTTP_IDEM_FINGERPRINT_FORM },
    { ngx_string("multipart"), NGX_HTTP_IDEM_FINGERPRINT_MULTIPART },
    { ngx_string("auto"), NGX_HTTP_IDEM_FINGERPRINT_AUTO },
    { ngx_string("off"), NGX_HTTP_IDEM_FINGERPRINT_OFF },
    { ngx_null_string, 0 }
};


/* idempotency_fingerprint <mode> [exclude=...] [include=...] [arrays=...] */

char *
ngx_http_idem_conf_fingerprint(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_int_t                   mode;
    ngx_str_t                  *value;
    ngx_uint_t                  i;
    ngx_http_idem_canonical_t  *canonical;

    if (ilcf->fingerprint != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    canonical = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_canonical_t));
    if (canonical == NULL) {
        return NGX_CONF_ERROR;
    }

    ilcf->fingerprint = canonical;
    value = cf->args->elts;

    mode = ngx_http_idem_conf_enum(ngx_http_idem_modes, &value[1]);

    if (mode == NGX_ERROR) {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it is \"raw\", \"json\", \"form\", "
                             "\"multipart\", \"auto\" or \"off\"");
    }

    canonical->mode = mode;

    if (ngx_http_idem_conf_once(cf, 2) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    for (i = 2; i < cf->args->nelts; i++) {

        if (canonical->mode == NGX_HTTP_IDEM_FINGERPRINT_RAW
            || canonical->mode == NGX_HTTP_IDEM_FINGERPRINT_MULTIPART
            || canonical->mode == NGX_HTTP_IDEM_FINGERPRINT_OFF)
        {
            return ngx_http_idem_conf_invalid(cf, &value[i],
                             "only what is parsed has members: \"json\", "
                             "\"form\" or \"auto\" take this");
        }

        if (ngx_http_idem_conf_is(&value[i], "arrays=ordered")) {
            canonical->unordered = 0;

        } else if (ngx_http_idem_conf_is(&value[i], "arrays=unordered")) {
            canonical->unordered = 1;

        } else if (ngx_http_idem_conf_canonical(cf, canonical, &value[i])
                   != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* exclude=<name or pointer>,... or include=<pointer>,... */

static char *
ngx_http_idem_conf_canonical(ngx_conf_t *cf,
    ngx_http_idem_canonical_t *canonical, ngx_str_t *value)
{
    ngx_str_t     list, *name;
    ngx_uint_t    i, include, pointer;
    ngx_array_t **names;

    include = ngx_http_idem_conf_option(value, "include=", &list);

    if (!include && !ngx_http_idem_conf_option(value, "exclude=", &list)) {
        return ngx_http_idem_conf_invalid(cf, value,
                             "it is \"exclude=<name>,...\", "
                             "\"include=/<pointer>,...\", "
                             "\"arrays=ordered\" or \"arrays=unordered\"");
    }

    names = include ? &canonical->included : &canonical->excluded;

    if (ngx_http_idem_conf_parts(cf, names, value, &list) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    name = (*names)->elts;

    for (i = 0; i < (*names)->nelts; i++) {
        pointer = ngx_http_idem_json_is_pointer(&name[i]);

        if (include && !pointer) {
            return ngx_http_idem_conf_invalid(cf, value,
                             "what is included is a JSON Pointer: /a, or "
                             "/a/b");
        }

        if (pointer && canonical->mode == NGX_HTTP_IDEM_FINGERPRINT_FORM) {
            return ngx_http_idem_conf_invalid(cf, value,
                             "a form has names and no pointers");
        }
    }

    return NGX_CONF_OK;
}


/* idempotency_replay_json <member> <value>, repeats; or off */

char *
ngx_http_idem_conf_replay_json(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t                      *value;
    ngx_http_idem_replay_member_t  *member, *set;

    value = cf->args->elts;

    if (cf->args->nelts == 2) {
        return ngx_http_idem_conf_list_off(cf, &ilcf->replay_json,
                             "it is a member and its value, or \"off\"");
    }

    if (ilcf->replay_json == NULL) {
        return "is duplicate";
    }

    member = ngx_http_idem_conf_add(cf, &ilcf->replay_json,
                                    sizeof(ngx_http_idem_replay_member_t));
    if (member == NULL) {
        return NGX_CONF_ERROR;
    }

    member->member = value[1];

    if (value[1].len && value[1].data[0] == '/') {

        /* a pointer, but only to a top-level member */

        member->member.data++;
        member->member.len--;

        if (member->member.len == 0
            || ngx_strlchr(member->member.data,
                           value[1].data + value[1].len, '/')
            || ngx_strlchr(member->member.data,
                           value[1].data + value[1].len, '~'))
        {
            return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it is a member of the response itself: id, or "
                             "/id");
        }
    }

    for (set = ilcf->replay_json->elts; set < member; set++) {
        if (ngx_http_idem_same_text(&set->member, &member->member)) {
            return "is duplicate";
        }
    }

    if (ngx_strncmp(value[2].data, "json:", 5) != 0) {
        return ngx_http_idem_conf_complex(cf, &value[2], &member->value);
    }

    if (!ngx_http_idem_conf_option(&value[2], "json:", &member->from)) {
        return ngx_http_idem_conf_invalid(cf, &value[2],
                             "it is \"json:\" and a member of the request's "
                             "body, or a JSON Pointer: json:/id");
    }

    return ngx_http_idem_conf_member(cf, &value[2], &member->from);
}


/* idempotency_keep_json <pointer>=[!]<value> ... | off */

char *
ngx_http_idem_conf_keep_json(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    u_char                *last;
    ngx_str_t             *value, *pointer;
    ngx_uint_t             i;
    ngx_array_t           *pointers;
    ngx_http_idem_keep_t  *rule;

    if (ilcf->keep_json != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    if (ngx_http_idem_conf_is_off(cf)) {
        ilcf->keep_json = NULL;
        return NGX_CONF_OK;
    }

    ilcf->keep_json = ngx_array_create(cf->pool, cf->args->nelts,
                                       sizeof(ngx_http_idem_keep_t));
    pointers = ngx_array_create(cf->pool, cf->args->nelts, sizeof(ngx_str_t));

    if (ilcf->keep_json == NULL || pointers == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        rule = ngx_array_push(ilcf->keep_json);
        pointer = ngx_array_push(pointers);

        if (rule == NULL || pointer == NULL) {
            return NGX_CONF_ERROR;
        }

        last = value[i].data + value[i].len;

        rule->value.data = ngx_strlchr(value[i].data, last, '=');

        if (value[i].data[0] != '/' || rule->value.data == NULL) {
            return ngx_http_idem_conf_invalid(cf, &value[i],
                             "it is a JSON Pointer and what is there: "
                             "/ok=true, or /result/isError=!true, or "
                             "/error=!*");
        }

        pointer->data = value[i].data;
        pointer->len = rule->value.data - value[i].data;

        if (ngx_http_idem_conf_pointer(cf, &value[i], pointer) != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }

        rule->value.data++;
        rule->negated = (rule->value.data < last && *rule->value.data == '!');
        rule->value.data += rule->negated;
        rule->value.len = last - rule->value.data;
    }

    ngx_memzero(&ilcf->keep_options, sizeof(ngx_http_idem_json_options_t));

    ilcf->keep_options.size = NGX_HTTP_IDEM_JSON_SIZE;
    ilcf->keep_options.depth = NGX_HTTP_IDEM_JSON_DEPTH;
    ilcf->keep_options.wanted = pointers->elts;
    ilcf->keep_options.nwanted = pointers->nelts;

    return NGX_CONF_OK;
}


/* idempotency_compress off | on [min=<size>] */

char *
ngx_http_idem_conf_compress(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    char       *rv;
    ngx_str_t  *value, s;

    rv = ngx_http_idem_conf_choice(cf, cmd, conf);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    ilcf->compress_min.value = NGX_HTTP_IDEM_COMPRESS_MIN;

    if (cf->args->nelts == 2) {
        return NGX_CONF_OK;
    }

    value = cf->args->elts;

    if (ilcf->compress.value == 0
        || !ngx_http_idem_conf_option(&value[2], "min=", &s)
        || ngx_http_idem_conf_choose(cf, &s, &ngx_http_idem_sizes,
                                     &ilcf->compress_min)
           != NGX_OK)
    {
        return ngx_http_idem_conf_invalid(cf, &value[2],
                             "it is \"min=<size>\" behind \"on\", as "
                             "min=1k");
    }

    return NGX_CONF_OK;
}


/* members to find in request bodies, and the canonical form of bodies */

ngx_int_t
ngx_http_idem_body_options(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf)
{
    ngx_array_t                   *wanted;
    ngx_http_idem_canonical_t     *canonical;
    ngx_http_idem_json_options_t  *json;

    wanted = ngx_array_create(cf->pool, 4, sizeof(ngx_str_t));

    if (wanted == NULL
        || ngx_http_idem_members_collect(conf, wanted) != NGX_OK)
    {
        return NGX_ERROR;
    }

    canonical = conf->fingerprint;
    json = &conf->json;

    json->size = NGX_HTTP_IDEM_JSON_SIZE;
    json->depth = NGX_HTTP_IDEM_JSON_DEPTH;
    json->detail = conf->conflict_detail.value;
    json->paths = NGX_HTTP_IDEM_JSON_PATHS;
    json->paths_size = NGX_HTTP_IDEM_JSON_PATHS_SIZE;
    json->unordered = canonical->unordered;

    ngx_http_idem_names(wanted, &json->wanted, &json->nwanted);
    ngx_http_idem_names(canonical->excluded, &json->excluded,
                        &json->nexcluded);
    ngx_http_idem_names(conf->redacted, &json->redacted, &json->nredacted);
    ngx_http_idem_names(canonical->included, &json->included,
                        &json->nincluded);

    conf->form.size = NGX_HTTP_IDEM_FORM_SIZE;
    conf->form.excluded = json->excluded;
    conf->form.nexcluded = json->nexcluded;

    return NGX_OK;
}


static void
ngx_http_idem_names(ngx_array_t *array, ngx_str_t **names, ngx_uint_t *n)
{
    if (array) {
        *names = array->elts;
        *n = array->nelts;
    }
}


/*
 * Keys, dedupe rules and replay members may be inherited from different levels
 * of the configuration.
 */

static ngx_int_t
ngx_http_idem_members_collect(ngx_http_idem_loc_conf_t *conf,
    ngx_array_t *wanted)
{
    ngx_str_t                      *name;
    ngx_uint_t                      i, k;
    ngx_array_t                    *members;
    ngx_http_idem_key_source_t     *source;
    ngx_http_idem_replay_member_t  *member;

    source = conf->keys->elts;

    for (i = 0; i < conf->keys->nelts; i++) {
        if (ngx_http_idem_member_add(wanted, &source[i].member) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    for (i = 0; conf->dedupe && i < conf->dedupe->nelts; i++) {
        members = ((ngx_http_idem_dedupe_t *) conf->dedupe->elts)[i].members;

        for (k = 0; members && k < members->nelts; k++) {
            name = members->elts;

            if (ngx_http_idem_member_add(wanted, &name[k]) != NGX_OK) {
                return NGX_ERROR;
            }
        }
    }

    for (i = 0; conf->replay_json && i < conf->replay_json->nelts; i++) {
        member = conf->replay_json->elts;

        if (ngx_http_idem_member_add(wanted, &member[i].from) != NGX_OK) {
            return NGX_ERROR;
        }

        conf->replay_body |= (member[i].from.len != 0);
    }

    return NGX_OK;
}


/* adds a member unless it is empty, or there */

static ngx_int_t
ngx_http_idem_member_add(ngx_array_t *wanted, ngx_str_t *name)
{
    ngx_str_t   *w;
    ngx_uint_t   i;

    w = wanted->elts;

    for (i = 0; i < wanted->nelts; i++) {
        if (ngx_http_idem_same_text(&w[i], name)) {
            return NGX_OK;
        }
    }

    if (name->len == 0) {
        return NGX_OK;
    }

    w = ngx_array_push(wanted);
    if (w == NULL) {
        return NGX_ERROR;
    }

    *w = *name;

    return NGX_OK;
}


/*
 * The scheme: a number that identifies how fingerprints are computed.  It is
 * the same on all hosts with the same configuration.
 */

uint32_t
ngx_http_idem_scheme(ngx_http_idem_loc_conf_t *conf)
{
    u_char                      how[2];
    uint32_t                    crc;
    ngx_http_idem_canonical_t  *canonical;

    canonical = conf->fingerprint;

    how[0] = (u_char) canonical->mode;
    how[1] = (u_char) canonical->unordered;

    ngx_crc32_init(crc);
    ngx_crc32_update(&crc, how, 2);

    ngx_http_idem_scheme_names(&crc, canonical->excluded, "", ",");
    ngx_http_idem_scheme_names(&crc, canonical->included, "+", "");

    ngx_crc32_final(crc);

    return crc;
}


static void
ngx_http_idem_scheme_names(uint32_t *crc, ngx_array_t *names,
    const char *before, const char *behind)
{
    ngx_str_t   *name;
    ngx_uint_t   i;

    for (i = 0; names && i < names->nelts; i++) {
        name = (ngx_str_t *) names->elts + i;

        ngx_crc32_update(crc, (u_char *) before, ngx_strlen(before));
        ngx_crc32_update(crc, name->data, name->len);
        ngx_crc32_update(crc, (u_char *) behind, ngx_strlen(behind));
    }
}
