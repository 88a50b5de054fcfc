
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Shows or deletes one record or many.
 *
 * Many records are read from the store in slices.  After some slices that
 * completed at once, the request pauses so that the worker can serve others.
 * After a time limit it responds with the records so far and a cursor.  The
 * cursor of a page that ends within a slice has the records of that slice which
 * were shown: the slice is read again, and may have lost some and reach further
 * by then.
 *
 * Called by the admin handler; calls the store.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_admin.h"


/* slices per iteration of the event loop */
#define NGX_HTTP_IDEM_ADMIN_TURN       4

/* time limit of a page, ms */
#define NGX_HTTP_IDEM_ADMIN_TIME       2000

#define NGX_HTTP_IDEM_ADMIN_POOL_SIZE  4096


static ngx_int_t ngx_http_idem_admin_step(ngx_http_idem_job_t *job);
static ngx_int_t ngx_http_idem_admin_slice(ngx_http_idem_admin_t *a);
static ngx_int_t ngx_http_idem_admin_sliced(ngx_http_idem_admin_t *a);
static ngx_uint_t ngx_http_idem_admin_is_seen(ngx_http_idem_admin_t *a,
    u_char *id);
static void ngx_http_idem_admin_see(ngx_http_idem_admin_t *a, u_char *id);
static ngx_int_t ngx_http_idem_admin_next_entry(ngx_http_idem_admin_t *a);
static void ngx_http_idem_admin_add(ngx_http_idem_admin_t *a,
    ngx_http_idem_entry_t *entry);
static void ngx_http_idem_admin_deleted(ngx_http_idem_admin_t *a,
    u_char *id, ngx_http_idem_entry_t *entry);
static ngx_int_t ngx_http_idem_admin_end(ngx_http_idem_admin_t *a);
static ngx_int_t ngx_http_idem_admin_one(ngx_http_idem_admin_t *a);
static ngx_int_t ngx_http_idem_admin_one_remove(ngx_http_idem_admin_t *a);
static ngx_int_t ngx_http_idem_admin_failed(ngx_http_idem_admin_t *a);


