
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_json.c src/canonical/ngx_http_idem_json_walk.c src/canonical/ngx_http_idem_json_pointer.c src/canonical/ngx_http_idem_json_members.c src/canonical/ngx_http_idem_json_@json@.c src/canonical/ngx_http_idem_json_paths.c src/canonical/ngx_http_idem_json_diff.c src/canonical/ngx_http_idem_canon.c src/canonical/ngx_http_idem_canon_close.c ; libs: -l@json@ -lcrypto */

/*
 * The JSON walker: the answer and the digest do not depend on how the body is
 * cut, white space around it does not count, and an allocation that fails is
 * an error, not a crash.  A body differs from itself nowhere.
 */


#include "fuzz.h"

#include "canonical/ngx_http_idem_json.h"
#include "canonical/ngx_http_idem_json_paths.h"
#include "canon.h"


static ngx_str_t  excluded[] = { ngx_string("ts"), ngx_string("a") };
static ngx_str_t  wanted[] = { ngx_string("k"), ngx_string("a") };


static void
no_difference(void *data, const ngx_http_idem_json_diff_t *diff)
{
    fuzz_check(0);
}


static ngx_int_t
walk(const ngx_http_idem_json_options_t *options, const uint8_t *p,
    size_t len, size_t piece, u_char *digest)
{
    size_t                 n;
    u_char                *copy;
    ngx_int_t              rc;
    ngx_str_t              paths;
    ngx_uint_t             more;
    ngx_http_idem_json_t  *j;

    j = ngx_http_idem_json_create(options);
    if (j == NULL) {
        return NGX_ERROR;
    }

    while (len) {
        n = (piece && piece < len) ? piece : len;
        copy = fuzz_copy(p, n);
        ngx_http_idem_json_feed(j, copy, n);
        free(copy);
        p += n;
        len -= n;
    }

    rc = ngx_http_idem_json_done(j, digest);

    if (rc == NGX_OK) {
        for (n = 0; n < options->nwanted; n++) {
            fuzz_check(ngx_http_idem_json_member(j, n) != NULL);
        }

        if (options->detail) {
            ngx_http_idem_json_paths(j, &paths);

            if (paths.len) {
                fuzz_check(ngx_http_idem_json_diff(&paths, &paths, 9,
                                                 no_difference, NULL, &more)
                           == NGX_OK);
            }
        }
    }

    ngx_http_idem_json_destroy(j);

    return rc;
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    u_char                         one[DIGEST_LEN], two[DIGEST_LEN];
    u_char                        *spaced;
    ngx_int_t                      rc;
    ngx_uint_t                     how, fail;
    fuzz_input_t                   in;
    ngx_http_idem_json_options_t   options;


    in.p = data;
    in.len = size;
    how = fuzz_byte(&in);
    fail = fuzz_byte(&in);

    ngx_memzero(&options, sizeof(options));
    options.size = NGX_HTTP_IDEM_JSON_SIZE;
    options.depth = (how & 1) ? 4 : NGX_HTTP_IDEM_JSON_DEPTH;
    options.paths = (how & 2) ? 3 : NGX_HTTP_IDEM_JSON_PATHS;
    options.paths_size = NGX_HTTP_IDEM_JSON_PATHS_SIZE;
    options.secret = (u_char *) "0123456789abcdef0123456789abcdef";
    options.excluded = excluded;
    options.nexcluded = (how & 4) ? 2 : 0;
    options.wanted = wanted;
    options.nwanted = (how & 8) ? 2 : 0;
    options.detail = ((how >> 4) & 3) % 3;
    options.unordered = (how >> 6) & 1;

    rc = walk(&options, in.p, in.len, 0, one);

    fuzz_check(walk(&options, in.p, in.len, 1, two) == rc);
    fuzz_check(rc != NGX_OK || memcmp(one, two, DIGEST_LEN) == 0);

    spaced = malloc(in.len + 2);
    fuzz_check(spaced != NULL);
    spaced[0] = '\n';

    if (in.len) {
        memcpy(spaced + 1, in.p, in.len);
    }

    spaced[in.len + 1] = ' ';

    if (rc == NGX_OK) {
        fuzz_check(walk(&options, spaced, in.len + 2, 5, two) == NGX_OK);
        fuzz_check(memcmp(one, two, DIGEST_LEN) == 0);
    }

    free(spaced);

    allocations = (long) (fail & 63);
    rc = walk(&options, in.p, in.len, 0, two);
    allocations = -1;

    fuzz_check(rc != NGX_OK || memcmp(one, two, DIGEST_LEN) == 0);

    return 0;
}
