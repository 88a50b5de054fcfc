
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A tree of JSON: what the location answers.
 */


#ifndef _CTL_JSON_H_INCLUDED_
#define _CTL_JSON_H_INCLUDED_


typedef struct ctl_json_s  ctl_json_t;

struct ctl_json_s {
    char         kind;            /* '{', '[', '"', '0' for a number, or the
                                     first of null, true and false          */
    char        *name;            /* as a member of an object               */
    char        *text;            /* of a string or a number                */
    ctl_json_t  *child;           /* the first one                          */
    ctl_json_t  *next;            /* of its siblings                        */
    char        *buf;             /* of the root: where the texts are       */
};


/* NULL: it is no JSON, or there is no memory */
ctl_json_t *ctl_json_parse(const char *text);
void ctl_json_free(ctl_json_t *v);

/* a member, or NULL; also where "v" is NULL, or no object */
ctl_json_t *ctl_json_get(ctl_json_t *v, const char *name);

#define ctl_json_is(v, k)  ((v) && (v)->kind == (k))


#endif /* _CTL_JSON_H_INCLUDED_ */
