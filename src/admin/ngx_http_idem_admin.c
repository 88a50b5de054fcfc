
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * idempotency_admin: the directive, and the routing of URIs below its
 * location.
 *
 *   GET    records/<store>/<id>           one record
 *   GET    records/<store>?key=&scope=    the same, by its key
 *   GET    records/<store>?state=&older=… many, in pages
 *   DELETE of these
 *   GET    id?key=&scope=                 record id and hash of a key
 *   GET    events                         live events
 *   GET    events?store=&since=…          stored events
 *   DELETE of these
 *   GET    health                         asks each store
 *
 * Access is controlled as in any location, by allow, auth_basic and the
 * like.  A content handler; calls the other ..._admin*.c files.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_housekeeping.h"
#include "admin/ngx_http_idem_admin.h"
#include "observe/ngx_http_idem_tap.h"
#include "response/ngx_http_idem_response.h"


#define NGX_HTTP_IDEM_ADMIN_MESSAGE  512


static ngx_int_t ngx_http_idem_admin_handler(ngx_http_request_t *r);
static ngx_str_t ngx_http_idem_admin_tail(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_admin_record(ngx_http_request_t *r,
    ngx_str_t *args, ngx_str_t *tail);
static ngx_int_t ngx_http_idem_admin_stored(ngx_http_request_t *r,
    ngx_str_t *args);
static ngx_int_t ngx_http_idem_admin_method(ngx_http_request_t *r,
    ngx_uint_t methods, const char *allow);
static ngx_int_t ngx_http_idem_admin_show_id(ngx_http_request_t *r,
    ngx_str_t *args);
static ngx_int_t ngx_http_idem_admin_index(ngx_http_request_t *r);
static void ngx_http_idem_admin_run(ngx_http_idem_job_t *job);
static void ngx_http_idem_admin_resume(ngx_http_idem_job_t *job);
static ngx_int_t ngx_http_idem_admin_op(ngx_http_idem_job_t *job,
    ngx_http_idem_store_t *store, ngx_http_idem_op_e kind, u_char *id,
    ngx_http_idem_list_t *list);
static void ngx_http_idem_admin_answered(ngx_http_idem_op_t *op);
static void ngx_http_idem_admin_event_handler(ngx_event_t *ev);
static void ngx_http_idem_admin_cleanup(void *data);


/* idempotency_admin [read] */

char *
ngx_http_idem_conf_admin(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t                  *value;
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_idem_main_conf_t  *mcf;

    value = cf->args->elts;

    if (ilcf->page) {
        return ilcf->admin ? "is duplicate"
               : "takes a location without \"idempotency_stats\"";
    }

    ilcf->admin = NGX_HTTP_IDEM_ADMIN_FULL;
    ilcf->page = ngx_http_idem_admin_handler;

    if (cf->args->nelts == 2) {

        if (!ngx_http_idem_conf_is(&value[1], "read")) {
            return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it is \"read\", or nothing: then records can "
                             "be deleted, too");
        }

        ilcf->admin = NGX_HTTP_IDEM_ADMIN_READ;
    }

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->exact_match || clcf->named
#if (NGX_PCRE)
        || clcf->regex
#endif
       )
    {
        return "takes a location with a prefix: what is asked for is the "
               "rest of the address";
    }

    clcf->handler = ngx_http_idem_admin_handler;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    mcf->tap = ngx_http_idem_tap_zone(cf, &ngx_http_idempotency_module);

    return mcf->tap ? NGX_CONF_OK : NGX_CONF_ERROR;
}


