
/*
 * Where the handlers of a request stand among nginx's phases, and what it
 * takes to pass by them.
 *
 * nginx calls the handlers of a phase for every request of the server, through
 * a checker that knows the rules of the phase.  Ours look first whether the
 * request has anything to do with us, and if not pass it on at once: a
 * location without "idempotency" costs nothing that could be measured.  With
 * the checkers of nginx it would be one percent.
 *
 * Called once by the module when the configuration was read, and once when
 * nginx has made its table of phases of it.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ngx_http_idempotency.h"


static ngx_int_t ngx_http_idempotency_preaccess_phase(ngx_http_request_t *r,
    ngx_http_phase_handler_t *ph);
static ngx_int_t ngx_http_idempotency_access_phase(ngx_http_request_t *r,
    ngx_http_phase_handler_t *ph);
static ngx_int_t ngx_http_idempotency_precontent_phase(ngx_http_request_t *r,
    ngx_http_phase_handler_t *ph);


typedef struct {
    ngx_http_phases           phase;
    ngx_http_handler_pt       handler;
    ngx_http_phase_handler_pt checker;
} ngx_http_idempotency_stand_t;


static ngx_http_idempotency_stand_t  ngx_http_idempotency_stands[] = {

    { NGX_HTTP_PREACCESS_PHASE,
      ngx_http_idempotency_preaccess_handler,
      ngx_http_idempotency_preaccess_phase },

    { NGX_HTTP_ACCESS_PHASE,
      ngx_http_idempotency_access_handler,
      ngx_http_idempotency_access_phase },

    { NGX_HTTP_PRECONTENT_PHASE,
      ngx_http_idempotency_precontent_handler,
      ngx_http_idempotency_precontent_phase },

    { 0, NULL, NULL }
};


ngx_int_t
ngx_http_idempotency_phases_init(ngx_conf_t *cf)
{
    ngx_http_handler_pt           *h;
    ngx_http_core_main_conf_t     *cmcf;
    ngx_http_idempotency_stand_t  *stand;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    for (stand = ngx_http_idempotency_stands; stand->handler; stand++) {
        h = ngx_array_push(&cmcf->phases[stand->phase].handlers);
        if (h == NULL) {
            return NGX_ERROR;
        }

        *h = stand->handler;
    }

    return NGX_OK;
}


void
ngx_http_idempotency_phases_ready(ngx_cycle_t *cycle)
{
    ngx_http_phase_handler_t      *ph;
    ngx_http_core_main_conf_t     *cmcf;
    ngx_http_idempotency_stand_t  *stand;

    cmcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_core_module);

    for (ph = cmcf->phase_engine.handlers; ph->checker; ph++) {

        for (stand = ngx_http_idempotency_stands; stand->handler; stand++) {
            if (ph->handler == stand->handler) {
                ph->checker = stand->checker;
            }
        }
    }
}


/* it may have come here from a location where it is on */

static ngx_int_t
ngx_http_idempotency_preaccess_phase(ngx_http_request_t *r,
    ngx_http_phase_handler_t *ph)
{
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (conf->store == NULL && !r->internal) {
        r->phase_handler++;
        return NGX_AGAIN;
    }

    return ngx_http_core_generic_phase(r, ph);
}


static ngx_int_t
ngx_http_idempotency_access_phase(ngx_http_request_t *r,
    ngx_http_phase_handler_t *ph)
{
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (conf->store == NULL) {
        r->phase_handler++;
        return NGX_AGAIN;
    }

    return ngx_http_core_access_phase(r, ph);
}


/* it may have come here from a location where it is on */

static ngx_int_t
ngx_http_idempotency_precontent_phase(ngx_http_request_t *r,
    ngx_http_phase_handler_t *ph)
{
    if (ngx_http_get_module_ctx(r, ngx_http_idempotency_module) == NULL
        && !r->internal)
    {
        r->phase_handler++;
        return NGX_AGAIN;
    }

    return ngx_http_core_generic_phase(r, ph);
}
