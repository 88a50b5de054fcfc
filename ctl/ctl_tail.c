
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * tail: events as they happen.
 */


#include <stdio.h>
#include <string.h>

#include "ctl.h"


/* lines of a stream; "data: " goes, comments too */

static size_t
ctl_stream(char *p, size_t size, size_t n, void *data)
{
    char        *line, *end;
    ctl_text_t  *text = data;

    if (ctl_gather(p, size, n, text) != size * n) {
        return 0;
    }

    for (line = text->data; (end = strchr(line, '\n')) != NULL;
         line = end + 1)
    {
        if (strncmp(line, "data: ", 6) == 0) {
            fwrite(line + 6, 1, end + 1 - line - 6, stdout);
            fflush(stdout);
        }
    }

    text->len -= line - text->data;
    memmove(text->data, line, text->len + 1);

    return size * n;
}


int
ctl_tail(void)
{
    int         rc;
    long        status;
    CURLcode    code;
    ctl_text_t  path = { NULL, 0 }, text = { NULL, 0 };

    ctl_add(&path, "events");
    ctl_arg(&path, "key", o.key);
    ctl_arg(&path, "record", o.record);

    rc = ctl_address(path.data);

    if (rc != CTL_OK) {
        return rc;
    }

    curl_easy_setopt(ctl_curl, CURLOPT_WRITEFUNCTION, ctl_stream);
    curl_easy_setopt(ctl_curl, CURLOPT_WRITEDATA, &text);

    code = curl_easy_perform(ctl_curl);

    if (code != CURLE_OK) {
        ctl_say("%s: %s", o.url, curl_easy_strerror(code));
        return CTL_FAILED;
    }

    curl_easy_getinfo(ctl_curl, CURLINFO_RESPONSE_CODE, &status);

    if (status == 200) {
        return CTL_OK;
    }

    if (text.data == NULL) {
        ctl_add(&text, "");
    }

    return ctl_refused(status, &text);
}
