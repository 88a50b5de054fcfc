
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_json.c src/canonical/ngx_http_idem_json_walk.c src/canonical/ngx_http_idem_json_pointer.c src/canonical/ngx_http_idem_json_members.c src/canonical/ngx_http_idem_json_@json@.c src/canonical/ngx_http_idem_json_paths.c src/canonical/ngx_http_idem_json_diff.c src/canonical/ngx_http_idem_canon.c src/canonical/ngx_http_idem_canon_close.c ; libs: -l@json@ -lcrypto */

/*
 * Two lists of paths, as they come from a store: a length of the first one in
 * two bytes, then both.  Whatever they are, what is told lies within them.
 */


#include "fuzz.h"

#include "canonical/ngx_http_idem_json_paths.h"
#include "canon.h"


typedef struct {
    ngx_str_t   one;
    ngx_str_t   two;
    ngx_uint_t  told;
} lists_t;


static void
within(lists_t *lists, const ngx_str_t *text)
{
    if (text->data == NULL || text->len == 0) {
        return;
    }

    fuzz_check((text->data >= lists->one.data
                && text->data + text->len
                   <= lists->one.data + lists->one.len)
               || (text->data >= lists->two.data
                   && text->data + text->len
                      <= lists->two.data + lists->two.len));
}


static void
tell(void *data, const ngx_http_idem_json_diff_t *diff)
{
    lists_t  *lists = data;

    lists->told++;

    within(lists, &diff->path);
    within(lists, &diff->old_text);
    within(lists, &diff->new_text);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t        n;
    lists_t       lists;
    ngx_uint_t    more;
    fuzz_input_t  in;

    in.p = data;
    in.len = size;

    n = fuzz_byte(&in) << 8;
    n |= fuzz_byte(&in);
    n = ngx_min(n, in.len);

    lists.one.data = fuzz_copy(in.p, n);
    lists.one.len = n;
    lists.two.data = fuzz_copy(in.p + n, in.len - n);
    lists.two.len = in.len - n;
    lists.told = 0;

    ngx_http_idem_json_diff(&lists.one, &lists.two, 9, tell, &lists, &more);
    fuzz_check(lists.told <= 9);

    free(lists.one.data);
    free(lists.two.data);

    return 0;
}
