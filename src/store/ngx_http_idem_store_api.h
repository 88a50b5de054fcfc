
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * For backends that are modules of their own: the functions of this module
 * that they may call, in a table that the ngx_module_t of this module leads to.
 *
 * A module finds it by the name of this one among those of the configuration
 * that is read, and not by symbols.  After a file was replaced, two versions of
 * this module may be in one process, of which symbols lead to the older one.
 * Structures that both know have to be the same: the sizes tell.
 *
 * A part of ..._store.h, which includes it.
 */


#ifndef _NGX_HTTP_IDEM_STORE_API_H_INCLUDED_
#define _NGX_HTTP_IDEM_STORE_API_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_IDEM_STORE_API_VERSION  6


typedef struct {
    ngx_uint_t     version;
    size_t         op_size;
    size_t         store_size;

    /* a backend more; one of the same name takes the place of the old one */
    ngx_int_t    (*add)(const ngx_http_idem_backend_t *backend);

    /* for its block: messages, and slots of its commands */
    char        *(*wrong)(ngx_conf_t *cf, ngx_http_idem_store_t *store,
                          const char *wrong);
    char        *(*not_found)(ngx_conf_t *cf, ngx_http_idem_store_t *store,
                              const char *directive, ngx_str_t *name,
                              u_char *file, ngx_uint_t line);
    char        *(*password)(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
    char        *(*password_file)(ngx_conf_t *cf, ngx_command_t *cmd,
                                  void *conf);

    void         (*doubt)(ngx_http_idem_store_t *store, ngx_uint_t now,
                          ngx_http_idem_concerns_pt concerns, void *data);

    /* what it has in common with others that are elsewhere */
    const ngx_http_idem_remote_functions_t
                  *remote;

    void         (*claim_encode)(u_char *p,
                                 const ngx_http_idem_claim_t *claim);
    ngx_int_t    (*claim_decode)(const u_char *p, size_t len,
                                 ngx_http_idem_claim_t *claim);
    void         (*label)(const ngx_str_t *details, ngx_http_idem_label_e kind,
                          ngx_str_t *value);

    void         (*expired)(ngx_http_idem_store_t *store,
                            ngx_http_idem_expired_t *expired);
} ngx_http_idem_store_api_t;


extern const ngx_http_idem_store_api_t  ngx_http_idem_store_api;


/* where the table is in an ngx_module_t, if it is the right one */
#define ngx_http_idem_store_api_of(module)                                    \
    ((const ngx_http_idem_store_api_t *) (module)->spare_hook0)

/* in place of NGX_MODULE_V1_PADDING */
#define NGX_HTTP_IDEM_STORE_API_PADDING                                       \
    (uintptr_t) &ngx_http_idem_store_api, 0, 0, 0, 0, 0, 0, 0


#endif /* _NGX_HTTP_IDEM_STORE_API_H_INCLUDED_ */
