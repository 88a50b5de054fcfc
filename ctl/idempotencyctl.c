
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * idempotencyctl: records of ngx_http_idempotency_module in a terminal.
 *
 * Asks a location with idempotency_admin, over HTTP or a unix socket, and shows
 * what it answers: a table for people, JSON with --json for programs.  "id"
 * asks nobody: it computes what the module would.  See idempotencyctl.1.
 *
 * Exit codes: 0 done; 1 there is no such record or store, or a store does not
 * answer; 2 it was asked wrongly; 3 nobody answers, or refuses.
 */


#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"


/*
 * The commands, and their options beside --url, --user, --store and --json.
 * One that would be ignored is refused: an answer about all tenants is no
 * answer to a question about one.  Those that delete tell themselves what they
 * take.
 */

static struct {
    const char    *name;
    int            (*run)(void);
    const char    *options;
} ctl_commands[] = {
    { "inspect", ctl_inspect, "kcr" },
    { "list", ctl_list, "krtagSol" },
    { "delete", ctl_delete, NULL },
    { "cleanup", ctl_cleanup, NULL },
    { "purge", ctl_purge, NULL },
    { "tail", ctl_tail, "kcraob" },
    { "export", ctl_export, "kcraobd" },
    { "stats", ctl_stats, "tago" },
    { "id", ctl_id, "kc" },
    { "health", ctl_health, "" },
    { NULL, NULL, NULL }
};


static struct option  ctl_known[] = {
    { "url", 1, NULL, 'u' }, { "store", 1, NULL, 's' },
    { "key", 1, NULL, 'k' }, { "scope", 1, NULL, 'c' },
    { "record", 1, NULL, 'r' }, { "tenant", 1, NULL, 't' },
    { "actor", 1, NULL, 'a' }, { "group", 1, NULL, 'g' },
    { "state", 1, NULL, 'S' }, { "older", 1, NULL, 'o' },
    { "limit", 1, NULL, 'l' }, { "user", 1, NULL, 'U' },
    { "since", 1, NULL, 'b' }, { "dir", 1, NULL, 'd' },
    { "events", 0, NULL, 'e' },
    { "json", 0, NULL, 'j' }, { "dry-run", 0, NULL, 'n' },
    { "help", 0, NULL, 'h' }, { "version", 0, NULL, 'V' },
    { NULL, 0, NULL, 0 }
};


ctl_options_t  o;
CURL          *ctl_curl;


static const char  ctl_usage[] =
    "usage: idempotencyctl --url <location> <command> [options]\n"
    "\n"
    "  inspect   --record <id> | --key <key> [--scope <scope>]\n"
    "  list      [--state <state>] [--older <time>] [--group <group>]\n"
    "            [--tenant <tenant>] [--actor <actor>] [--limit <n>]\n"
    "  delete    --record <id> | --key <key> [--scope <scope>] [--dry-run]\n"
    "  cleanup   --state <state> and/or --older <time> [--dry-run]\n"
    "            --events --store <store> --older <time> [--dry-run]\n"
    "  purge     --tenant <tenant> | --actor <actor> [--dry-run]\n"
    "            --events --store <store> --actor <actor> [--dry-run]\n"
    "  tail      [--key <key> [--scope <scope>]] [--record <id>]\n"
    "            --store <store> [--since <time>] [--actor <actor>] ...\n"
    "  export    --store <store> --dir <dir> [--since <time>] [--older <time>]\n"
    "  stats     of each store, or of one, by state [--older <time>]\n"
    "            [--group <group>] [--tenant <tenant>] [--actor <actor>]\n"
    "  id        --key <key> --scope <scope>   (asks nobody)\n"
    "  health    of each store, or of one\n"
    "\n"
    "  --url     http://host:port/path/ or unix:<socket>:/path/\n"
    "            (or the variable IDEMPOTENCY_URL)\n"
    "  --store   which store; not needed where there is one\n"
    "  --user    <name>:<password>, for auth_basic\n"
    "  --json    as the location answers it\n"
    "  --version\n";


static int
ctl_options(int argc, char **argv, char given[128])
{
    int    c;
    char  *end;

    while ((c = getopt_long(argc, argv, "jnh", ctl_known, NULL)) != -1) {

        given[c & 0x7f] = 1;

        switch (c) {

        case 'u': o.url = optarg; break;
        case 's': o.store = optarg; break;
        case 'k': o.key = optarg; break;
        case 'c': o.scope = optarg; break;
        case 'r': o.record = optarg; break;
        case 't': o.tenant = optarg; break;
        case 'a': o.actor = optarg; break;
        case 'g': o.group = optarg; break;
        case 'S': o.state = optarg; break;
        case 'o': o.older = optarg; break;

        case 'l':
            o.limit = strtol(optarg, &end, 10);

            if (*end || o.limit <= 0) {
                ctl_say("\"--limit %s\": a limit is a number from 1 on",
                        optarg);
                return CTL_USAGE;
            }

            break;

        case 'U': o.user = optarg; break;
        case 'b': o.since = optarg; break;
        case 'd': o.dir = optarg; break;
        case 'e': o.events = 1; break;
        case 'j': o.json = 1; break;
        case 'n': o.dry_run = 1; break;

        case 'h':
            fputs(ctl_usage, stdout);
            exit(CTL_OK);

        case 'V':
            puts("idempotencyctl " IDEMPOTENCY_VERSION);
            exit(CTL_OK);

        default:
            return CTL_USAGE;
        }
    }

    return CTL_OK;
}


/* "given" has the options by their letters */

static int
ctl_check_options(int command, const char given[128])
{
    const char     *takes;
    struct option  *option;

    takes = ctl_commands[command].options;

    for (option = ctl_known; takes && option->name; option++) {

        if (given[option->val] && strchr("usUj", option->val) == NULL
            && strchr(takes, option->val) == NULL)
        {
            ctl_say("\"%s\" does not take --%s", ctl_commands[command].name,
                    option->name);
            return CTL_USAGE;
        }
    }

    return CTL_OK;
}


int
main(int argc, char **argv)
{
    int   i, rc;
    char  given[128] = { 0 };

    o.url = getenv("IDEMPOTENCY_URL");

    if (ctl_options(argc, argv, given) != CTL_OK || optind + 1 != argc) {

        if (optind + 1 < argc) {
            ctl_say("there is one command: what is \"%s\"?",
                    argv[optind + 1]);
        }

        fputs(ctl_usage, stderr);
        return CTL_USAGE;
    }

    for (i = 0; ctl_commands[i].name; i++) {
        if (strcmp(ctl_commands[i].name, argv[optind]) == 0) {
            break;
        }
    }

    if (ctl_commands[i].name == NULL) {
        ctl_say("there is no command \"%s\"", argv[optind]);
        fputs(ctl_usage, stderr);
        return CTL_USAGE;
    }

    if (ctl_check_options(i, given) != CTL_OK) {
        return CTL_USAGE;
    }

    curl_global_init(CURL_GLOBAL_DEFAULT);
    ctl_curl = curl_easy_init();

    if (ctl_curl == NULL) {
        ctl_say("no memory");
        return CTL_FAILED;
    }

    curl_easy_setopt(ctl_curl, CURLOPT_CONNECTTIMEOUT, 5L);
    curl_easy_setopt(ctl_curl, CURLOPT_NOSIGNAL, 1L);

    if (o.user) {
        curl_easy_setopt(ctl_curl, CURLOPT_USERPWD, o.user);
    }

    rc = ctl_commands[i].run();

    curl_easy_cleanup(ctl_curl);
    curl_global_cleanup();

    return rc;
}
