
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The labels of a record: its group, tenant and actor, and the host of its
 * holder.
 *
 * The labels are stored in front of the details of a record, as one string
 * with them.  So every store that keeps details keeps labels, and a record
 * without labels takes no space for them:
 *
 *     "L"  1    length of what follows, up to the details  2
 *     each label: kind 1, length 1, text
 *
 * The bytes come from a store and are not trusted.  These are pure functions.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem_number.h"
#include "record/ngx_http_idem_record.h"


#define NGX_HTTP_IDEM_LABELS_MARK  'L'
#define NGX_HTTP_IDEM_LABELS_HEAD  3


static size_t ngx_http_idem_labels_len(const ngx_str_t *details);


size_t
ngx_http_idem_labels_size(const ngx_str_t *labels)
{
    size_t      size;
    ngx_uint_t  i;

    size = 0;

    for (i = 0; i < NGX_HTTP_IDEM_LABEL_N; i++) {
        if (labels[i].len) {
            size += 2 + ngx_min(labels[i].len, NGX_HTTP_IDEM_LABEL_MAX);
        }
    }

    return size ? NGX_HTTP_IDEM_LABELS_HEAD + size : 0;
}


u_char *
ngx_http_idem_labels_encode(u_char *p, const ngx_str_t *labels)
{
    size_t      size, len;
    ngx_uint_t  i;

    size = ngx_http_idem_labels_size(labels);

    if (size == 0) {
        return p;
    }

    size -= NGX_HTTP_IDEM_LABELS_HEAD;

    *p++ = NGX_HTTP_IDEM_LABELS_MARK;
    p = ngx_http_idem_put16(p, size);

    for (i = 0; i < NGX_HTTP_IDEM_LABEL_N; i++) {
        len = ngx_min(labels[i].len, NGX_HTTP_IDEM_LABEL_MAX);

        if (len) {
            *p++ = (u_char) i;
            *p++ = (u_char) len;
            p = ngx_cpymem(p, labels[i].data, len);
        }
    }

    return p;
}


/* length of the labels with their header, at most that of the details; 0:
   there are none */

static size_t
ngx_http_idem_labels_len(const ngx_str_t *details)
{
    size_t  len;

    if (details->len < NGX_HTTP_IDEM_LABELS_HEAD
        || details->data[0] != NGX_HTTP_IDEM_LABELS_MARK)
    {
        return 0;
    }

    len = NGX_HTTP_IDEM_LABELS_HEAD + ngx_http_idem_get16(details->data + 1);

    return ngx_min(len, details->len);
}


void
ngx_http_idem_label(const ngx_str_t *details, ngx_http_idem_label_e kind,
    ngx_str_t *value)
{
    u_char  *p, *last;

    ngx_str_null(value);

    p = details->data + NGX_HTTP_IDEM_LABELS_HEAD;
    last = details->data + ngx_http_idem_labels_len(details);

    while (last - p > 2) {

        if (last - p - 2 < p[1]) {
            return;
        }

        if (p[0] == kind) {
            value->data = p + 2;
            value->len = p[1];
            return;
        }

        p += 2 + p[1];
    }
}


void
ngx_http_idem_labels_skip(ngx_str_t *details)
{
    size_t  len;

    len = ngx_http_idem_labels_len(details);

    details->data += len;
    details->len -= len;
}
