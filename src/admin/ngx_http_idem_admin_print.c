
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Prints a record as JSON: its state, times, labels and size; never its body,
 * headers, key or token.
 *
 * Called by code that responds with records.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_admin.h"
#include "request/ngx_http_idem_request.h"
#include "response/ngx_http_idem_response.h"


/* maximum length of a string in a response */
#define NGX_HTTP_IDEM_ADMIN_STRING  256


static void ngx_http_idem_admin_time(ngx_http_idem_text_t *t,
    const char *name, uint64_t ms);


const char  *ngx_http_idem_label_names[] = {
    "group", "tenant", "actor", "host"
};


static const char  *ngx_http_idem_reason_names[] = {
    "none", "outcome_unknown", "too_large", "stream", "no_room", "evicted",
    "deleted"
};


void
ngx_http_idem_admin_entry(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, ngx_http_idem_entry_t *entry)
{
    uint64_t    now, original;
    ngx_str_t   labels[NGX_HTTP_IDEM_LABEL_N];
    ngx_uint_t  i, replays;

    now = ngx_http_idem_history_now();

    ngx_http_idem_text(t, "{\"record\":\"%*xs\"",
                       (size_t) NGX_HTTP_IDEM_ID_LEN, entry->id);

    ngx_http_idem_admin_string(t, "store", &store->name);

    ngx_http_idem_text(t, ",\"state\":\"%s\"",
                       ngx_http_idem_state_names[entry->state]);

    if (entry->state == NGX_HTTP_IDEM_UNUSABLE) {
        ngx_http_idem_text(t, ",\"reason\":\"%s\"",
                   entry->reason <= NGX_HTTP_IDEM_REASON_DELETED
                       ? ngx_http_idem_reason_names[entry->reason] : "other");
    }

    if (entry->status) {
        ngx_http_idem_text(t, ",\"status\":%ui", entry->status);
    }

    ngx_http_idem_admin_labels(store, entry, labels);

    for (i = 0; i < NGX_HTTP_IDEM_LABEL_N; i++) {
        ngx_http_idem_admin_string(t, ngx_http_idem_label_names[i],
                                   &labels[i]);
    }

    ngx_http_idem_admin_time(t, "created", entry->claim.time);

    ngx_http_idem_text(t, ",\"age_ms\":%uL",
                       now > entry->claim.time ? now - entry->claim.time : 0);

    if (entry->state == NGX_HTTP_IDEM_IN_PROGRESS) {
        ngx_http_idem_text(t, ",\"lease_left_ms\":%M", entry->left);

    } else {
        ngx_http_idem_text(t, ",\"ttl_left_ms\":%M", entry->left);
        ngx_http_idem_admin_time(t, "expires", now + entry->left);
    }

    if (entry->state == NGX_HTTP_IDEM_COMPLETED) {
        (void) ngx_http_idem_replays_read(entry->id, &replays, &original);

        /* replays of an earlier response do not count */

        ngx_http_idem_text(t, ",\"replays\":%ui",
                           original >= entry->claim.time ? replays : 0);
    }

    ngx_http_idem_text(t, ",\"size\":%uz,\"hold\":%s,\"kept_here\":%s,"
                       "\"fingerprint\":\"%*xs\"}",
                       entry->size, entry->hold ? "true" : "false",
                       entry->kept ? "true" : "false",
                       (size_t) NGX_HTTP_IDEM_FINGERPRINT_LEN,
                       entry->claim.fingerprint);
}


/* ISO 8601 */

static void
ngx_http_idem_admin_time(ngx_http_idem_text_t *t, const char *name,
    uint64_t ms)
{
    u_char  time[NGX_HTTP_IDEM_ISO_TIME_LEN];

    ngx_http_idem_iso_time(time, ms);

    ngx_http_idem_text(t, ",\"%s\":\"%*s.%03uLZ\"", name, sizeof(time) - 1,
                       time, ms % 1000);
}


/* prints a member unless it is empty */

void
ngx_http_idem_admin_string(ngx_http_idem_text_t *t, const char *name,
    ngx_str_t *s)
{
    if (s->len) {
        ngx_http_idem_text(t, ",\"%s\":", name);
        ngx_http_idem_admin_quoted(t, s);
    }
}


void
ngx_http_idem_admin_quoted(ngx_http_idem_text_t *t, ngx_str_t *s)
{
    u_char     buf[ngx_http_idem_json_quoted(NGX_HTTP_IDEM_ADMIN_STRING)];
    ngx_str_t  text;

    text.data = s->data;
    text.len = ngx_min(s->len, NGX_HTTP_IDEM_ADMIN_STRING);

    text.len = ngx_http_idem_json_quote(buf, &text) - buf;
    text.data = buf;

    ngx_http_idem_admin_long(t, &text);
}


void
ngx_http_idem_admin_long(ngx_http_idem_text_t *t, ngx_str_t *s)
{
    size_t  i;

    /* in parts, since ..._text() prints a limited length at once */

    for (i = 0; i < s->len; i += 512) {
        ngx_http_idem_text(t, "%*s", ngx_min(s->len - i, 512), s->data + i);
    }
}


void
ngx_http_idem_admin_word(ngx_http_idem_text_t *t, const char *name,
    const char *word)
{
    ngx_str_t  s;

    s.data = (u_char *) word;
    s.len = ngx_strlen(word);

    ngx_http_idem_admin_string(t, name, &s);
}


void
ngx_http_idem_admin_labels(ngx_http_idem_store_t *store,
    ngx_http_idem_entry_t *entry, ngx_str_t *labels)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_IDEM_LABEL_N; i++) {
        ngx_http_idem_label(&entry->details, i, &labels[i]);
    }

    /* records of the embedded store are this host's, with or without labels */

    if (labels[NGX_HTTP_IDEM_LABEL_HOST].len == 0 && store->layers == NULL) {
        labels[NGX_HTTP_IDEM_LABEL_HOST] = ngx_cycle->hostname;
    }
}
