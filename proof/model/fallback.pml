
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * One record in two stores: the first one flaps, for one host or the other, the
 * ledger answers always.  Requests of all workers of the hosts begin, run and
 * commit; replies are lost, and come so late that the ledger is in use by then.
 * A begin that comes after one that was given up has another token.  Leases do
 * not end here: record.pml has them.
 *
 *   NREQ    requests with the same key, on the hosts in turn
 *   HOSTS   1 or 2
 *   FLAPS   how often the first store goes or comes back
 *   COMMON  the ledger is one for all hosts, as PostgreSQL is; otherwise each
 *           host has its own
 *
 * and, to see that the properties can fail at all:
 *
 *   HALF_HELD    the holder in the first store is not one in the ledger
 *   LATE_BLIND   a reply that is late is trusted in
 *   USED_LATE    that the ledger is in use is said when it was asked
 *   WAITER_RUNS  who waits for a holder in the first store goes to the ledger
 *   ASKER_HOLDS  a lock in the ledger is taken for that of the holder; it may be
 *                that of a request which only asks, while the first store has
 *                the holder
 *
 * What is asserted stands at the inline "start".  What a fallback does not
 * promise (docs/layers.md, "Fallback") is not: what ran in the first store alone
 * is not known to the ledger, and what ran in a ledger not to other hosts that do
 * not use it.
 *
 * The request is src/store/layers/..._fallback.c; the
 * commits that are kept are those of ..._outbox.c.
 */

#ifndef NREQ
#define NREQ    3
#endif
#ifndef HOSTS
#define HOSTS   1
#endif
#ifndef FLAPS
#define FLAPS   3
#endif

#define HOST    (_pid % HOSTS)

#ifdef COMMON
#define LEDGER  0
#else
#define LEDGER  HOST
#endif

mtype = { NONE, PROGRESS, DONE };
mtype = { ACQUIRED, FOUND, OK, LOST, ERROR };
mtype = { FIRST, BOTH, INSTEAD };

typedef store_t {
    mtype  state;
    byte   token;
}

store_t  first;
store_t  ledger[HOSTS];

bool     away[HOSTS];             /* the first store, for that host        */
bool     used[HOSTS];             /* the ledger may hold something         */
byte     kept[HOSTS];             /* token of a commit that is kept        */
byte     flaps;

chan     late = [2] of { byte };  /* releases of begins that were given up */

/* ghosts: executions of holders in the first store, and in a ledger; of a host,
   with its ledger, and since that was used.  Of a request: it was told to wait
   for a lock in the ledger, when the first store answered and had a holder */

byte     in_first;
byte     in_ledger[HOSTS];
byte     with_ledger[HOSTS];
byte     since_used[HOSTS];


inline begin(s, tok, res)
{
    if
    :: s.state == NONE || s.state == 0 ->
        s.state = PROGRESS; s.token = tok; res = ACQUIRED
    :: s.state == PROGRESS && s.token == tok ->
        res = ACQUIRED
    :: else ->
        res = FOUND
    fi
}

inline commit(s, tok, res)
{
    if
    :: s.state == NONE || s.state == 0 || s.token == tok ->
        s.state = DONE; s.token = tok; res = OK
    :: else ->
        res = LOST
    fi
}

inline release(s, tok)
{
    if
    :: s.state == PROGRESS && s.token == tok -> s.state = NONE; s.token = 0
    :: else
    fi
}


/* to the first store: lost on the way there, or on the way back */

inline release_first(tok)
{
    if
    :: !away[HOST] -> release(first, tok)
    :: away[HOST] && nfull(late) -> late!tok
    :: away[HOST] && full(late)
    fi
}


inline start(where)
{
    assert(where == INSTEAD || in_first == 0);
    assert(where == FIRST || in_ledger[LEDGER] == 0);
    assert(where != FIRST || with_ledger[HOST] == 0);
    assert(since_used[HOST] == 0);
    assert(where != INSTEAD || !waits);
    assert(where != INSTEAD || !told);

    if
    :: where != INSTEAD -> in_first++
    :: else
    fi;
    if
    :: where != FIRST -> in_ledger[LEDGER]++; with_ledger[HOST]++
    :: else
    fi;
    if
    :: used[HOST] -> since_used[HOST]++
    :: else
    fi
}


/* the ledger has a lock, and what it is told to wait for */

inline wait_ledger()
{
    if
    :: !away[HOST] && first.state == PROGRESS -> told = true
    :: else
    fi;
    waits = false; waits_ledger = true
}


