
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * For backends that are separate nginx modules: a table of the functions of
 * this module that they may call.  The ngx_module_t of this module points to
 * the table.
 *
 * Such a module finds the table by the name of this module among the modules
 * of the configuration that is read, and not by symbols.  After the file of
 * this module was replaced and nginx reloaded, one process may have two
 * versions of it loaded, and symbols resolve to the older one.  The sizes in
 * the table verify that both modules were compiled with the same structures.
 *
 * ..._store.h includes this header; do not include it directly.
 */


#ifndef _NGX_HTTP_IDEM_STORE_API_H_INCLUDED_
#define _NGX_HTTP_IDEM_STORE_API_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_IDEM_STORE_API_VERSION  11


/* the type of each pointer is that of the function */
#define ngx_http_idem_api_pt(function, name)                                  \
    __typeof__(function) *name


typedef struct {
    ngx_uint_t     version;
    size_t         op_size;
    size_t         store_size;

    /* registers a backend; replaces one of the same name */
    ngx_int_t    (*add)(const ngx_http_idem_backend_t *backend);

    /* for its block: error messages, and slots for its commands */
    ngx_http_idem_api_pt(ngx_http_idem_store_wrong, wrong);
    ngx_http_idem_api_pt(ngx_http_idem_store_not_found, not_found);
    ngx_http_idem_api_pt(ngx_http_idem_store_password, password);
    ngx_http_idem_api_pt(ngx_http_idem_store_password_file, password_file);

    ngx_http_idem_api_pt(ngx_http_idem_store_suspect_loss, suspect_loss);

    /* the code that remote backends share */
    ngx_http_idem_api_pt(ngx_http_idem_remote_init, init);
    ngx_http_idem_api_pt(ngx_http_idem_remote_exit, exit);
    ngx_http_idem_api_pt(ngx_http_idem_remote_ask, ask);
    ngx_http_idem_api_pt(ngx_http_idem_remote_watch, watch);
    ngx_http_idem_api_pt(ngx_http_idem_remote_cancel, cancel);
    ngx_http_idem_api_pt(ngx_http_idem_op_timer, timer);
    ngx_http_idem_api_pt(ngx_http_idem_remote_over, over);
    ngx_http_idem_api_pt(ngx_http_idem_remote_replied, replied);
    ngx_http_idem_api_pt(ngx_http_idem_remote_fail, fail);
    ngx_http_idem_api_pt(ngx_http_idem_remote_complete, complete);
    ngx_http_idem_api_pt(ngx_http_idem_remote_message, message);

    ngx_http_idem_api_pt(ngx_http_idem_claim_encode, claim_encode);
    ngx_http_idem_api_pt(ngx_http_idem_claim_decode, claim_decode);
    ngx_http_idem_api_pt(ngx_http_idem_label, label);

    ngx_http_idem_api_pt(ngx_http_idem_op_entry, entry);
    ngx_http_idem_api_pt(ngx_http_idem_entry_details, entry_details);
    ngx_http_idem_api_pt(ngx_http_idem_store_expired, expired);
} ngx_http_idem_store_api_t;


extern const ngx_http_idem_store_api_t  ngx_http_idem_store_api;


/* the table of an ngx_module_t, if that is this module */
#define ngx_http_idem_store_api_of(module)                                    \
    ((const ngx_http_idem_store_api_t *) (module)->spare_hook0)

/* takes the place of NGX_MODULE_V1_PADDING */
#define NGX_HTTP_IDEM_STORE_API_PADDING                                       \
    (uintptr_t) &ngx_http_idem_store_api, 0, 0, 0, 0, 0, 0, 0


#endif /* _NGX_HTTP_IDEM_STORE_API_H_INCLUDED_ */
