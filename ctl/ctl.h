
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * idempotencyctl: what its files share.
 *
 *   idempotencyctl.c  options, and which command it is
 *   ctl_ask.c         asks the location
 *   ctl_json.c        reads JSON
 *   ctl_records.c     inspect, list, delete, cleanup, purge, stats
 *   ctl_tail.c        tail, export, and events that are removed
 *   ctl_event.c       an event as a line for people
 *   ctl_id.c          id
 *   ctl_health.c      health
 */


#ifndef _CTL_H_INCLUDED_
#define _CTL_H_INCLUDED_


#include <stddef.h>

#include <curl/curl.h>

#include "ctl_json.h"


/* exit codes */
#define CTL_OK      0
#define CTL_NONE    1
#define CTL_USAGE   2
#define CTL_FAILED  3


typedef struct {
    char    *data;
    size_t   len;
} ctl_text_t;


typedef struct {
    const char  *url;
    const char  *store;
    const char  *key;
    const char  *scope;
    const char  *record;
    const char  *tenant;
    const char  *actor;
    const char  *group;
    const char  *state;
    const char  *older;
    const char  *user;
    const char  *since;
    const char  *dir;
    long         limit;
    int          json;
    int          dry_run;
    int          events;
} ctl_options_t;


extern ctl_options_t  o;
extern CURL          *ctl_curl;

/*
 * With --json: a part of the document is out, so that an error has to go into
 * it and can't be a document of its own; and the text of that error
 */
extern int            ctl_began;
extern char           ctl_error[512];


/* the commands: an exit code */

int ctl_inspect(void);
int ctl_list(void);
int ctl_delete(void);
int ctl_cleanup(void);
int ctl_purge(void);
int ctl_tail(void);
int ctl_export(void);
int ctl_stats(void);
int ctl_id(void);
int ctl_health(void);

/* of --key and --scope, in hex: the record id and the hash of the key */
void ctl_key(char id[65], char hash[65]);

/* cleanup and purge with --events */
int ctl_forget(void);

#define CTL_DAY     10                          /* "2026-01-28"             */

/* of "len" bytes of JSON; "day" is that of the line before */
void ctl_event(const char *line, size_t len, char day[CTL_DAY + 1]);

/* a time as people have it: 2.5h; negative: "-" */
const char *ctl_time(long long ms, char *buf, size_t size);

/*
 * Of a word, of those that are coloured: a level, a state; NULL: the end of a
 * colour.  Empty where stdout is no terminal, or NO_COLOR is set.
 */
const char *ctl_colour(const char *word);


/* to stderr */
void ctl_say(const char *fmt, ...);
const char *ctl_url(void);

/* appends, as libcurl calls it; there is a NUL behind */
size_t ctl_gather(char *p, size_t size, size_t n, void *data);
void ctl_add(ctl_text_t *text, const char *s);

/* to stdout, as a JSON string */
void ctl_quoted(const char *s);

/* an argument of an address, encoded, behind "?" or "&"; NULL: none */
void ctl_arg(ctl_text_t *path, const char *name, const char *value);

/* sets the address below that of the location */
int ctl_address(const char *path);

/* CTL_OK with status and body of the response; otherwise prints the error */
int ctl_ask(const char *method, const char *path, ctl_text_t *body,
    long *status);

/* the same, and any status but 200 is an error, too */
int ctl_get(const char *method, const char *path, ctl_text_t *body);

/* prints why the location refused a request */
void ctl_reason(const char *text);
int ctl_refused(long status, ctl_text_t *body);

/* the names that the location has; "v" is to be freed */
int ctl_stores(ctl_json_t **v, ctl_json_t **stores);

/* "records/<store>", where there is one store or one was named */
int ctl_records(ctl_text_t *path);

/* the record that --record or --key names */
int ctl_record_path(ctl_text_t *path);

int ctl_answer(const char *method, ctl_text_t *path, ctl_json_t **v);

/* a label may be of a client, and is not to control a terminal */
const char *ctl_clean(char *s);

/* a member: of a string or a number its text; of an integer its value, or -1 */
const char *ctl_string(ctl_json_t *v, const char *name, const char *none);
long long ctl_number(ctl_json_t *v, const char *name);


#endif /* _CTL_H_INCLUDED_ */