active [NREQ] proctype request()
{
    byte   tok = _pid + 1;
    byte   looks;
    bool   held, waits, waits_ledger, told;
    mtype  res, where;

again:
    atomic {
        held = false;
        if
        :: looks < 2 -> looks++
        :: else -> goto over                            /* 503             */
        fi;
        if
        :: kept[HOST] -> goto over                      /* a replay        */
        :: else
        fi;
        if
        :: used[HOST] ->
            begin(ledger[LEDGER], tok, res);
            if
            :: res == ACQUIRED -> held = true
            :: res == FOUND && ledger[LEDGER].state == DONE -> goto over
            :: res == FOUND && ledger[LEDGER].state != DONE ->
#ifdef ASKER_HOLDS
                wait_ledger(); goto again
#else
                if
                :: waits_ledger -> goto again
                :: else -> goto in_part
                fi
#endif
            fi
        :: else
        fi
    }

    /* the first store; its reply is seen later */

    atomic {
        if
        :: !away[HOST] -> begin(first, tok, res)
        :: away[HOST] -> res = ERROR
        :: away[HOST] -> begin(first, tok, res); res = ERROR
        fi
    }

    atomic {
        if
        :: res == ERROR ->
            release_first(tok);

#ifndef WAITER_RUNS
            if
            :: waits ->
                if
                :: held -> release(ledger[LEDGER], tok)
                :: else
                fi;
                tok = tok + NREQ;
                goto again
            :: else
            fi;
#endif
            goto instead

        :: res == FOUND ->
            if
            :: held -> release(ledger[LEDGER], tok)
            :: else
            fi;
            if
            :: first.state == DONE -> goto over
            :: else -> waits = true; waits_ledger = false; goto again
            fi

        :: res == ACQUIRED && held ->
#ifdef HALF_HELD
            release(ledger[LEDGER], tok);
            where = FIRST
#else
            where = BOTH
#endif

        :: res == ACQUIRED && !held ->
            where = FIRST;
#ifndef LATE_BLIND
            if
            :: used[HOST] ->
                begin(ledger[LEDGER], tok, res);
                if
                :: res == ACQUIRED -> where = BOTH
                :: res == FOUND ->
                    release_first(tok); tok = tok + NREQ; goto again
                fi
            :: else
            fi
#endif
        fi;

        start(where);
        goto execute
    }

    /* a lock in the ledger may be that of a request which only asks, as this one
       does: the first store is asked whether the holder is there */

in_part:
    atomic {
        if
        :: !away[HOST] && first.state == DONE -> goto over
        :: !away[HOST] && first.state == PROGRESS ->
            waits = true; waits_ledger = false
        :: !away[HOST] && first.state != DONE && first.state != PROGRESS ->
            wait_ledger()
        :: away[HOST] && waits
        :: away[HOST] && !waits -> wait_ledger()
        fi;
        goto again
    }

instead:
#ifdef USED_LATE
    atomic { begin(ledger[LEDGER], tok, res);
             if
             :: res == ACQUIRED -> where = INSTEAD; start(where)
             :: else
             fi }
    used[HOST] = true;
    atomic {
        if
        :: res == ACQUIRED -> since_used[HOST] = 1; goto execute
        :: res == FOUND && ledger[LEDGER].state == DONE -> goto over
        :: res == FOUND && ledger[LEDGER].state != DONE ->
            tok = tok + NREQ; goto again
        fi
    }
#else
    used[HOST] = true;

    atomic {
        begin(ledger[LEDGER], tok, res);
        if
        :: res == ACQUIRED -> where = INSTEAD; start(where)
        :: res == FOUND && ledger[LEDGER].state == DONE -> goto over
        :: res == FOUND && ledger[LEDGER].state != DONE ->
            tok = tok + NREQ; goto again
        fi
    }
#endif

execute:
    if
    :: where == INSTEAD ->
        atomic { commit(ledger[LEDGER], tok, res) }

    :: where != INSTEAD ->
        atomic {
            if
            :: !away[HOST] -> commit(first, tok, res)
            :: away[HOST] -> kept[HOST] = tok
            :: away[HOST] -> commit(first, tok, res); kept[HOST] = tok
            fi
        }

        /* the copy */

        if
        :: where == BOTH -> atomic { commit(ledger[LEDGER], tok, res) }
        :: else
        fi
    fi;

over:
    atomic { held = false; waits = false; waits_ledger = false; told = false;
             looks = 0; tok = 0; res = 0; where = 0 }
}


/* the first store goes and comes back; what is late arrives; kept commits land;
   other keys run in a ledger, which is in use from then on */

active proctype world()
{
    byte   h, tok;
    mtype  res;

end:
    do
    :: atomic { flaps < FLAPS ->
        flaps++;
        if
        :: h = 0
        :: h = HOSTS - 1
        fi;
        away[h] = !away[h]; h = 0 }

    :: atomic { !used[0] -> used[0] = true }
    :: atomic { !used[HOSTS - 1] -> used[HOSTS - 1] = true }

    :: atomic { late??tok -> release(first, tok); tok = 0 }

    :: atomic { kept[0] && !away[0] ->
        tok = kept[0]; commit(first, tok, res); kept[0] = 0; tok = 0; res = 0 }

    :: atomic { kept[HOSTS - 1] && !away[HOSTS - 1] ->
        tok = kept[HOSTS - 1]; commit(first, tok, res); kept[HOSTS - 1] = 0; tok = 0; res = 0 }
    od
}