ngx_int_t
ngx_http_idem_admin_records(ngx_http_request_t *r,
    ngx_http_idem_store_t *store, ngx_http_idem_admin_query_t *q)
{
    ngx_http_idem_admin_t  *a;

    a = ngx_http_idem_admin_job(r, sizeof(ngx_http_idem_admin_t),
                                ngx_http_idem_admin_step);
    if (a == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    a->store = store;
    a->query = *q;
    a->remove = (r->method == NGX_HTTP_DELETE);
    a->start = ngx_current_msec;

    a->next_len = q->cursor.len;
    ngx_memcpy(a->next, q->cursor.data, q->cursor.len);

    ngx_http_idem_admin_text(r, &a->text);

    return ngx_http_idem_admin_start(a);
}


static ngx_int_t
ngx_http_idem_admin_step(ngx_http_idem_job_t *job)
{
    ngx_int_t               rc;
    ngx_http_idem_admin_t  *a;

    a = (ngx_http_idem_admin_t *) job;

    if (a->query.one) {
        return ngx_http_idem_admin_one(a);
    }

    for ( ;; ) {

        if (a->job.pool == NULL) {
            rc = ngx_http_idem_admin_slice(a);

            if (rc != NGX_OK) {
                return rc;
            }
        }

        if (job->asked && job->op.kind == NGX_HTTP_IDEM_OP_LIST) {
            job->asked = 0;

            if (ngx_http_idem_admin_sliced(a) != NGX_OK) {
                return ngx_http_idem_admin_failed(a);
            }
        }

        rc = ngx_http_idem_admin_next_entry(a);

        if (rc != NGX_DECLINED) {
            return rc;
        }

        /* the slice is done */

        ngx_destroy_pool(a->job.pool);
        a->job.pool = NULL;
        a->query.seen.len = 0;

        if (a->next_len == 0
            || a->n >= a->query.limit
            || ngx_current_msec - a->start > NGX_HTTP_IDEM_ADMIN_TIME)
        {
            return ngx_http_idem_admin_end(a);
        }

        if (++a->slices >= NGX_HTTP_IDEM_ADMIN_TURN) {
            a->slices = 0;
            ngx_add_timer(&a->job.event, 1);
            return NGX_AGAIN;
        }
    }
}


static ngx_int_t
ngx_http_idem_admin_slice(ngx_http_idem_admin_t *a)
{
    a->job.pool = ngx_create_pool(NGX_HTTP_IDEM_ADMIN_POOL_SIZE,
                                  a->job.request->connection->log);
    if (a->job.pool == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_memcpy(a->cursor, a->next, a->next_len);
    a->cursor_len = a->next_len;

    a->list.cursor.data = a->cursor;
    a->list.cursor.len = a->cursor_len;

    return ngx_http_idem_admin_ask(&a->job, a->store, NGX_HTTP_IDEM_OP_LIST,
                                   NULL, &a->list, NULL);
}


/* what was shown is left out of the slice */

static ngx_int_t
ngx_http_idem_admin_sliced(ngx_http_idem_admin_t *a)
{
    ngx_uint_t              i, n;
    ngx_http_idem_entry_t  *entry;

    if (a->job.op.result != NGX_HTTP_IDEM_OK
        || a->list.cursor.len >= sizeof(a->next))
    {
        return NGX_ERROR;
    }

    a->entry = 0;
    a->next_len = a->list.cursor.len;

    if (a->next_len) {
        ngx_memcpy(a->next, a->list.cursor.data, a->next_len);
    }

    n = 0;
    a->seen_len = 0;
    entry = a->list.entries.elts;

    for (i = 0; i < a->list.entries.nelts; i++) {

        if (ngx_http_idem_admin_is_seen(a, entry[i].id)) {
            ngx_http_idem_admin_see(a, entry[i].id);
            continue;
        }

        entry[n++] = entry[i];
    }

    a->list.entries.nelts = n;

    return NGX_OK;
}


static ngx_uint_t
ngx_http_idem_admin_is_seen(ngx_http_idem_admin_t *a, u_char *id)
{
    u_char      text[NGX_HTTP_IDEM_SEEN_LEN];
    size_t      i;
    ngx_str_t  *seen;

    seen = &a->query.seen;

    if (seen->len == 0) {
        return 0;
    }

    (void) ngx_hex_dump(text, id, NGX_HTTP_IDEM_SEEN_LEN / 2);

    for (i = 0; i < seen->len; i += NGX_HTTP_IDEM_SEEN_LEN) {
        if (ngx_memcmp(seen->data + i, text, NGX_HTTP_IDEM_SEEN_LEN) == 0) {
            return 1;
        }
    }

    return 0;
}


static void
ngx_http_idem_admin_see(ngx_http_idem_admin_t *a, u_char *id)
{
    if (a->seen_len < sizeof(a->seen)) {
        (void) ngx_hex_dump(a->seen + a->seen_len, id,
                            NGX_HTTP_IDEM_SEEN_LEN / 2);
        a->seen_len += NGX_HTTP_IDEM_SEEN_LEN;
    }
}


/* NGX_DECLINED: the slice has no more entries */

static ngx_int_t
ngx_http_idem_admin_next_entry(ngx_http_idem_admin_t *a)
{
    ngx_int_t                     rc;
    ngx_uint_t                    as_listed;
    ngx_http_idem_entry_t        *entry;
    ngx_http_idem_admin_query_t  *q;

    q = &a->query;
    entry = a->list.entries.elts;

    /* a tenant's or an actor's records go, whatever became of them */

    as_listed = q->state || q->older;

    for ( /* void */ ; a->entry < a->list.entries.nelts; a->entry++) {

        if (!a->job.asked) {

            if (!ngx_http_idem_admin_match(q, a->store, &entry[a->entry])) {
                continue;
            }

            /* a slice too large for a cursor is shown up to its end */

            if (a->n >= q->limit && a->seen_len < sizeof(a->seen)) {
                return ngx_http_idem_admin_end(a);
            }

            if (!a->remove || q->dry_run) {
                ngx_http_idem_admin_see(a, entry[a->entry].id);
                ngx_http_idem_admin_add(a, &entry[a->entry]);
                continue;
            }

            rc = ngx_http_idem_admin_ask_remove(&a->job, a->store,
                                 entry[a->entry].id,
                                 as_listed ? entry[a->entry].state : 0,
                                 as_listed ? entry[a->entry].claim.time : 0,
                                 &a->removed);
            if (rc != NGX_OK) {
                return rc;
            }
        }

        a->job.asked = 0;

        if (a->job.op.result == NGX_HTTP_IDEM_OK) {
            ngx_http_idem_admin_deleted(a, entry[a->entry].id,
                                        &entry[a->entry]);
            ngx_http_idem_admin_add(a, &entry[a->entry]);

        } else if (a->job.op.result == NGX_HTTP_IDEM_ERROR
                   && !a->job.op.bad_record)
        {
            return ngx_http_idem_admin_failed(a);
        }
    }

    return NGX_DECLINED;
}


static void
ngx_http_idem_admin_add(ngx_http_idem_admin_t *a,
    ngx_http_idem_entry_t *entry)
{
    ngx_http_idem_text(&a->text, a->n++ ? ",\n" : "{\"records\":[");
    ngx_http_idem_admin_entry(&a->text, a->store, entry);
}


/*
 * Writes an event and a line to the error log with the user who deleted the
 * record.  "entry" is NULL if the store's reply was lost.
 */

static void
ngx_http_idem_admin_deleted(ngx_http_idem_admin_t *a, u_char *id,
    ngx_http_idem_entry_t *entry)
{
    ngx_str_t                 *who, labels[NGX_HTTP_IDEM_LABEL_N];
    ngx_uint_t                 i;
    ngx_http_request_t        *r;
    ngx_http_idem_log_t       *log;
    ngx_http_idem_line_t       line;
    ngx_http_idem_loc_conf_t  *conf;

    r = a->job.request;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    /* a store that no location of this nginx uses has no log */

    log = a->store->log ? a->store->log : conf->log;

    who = r->headers_in.user.len ? &r->headers_in.user
                                 : &r->connection->addr_text;

    if (ngx_http_idem_line_start(&line, log,
                                 NGX_HTTP_IDEM_EVENT_RECORD_DELETED,
                                 &a->store->name)
        == NGX_OK)
    {
        ngx_memzero(labels, sizeof(labels));

        if (entry) {
            ngx_http_idem_admin_labels(a->store, entry, labels);
        }

        for (i = 0; i < NGX_HTTP_IDEM_LABEL_HOST; i++) {
            if (labels[i].len) {
                ngx_http_idem_line_string(&line, ngx_http_idem_label_names[i],
                                          &labels[i]);
            }
        }

        ngx_http_idem_line_hex(&line, "record", id, NGX_HTTP_IDEM_ID_LEN);
        ngx_http_idem_line_string(&line, "by", who);
        ngx_http_idem_line_write(&line);
    }

    ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                  "idempotency: a record of store \"%V\" was deleted by "
                  "\"%V\", record %*xs", &a->store->name, who, (size_t) 8, id);
}


/* ends a page; the next one starts with this slice again, or with the next */

static ngx_int_t
ngx_http_idem_admin_end(ngx_http_idem_admin_t *a)
{
    u_char     *p, plain[NGX_HTTP_IDEM_CURSOR_MAX + 1 + sizeof(a->seen)];
    u_char      text[ngx_base64_encoded_length(sizeof(plain))];
    ngx_str_t   src, dst;

    if (a->job.pool) {
        p = ngx_cpymem(plain, a->cursor, a->cursor_len);
        *p++ = '~';
        p = ngx_cpymem(p, a->seen, a->seen_len);

    } else {
        p = ngx_cpymem(plain, a->next, a->next_len);
    }

    src.data = plain;
    src.len = p - plain;

    if (a->n == 0) {
        ngx_http_idem_text(&a->text, "{\"records\":[");
    }

    ngx_http_idem_text(&a->text, "]");

    if (a->remove) {
        ngx_http_idem_text(&a->text, ",\"deleted\":%ui,\"matched\":%ui,"
                           "\"dry_run\":%s",
                           a->query.dry_run ? 0 : a->n, a->n,
                           a->query.dry_run ? "true" : "false");
    }

    if (src.len) {
        dst.data = text;
        ngx_encode_base64url(&dst, &src);
        ngx_http_idem_text(&a->text, ",\"cursor\":\"");
        ngx_http_idem_admin_long(&a->text, &dst);
        ngx_http_idem_text(&a->text, "\"");
    }

    ngx_http_idem_text(&a->text, "}\n");

    return ngx_http_idem_admin_send(a->job.request, NGX_HTTP_OK, &a->text);
}


static ngx_int_t
ngx_http_idem_admin_one(ngx_http_idem_admin_t *a)
{
    ngx_int_t               rc;
    ngx_str_t              *host;
    ngx_uint_t              removes;
    ngx_http_idem_entry_t  *entry;

    removes = a->remove && !a->query.dry_run;

    if (!a->job.asked) {
        rc = ngx_http_idem_admin_ask(&a->job, a->store, NGX_HTTP_IDEM_OP_GET,
                                     a->query.id, &a->list, NULL);
        if (rc != NGX_OK) {
            return rc;
        }
    }

    if (removes && a->job.op.kind == NGX_HTTP_IDEM_OP_GET) {
        rc = ngx_http_idem_admin_one_remove(a);

        if (rc != NGX_OK) {
            return rc;
        }
    }

    if (a->job.op.result == NGX_HTTP_IDEM_GONE) {
        host = &a->query.host;

        return ngx_http_idem_admin_error(a->job.request, NGX_HTTP_NOT_FOUND,
                      "RECORD_UNKNOWN", "There is no such record in store "
                      "\"%V\": it never was, it expired, or it was deleted."
                      "%s%s%V%s", &a->store->name,
                      removes ? " A host that still has to store it will not."
                              : "",
                      host->len ? " The scope was \"" : "", host,
                      host->len ? "\", the host of this request: name another "
                                  "with \"scope\"." : "");
    }

    /* none: the reply was lost, and with it the record's data */

    entry = a->list.entries.nelts ? a->list.entries.elts : NULL;

    if (a->job.op.result == NGX_HTTP_IDEM_ERROR
        || (entry == NULL && !removes))
    {
        return ngx_http_idem_admin_failed(a);
    }

    if (!a->remove) {
        ngx_http_idem_admin_entry(&a->text, a->store, entry);
        ngx_http_idem_text(&a->text, "\n");

        return ngx_http_idem_admin_send(a->job.request, NGX_HTTP_OK,
                                        &a->text);
    }

    if (removes) {
        ngx_http_idem_admin_deleted(a, a->query.id, entry);
    }

    if (entry) {
        ngx_http_idem_admin_add(a, entry);

    } else {
        ngx_http_idem_text(&a->text, "{\"records\":[");
        a->n = 1;
    }

    return ngx_http_idem_admin_end(a);
}


/*
 * Removes the record that was found, and no later one of its key: a copy of
 * the removal that a connection delays may arrive when the request has run
 * again.  A record that can't be read is removed whatever it is.  NGX_OK: the
 * operation is complete, or the store does not answer.
 */

static ngx_int_t
ngx_http_idem_admin_one_remove(ngx_http_idem_admin_t *a)
{
    uint64_t                time;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_entry_t  *entry;

    op = &a->job.op;
    time = 0;

    if (op->result == NGX_HTTP_IDEM_ERROR && !op->bad_record) {
        return NGX_OK;
    }

    if (op->result == NGX_HTTP_IDEM_GONE) {
        time = NGX_HTTP_IDEM_LISTED_NONE;

    } else if (op->result == NGX_HTTP_IDEM_FOUND && a->list.entries.nelts) {
        entry = a->list.entries.elts;
        time = entry->claim.time;
    }

    return ngx_http_idem_admin_ask_remove(&a->job, a->store, a->query.id, 0,
                                          time, &a->list);
}


static ngx_int_t
ngx_http_idem_admin_failed(ngx_http_idem_admin_t *a)
{
    ngx_http_idem_op_t  *op;

    op = &a->job.op;

    if (op->denied) {
        return ngx_http_idem_admin_error(a->job.request, NGX_HTTP_FORBIDDEN,
                      "STORE_FORBIDDEN", "Store \"%V\" refuses: %s. %ui "
                      "records were %s before that.", &a->store->name,
                      op->error ? op->error : "a right is missing", a->n,
                      a->remove && !a->query.dry_run ? "deleted" : "found");
    }

    if (op->bad_record) {
        return ngx_http_idem_admin_error(a->job.request,
                      a->query.one ? NGX_HTTP_CONFLICT : NGX_HTTP_BAD_REQUEST,
                      a->query.one ? "RECORD_UNREADABLE" : "CURSOR_INVALID",
                      "Store \"%V\": %s.", &a->store->name,
                      op->error ? op->error : "it is not a record");
    }

    return ngx_http_idem_admin_error(a->job.request,
                      NGX_HTTP_SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE",
                      "Store \"%V\" does not answer: %s. %ui records were "
                      "%s before that.", &a->store->name,
                      op->error ? op->error : "no reply", a->n,
                      a->remove && !a->query.dry_run ? "deleted" : "found");
}
