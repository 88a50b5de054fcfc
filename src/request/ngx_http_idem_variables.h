
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* Numbers of the variables, and the part of their handler that is apart. */


#ifndef _NGX_HTTP_IDEM_VARIABLES_H_INCLUDED_
#define _NGX_HTTP_IDEM_VARIABLES_H_INCLUDED_


typedef enum {
    NGX_HTTP_IDEM_VAR_STATUS = 0,
    NGX_HTTP_IDEM_VAR_KEY,
    NGX_HTTP_IDEM_VAR_KEY_HASH,
    NGX_HTTP_IDEM_VAR_RECORD,
    NGX_HTTP_IDEM_VAR_FINGERPRINT,
    NGX_HTTP_IDEM_VAR_REPLAYED,
    NGX_HTTP_IDEM_VAR_CONFLICT,
    NGX_HTTP_IDEM_VAR_ORIGINAL_TIME,
    NGX_HTTP_IDEM_VAR_AGE,
    NGX_HTTP_IDEM_VAR_WAIT_TIME,
    NGX_HTTP_IDEM_VAR_STORE_TIME,

    /* ..._variables_answer.c */
    NGX_HTTP_IDEM_VAR_ERROR_CODE,
    NGX_HTTP_IDEM_VAR_ERROR_TYPE,
    NGX_HTTP_IDEM_VAR_ERROR_MESSAGE,
    NGX_HTTP_IDEM_VAR_RETRYABLE,
    NGX_HTTP_IDEM_VAR_RETRY_AFTER,
    NGX_HTTP_IDEM_VAR_DIFF_JSON,
    NGX_HTTP_IDEM_VAR_DIFF_TEXT_JSON,
    NGX_HTTP_IDEM_VAR_KEY_JSON,
    NGX_HTTP_IDEM_VAR_ORIGINAL_TIME_MS,
    NGX_HTTP_IDEM_VAR_ORIGINAL_FINGERPRINT,
    NGX_HTTP_IDEM_VAR_LAYER,
    NGX_HTTP_IDEM_VAR_REPLAY_COUNT,
    NGX_HTTP_IDEM_VAR_ACTIVITY_COUNT,
    NGX_HTTP_IDEM_VAR_ACTIVITY_AGE
} ngx_http_idem_var_e;


/* ..._variables_answer.c: "value" stays empty where the variable has none */
ngx_int_t ngx_http_idem_variable_answer(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, uintptr_t data, ngx_str_t *value);


#endif /* _NGX_HTTP_IDEM_VARIABLES_H_INCLUDED_ */