static ngx_int_t
ngx_http_idem_admin_handler(ngx_http_request_t *r)
{
    ngx_int_t                   rc;
    ngx_str_t                   tail, value, args[NGX_HTTP_IDEM_ARG_N];
    ngx_http_idem_main_conf_t  *mcf;

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    ngx_str_set(&value, "no-store");

    if (ngx_http_idem_add_header(r, "Cache-Control", &value) != NGX_OK
        || ngx_http_idem_admin_args(r, args) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    if (mcf->stores.nelts == 0) {
        return ngx_http_idem_admin_error(r, NGX_HTTP_NOT_FOUND, "NO_STORE",
                      "This nginx has no store: \"idempotency\" is on "
                      "nowhere.");
    }

    tail = ngx_http_idem_admin_tail(r);

    ngx_str_set(&value, "");

    if (ngx_http_idem_conf_is(&tail, "records")
        || ngx_http_idem_conf_option(&tail, "records/", &value))
    {
        return ngx_http_idem_admin_record(r, args, &value);
    }

    if (args[NGX_HTTP_IDEM_ARG_STORE].data
        && ngx_http_idem_conf_is(&tail, "events"))
    {
        return ngx_http_idem_admin_stored(r, args);
    }

    rc = ngx_http_idem_admin_method(r, NGX_HTTP_GET|NGX_HTTP_HEAD,
                                    "GET, HEAD");

    if (rc != NGX_DECLINED) {
        return rc;
    }

    if (tail.len == 0) {
        return ngx_http_idem_admin_index(r);
    }

    if (ngx_http_idem_conf_is(&tail, "id")) {
        return ngx_http_idem_admin_show_id(r, args);
    }

    if (ngx_http_idem_conf_is(&tail, "health")) {
        return ngx_http_idem_admin_health(r, args);
    }

    if (ngx_http_idem_conf_is(&tail, "events")) {
        return ngx_http_idem_admin_events(r, args);
    }

    return ngx_http_idem_admin_error(r, NGX_HTTP_NOT_FOUND, "NOT_FOUND",
                      "There is records/<store>, events, id and health.");
}


/* the rest of the URI after the location's prefix */

static ngx_str_t
ngx_http_idem_admin_tail(ngx_http_request_t *r)
{
    ngx_str_t                  tail;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    tail = r->uri;

    if (tail.len >= clcf->name.len
        && ngx_strncmp(tail.data, clcf->name.data, clcf->name.len) == 0)
    {
        tail.data += clcf->name.len;
        tail.len -= clcf->name.len;
    }

    while (tail.len && tail.data[0] == '/') {
        tail.data++;
        tail.len--;
    }

    while (tail.len && tail.data[tail.len - 1] == '/') {
        tail.len--;
    }

    return tail;
}


/* events?store= */

static ngx_int_t
ngx_http_idem_admin_stored(ngx_http_request_t *r, ngx_str_t *args)
{
    ngx_int_t                   rc;
    ngx_http_idem_store_t      *store;
    ngx_http_idem_main_conf_t  *mcf;

    rc = ngx_http_idem_admin_method(r, NGX_HTTP_GET|NGX_HTTP_DELETE,
                                    "GET, DELETE");

    if (rc != NGX_DECLINED) {
        return rc;
    }

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    store = ngx_http_idem_find_store(mcf, &args[NGX_HTTP_IDEM_ARG_STORE]);

    if (store == NULL) {
        return ngx_http_idem_admin_no_store(r);
    }

    if (!store->trail) {
        return ngx_http_idem_admin_error(r, NGX_HTTP_NOT_FOUND, "NO_EVENTS",
                      "This store keeps no events: ask without \"store\" for "
                      "those of this nginx.");
    }

    return ngx_http_idem_admin_trail(r, args, store);
}


/* refuses a method that this address or this location does not support;
   NGX_DECLINED: the method is supported */

static ngx_int_t
ngx_http_idem_admin_method(ngx_http_request_t *r, ngx_uint_t methods,
    const char *allow)
{
    ngx_str_t                  value;
    ngx_http_idem_loc_conf_t  *conf;

    if (!(r->method & methods)) {
        value.data = (u_char *) allow;
        value.len = ngx_strlen(allow);
        (void) ngx_http_idem_add_header(r, "Allow", &value);

        return ngx_http_idem_admin_error(r, NGX_HTTP_NOT_ALLOWED,
                      "METHOD_NOT_ALLOWED",
                      (methods & NGX_HTTP_DELETE)
                      ? "This address takes GET and DELETE."
                      : "This address takes GET only.");
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (r->method == NGX_HTTP_DELETE
        && conf->admin == NGX_HTTP_IDEM_ADMIN_READ)
    {
        return ngx_http_idem_admin_error(r, NGX_HTTP_FORBIDDEN, "READ_ONLY",
                      "This location is \"idempotency_admin read\": nothing "
                      "is deleted here.");
    }

    return NGX_DECLINED;
}


static ngx_int_t
ngx_http_idem_admin_record(ngx_http_request_t *r, ngx_str_t *args,
    ngx_str_t *tail)
{
    u_char                       *p;
    ngx_int_t                     rc;
    ngx_str_t                     name, id;
    ngx_http_idem_store_t        *store;
    ngx_http_idem_main_conf_t    *mcf;
    ngx_http_idem_admin_query_t   q;

    rc = ngx_http_idem_admin_method(r,
                             NGX_HTTP_GET|NGX_HTTP_HEAD|NGX_HTTP_DELETE,
                             "GET, HEAD, DELETE");

    if (rc != NGX_DECLINED) {
        return rc;
    }

    name = *tail;
    id.len = 0;

    p = ngx_strlchr(tail->data, tail->data + tail->len, '/');

    if (p) {
        name.len = p - tail->data;
        id.data = p + 1;
        id.len = tail->len - name.len - 1;
    }

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    store = ngx_http_idem_find_store(mcf, &name);

    if (store == NULL) {
        return ngx_http_idem_admin_no_store(r);
    }

    ngx_memzero(&q, sizeof(ngx_http_idem_admin_query_t));

    if (id.len) {
        if (ngx_http_idem_id_parse(id.data, id.len, q.id) != NGX_OK) {
            return ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                      "RECORD_INVALID", "A record id is 64 hexadecimal "
                      "digits: the variable $idempotency_record, \"record\" "
                      "in an event, or the answer of GET id?key=&scope=.");
        }

        q.one = 1;
    }

    if (ngx_http_idem_admin_query(r, args, &q, &rc) != NGX_OK) {
        return rc;
    }

    if (r->method == NGX_HTTP_DELETE && !q.one && !q.some) {
        return ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                      "FILTER_MISSING", "Which records are to be deleted? "
                      "Name one by its id or by key and scope, or many by "
                      "state, older, group, tenant or actor.");
    }

    return ngx_http_idem_admin_records(r, store, &q);
}


ngx_int_t
ngx_http_idem_admin_no_store(ngx_http_request_t *r)
{
    return ngx_http_idem_admin_error(r, NGX_HTTP_NOT_FOUND, "STORE_UNKNOWN",
                      "There is no such store. GET on the address of the "
                      "location names those there are.");
}


static ngx_int_t
ngx_http_idem_admin_show_id(ngx_http_request_t *r, ngx_str_t *args)
{
    u_char                id[NGX_HTTP_IDEM_ID_LEN];
    u_char                hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_str_t             scope;
    ngx_http_idem_text_t  t;

    switch (ngx_http_idem_admin_key(r, args, id, hash, &scope)) {

    case NGX_OK:
        break;

    case NGX_DECLINED:
        return ngx_http_idem_admin_error(r, NGX_HTTP_BAD_REQUEST,
                      "KEY_MISSING", "Of which key? Ask with ?key=&scope=.");

    default:
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_idem_admin_text(r, &t);

    ngx_http_idem_text(&t, "{\"record\":\"%*xs\",\"key_hash\":\"%*xs\"",
                       sizeof(id), id, sizeof(hash), hash);
    ngx_http_idem_admin_string(&t, "scope", &scope);
    ngx_http_idem_text(&t, "}\n");

    return ngx_http_idem_admin_send(r, NGX_HTTP_OK, &t);
}


static ngx_int_t
ngx_http_idem_admin_index(ngx_http_request_t *r)
{
    ngx_uint_t                   i;
    ngx_http_idem_text_t         t;
    ngx_http_idem_store_t      **store;
    ngx_http_idem_loc_conf_t    *conf;
    ngx_http_idem_main_conf_t   *mcf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    store = mcf->stores.elts;

    ngx_http_idem_admin_text(r, &t);

    ngx_http_idem_text(&t, "{\"read_only\":%s,\"stores\":[",
                       conf->admin == NGX_HTTP_IDEM_ADMIN_READ ? "true"
                                                               : "false");

    for (i = 0; i < mcf->stores.nelts; i++) {
        ngx_http_idem_text(&t, "%s", i ? "," : "");
        ngx_http_idem_admin_quoted(&t, &store[i]->name);
    }

    ngx_http_idem_text(&t, "],\"addresses\":[\"records/<store>\","
                       "\"records/<store>/<id>\",\"events\",\"id\","
                       "\"health\"]}\n");

    return ngx_http_idem_admin_send(r, NGX_HTTP_OK, &t);
}


void *
ngx_http_idem_admin_job(ngx_http_request_t *r, size_t size,
    ngx_int_t (*run)(ngx_http_idem_job_t *job))
{
    ngx_http_cleanup_t   *cln;
    ngx_http_idem_job_t  *job;

    job = ngx_pcalloc(r->pool, size);
    cln = ngx_http_cleanup_add(r, 0);

    if (job == NULL || cln == NULL) {
        return NULL;
    }

    cln->handler = ngx_http_idem_admin_cleanup;
    cln->data = job;

    job->request = r;
    job->run = run;

    job->event.handler = ngx_http_idem_admin_event_handler;
    job->event.data = job;
    job->event.log = r->connection->log;

    return job;
}


ngx_int_t
ngx_http_idem_admin_start(void *data)
{
    ngx_http_idem_job_t  *job = data;

    job->request->main->count++;
    job->request->read_event_handler = ngx_http_test_reading;

    ngx_http_idem_admin_run(job);

    return NGX_DONE;
}


ngx_int_t
ngx_http_idem_admin_ask(ngx_http_idem_job_t *job,
    ngx_http_idem_store_t *store, ngx_http_idem_op_e kind, u_char *id,
    ngx_http_idem_list_t *list, ngx_http_idem_trail_t *trail)
{
    if (ngx_http_idem_admin_op(job, store, kind, id, list) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    job->op.trail = trail;

    return ngx_http_idem_store_submit(&job->op);
}


ngx_int_t
ngx_http_idem_admin_ask_remove(ngx_http_idem_job_t *job,
    ngx_http_idem_store_t *store, u_char *id, ngx_http_idem_state_e state,
    uint64_t time, ngx_http_idem_list_t *list)
{
    if (ngx_http_idem_admin_op(job, store, NGX_HTTP_IDEM_OP_REMOVE, id, list)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    job->op.listed_state = state;
    job->op.listed_time = time;

    return ngx_http_idem_store_submit(&job->op);
}


static ngx_int_t
ngx_http_idem_admin_op(ngx_http_idem_job_t *job,
    ngx_http_idem_store_t *store, ngx_http_idem_op_e kind, u_char *id,
    ngx_http_idem_list_t *list)
{
    ngx_http_idem_op_t  *op;

    op = &job->op;

    ngx_memzero(op, sizeof(ngx_http_idem_op_t));

    op->kind = kind;
    op->store = store;
    op->list = list;
    op->pool = job->pool ? job->pool : job->request->pool;
    op->log = job->request->connection->log;
    op->handler = ngx_http_idem_admin_answered;
    op->data = job;

    if (id) {
        ngx_memcpy(op->id, id, NGX_HTTP_IDEM_ID_LEN);
    }

    if (list
        && ngx_array_init(&list->entries, op->pool, 16,
                          sizeof(ngx_http_idem_entry_t))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    job->asked = 1;

    return NGX_OK;
}


static void
ngx_http_idem_admin_run(ngx_http_idem_job_t *job)
{
    ngx_int_t  rc;

    rc = job->run(job);

    if (rc != NGX_AGAIN) {
        ngx_http_finalize_request(job->request, rc);
    }
}


/*
 * not while the content handler runs: the first of the posted requests may end
 * the request
 */

static void
ngx_http_idem_admin_resume(ngx_http_idem_job_t *job)
{
    ngx_connection_t  *c;

    c = job->request->connection;

    ngx_http_idem_admin_run(job);
    ngx_http_run_posted_requests(c);
}


static void
ngx_http_idem_admin_answered(ngx_http_idem_op_t *op)
{
    ngx_http_idem_admin_resume(op->data);
}


static void
ngx_http_idem_admin_event_handler(ngx_event_t *ev)
{
    ngx_http_idem_admin_resume(ev->data);
}


/* the request ends; its client may have gone */

static void
ngx_http_idem_admin_cleanup(void *data)
{
    ngx_http_idem_job_t  *job = data;

    ngx_http_idem_store_cancel(&job->op);

    ngx_housekeeping_stop(&job->event);

    if (job->pool) {
        ngx_destroy_pool(job->pool);
        job->pool = NULL;
    }
}


void
ngx_http_idem_admin_text(ngx_http_request_t *r, ngx_http_idem_text_t *t)
{
    ngx_memzero(t, sizeof(ngx_http_idem_text_t));

    t->type = "application/json";
    t->pool = r->pool;
    t->last = &t->first;
}


ngx_int_t
ngx_http_idem_admin_error(ngx_http_request_t *r, ngx_uint_t status,
    const char *code, const char *fmt, ...)
{
    u_char                message[NGX_HTTP_IDEM_ADMIN_MESSAGE];
    va_list               args;
    ngx_str_t             text;
    ngx_http_idem_text_t  t;

    va_start(args, fmt);
    text.data = message;
    text.len = ngx_vslprintf(message, message + sizeof(message), fmt, args)
               - message;
    va_end(args);

    ngx_http_idem_admin_text(r, &t);

    ngx_http_idem_text(&t, "{\"ok\":false,\"error\":{\"code\":\"%s\"", code);
    ngx_http_idem_admin_string(&t, "message", &text);
    ngx_http_idem_text(&t, "}}\n");

    return ngx_http_idem_admin_send(r, status, &t);
}


ngx_int_t
ngx_http_idem_admin_send(ngx_http_request_t *r, ngx_uint_t status,
    ngx_http_idem_text_t *t)
{
    ngx_int_t  rc;

    if (t->failed || t->buf == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    t->buf->last_buf = (r == r->main) ? 1 : 0;
    t->buf->last_in_chain = 1;

    rc = ngx_http_idem_admin_header(r, status, t->type, t->len);

    if (rc != NGX_ERROR && rc <= NGX_OK && !r->header_only) {
        rc = ngx_http_output_filter(r, t->first);
    }

    /* NGX_AGAIN: nginx sends the rest once the request is finalized */

    return (rc == NGX_AGAIN) ? NGX_OK : rc;
}


/* "len" is -1 if it is not known */

ngx_int_t
ngx_http_idem_admin_header(ngx_http_request_t *r, ngx_uint_t status,
    const char *type, off_t len)
{
    r->headers_out.content_type.data = (u_char *) type;
    r->headers_out.content_type.len = ngx_strlen(type);
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;
    r->headers_out.status = status;
    r->headers_out.content_length_n = len;

    /* nothing here has a version: 412 would be a lie after a deletion */
    r->disable_not_modified = 1;

    return ngx_http_send_header(r);
}
