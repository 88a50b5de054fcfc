
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * One record, the requests that name it, and all that may go wrong between
 * them: holders that die or stall, replies that are lost, messages that come
 * late and out of order, wake-ups that never come, time.
 *
 *   NREQ    requests with the same key
 *   LEASE   ticks a lock lasts; a live holder renews it at each tick
 *   WAIT    ticks a waiter has
 *   WORK    ticks an execution takes at most
 *   FAULTS  how many things go wrong at most in one run
 *
 *   HOLD             idempotency_unknown_outcome hold; otherwise: lease
 *   OUTBOX           two hosts, which keep commits that were given up: tried
 *                    again at any time, and replayed meanwhile.  The first of
 *                    the requests and the third are on the same host
 *   EXPIRY           a record that is over may expire, at any time
 *   ANOTHER          the last of the requests is another one under that key
 *
 * and, to see that the properties can fail at all:
 *
 *   BROKEN_COMMIT    a commit does not look at the token
 *   BROKEN_RELEASE   a release does not look at the token
 *   BROKEN_WATCH     a waiter trusts in its wake-up alone
 *   REUSED_TOKEN     a waiter that begins again does so under the token of
 *                    the begin it gave up
 *   BLIND_OUTBOX     what is kept is replayed without a look at its lease
 *   LATE_OUTBOX      its lease counts from when it was kept, not from the last
 *                    begin or renewal that got through
 *   DEAF_OUTBOX      what is kept is replayed even if the store says that it
 *                    is lost
 *   LOCK_EXPIRY      a lock expires as a record that is over does
 *   ANY_TAKES_OVER   a lease that ran out is for any request
 *   FORGETFUL        a release forgets that the lock was taken over
 *
 * What is asserted stands at the inlines "start", "told", "told_kept" and at
 * the clock; that each request is answered is the absence of an invalid end
 * state.
 *
 * apply() is src/store/redis/(begin|renew|commit|release).lua, the plain
 * commands of ..._redis_plain.c, which do the same where they do anything, and
 * the functions of those names in src/store/memory.  The request is src/core:
 * begin, wait, execute, outcome.  call() is src/store/redis/..._redis.c: an
 * operation is asked again with the same token; a begin that is given up is
 * followed by a release.  The outbox is src/store/layers/..._outbox*.c.
 */

#ifndef NREQ
#define NREQ    3
#endif
#ifndef FAULTS
#define FAULTS  3
#endif
#ifndef WORK
#define WORK    2
#endif
#define LEASE   2
#define WAIT    3
#define LATE    2

#ifdef HOLD
#define HELD    true
#else
#define HELD    false
#endif

mtype = { NONE, PROGRESS, DONE, UNKNOWN };
mtype = { BEGIN, RENEW, COMMIT, UNSURE, RELEASE };
mtype = { ACQUIRED, FOUND, OK, LOST, ERROR };

/* the record, as the store has it */

mtype  state = NONE;
byte   token;                     /* of its writer                         */
byte   left;                      /* ticks of its lease                    */
bool   again;                     /* taken over: it may have run before    */
byte   answer;                    /* whose response it is                  */

/* messages that are still on their way when nobody waits for them any more */

chan   late = [LATE] of { mtype, byte };

byte   faults;

/* requests; by pid */

bool   holding[NREQ];             /* executes, is alive and not stalled    */
bool   overdue[NREQ];             /* has to renew before time goes on      */
byte   patience[NREQ];            /* ticks until a waiter gives up         */
byte   look[NREQ];                /* ticks until it looks by itself        */
bool   watching[NREQ];
bool   woken[NREQ];

#ifdef OUTBOX

/* hosts */

#define HOST    (_pid % 2)

byte   kept[2];                   /* token of the commit that is kept      */
byte   sure[2];                   /* ticks nobody else can have run        */
byte   mine[NREQ];                /* ... as the holder counts them         */

#ifdef LATE_OUTBOX
#define SURE    LEASE
#elif defined(HOLD)
#define SURE    1                 /* nobody takes over, however long       */
#else
#define SURE    mine[_pid]
#endif

#endif

/* ghosts: what the properties are about; the model does not look at them */

byte   runs;                      /* executions                            */
bool   excused;                   /* an exception of SPEC 9 happened       */
bool   unkept;                    /* ... a status that is not kept         */
byte   lease;                     /* ticks nobody else may run             */
byte   runner;                    /* token of the last that ran            */
byte   given;                     /* whose response was told as stored     */
byte   epoch;                     /* records that expired                  */


inline lay(tok)
{
    state = PROGRESS;
    token = tok;
    left = LEASE;
    again = false;
}


/* which request a token belongs to: tokens of one differ by NREQ */

#ifdef ANOTHER
#define CLAIM(tok)     ((tok - 1) % NREQ == NREQ - 1)
#else
#define CLAIM(tok)     false
#endif

#ifdef ANY_TAKES_OVER
#define SAME(tok)      true
#else
#define SAME(tok)      (CLAIM(tok) == CLAIM(token))
#endif

#define OVER  ((state == PROGRESS || state == UNKNOWN) && left == 0 && !HELD)

#ifdef FORGETFUL
#define AGAIN          false
#else
#define AGAIN          true
#endif


inline wake(i)
{
    i = 0;
    do
    :: i < NREQ ->
        if
        :: watching[i] -> woken[i] = true
        :: watching[i] && faults < FAULTS -> faults++  /* it never comes */
        :: !watching[i]
        fi;
        watching[i] = false;
        i++
    :: else -> break
    od;
    i = 0
}


#ifdef BROKEN_COMMIT
#define FENCED(tok)    true
#else
#define FENCED(tok)    (token == tok && state == PROGRESS)
#endif

#ifdef BROKEN_RELEASE
#define OURS(tok)      (state == PROGRESS)
#else
#define OURS(tok)      (state == PROGRESS && token == tok)
#endif


/* one step of the store, atomic there: a script, or a stay under the mutex */

inline apply(op, tok, res, i)
{
    if
    :: op == BEGIN ->
        if
        :: state == NONE ->
            lay(tok); res = ACQUIRED
        :: state == PROGRESS && token == tok ->
            left = LEASE; res = ACQUIRED
        :: OVER && token != tok && SAME(tok) ->
            lay(tok); again = AGAIN; res = ACQUIRED
        :: else ->
            res = FOUND
        fi

    :: op == RENEW ->
        if
        :: state == NONE ->
            lay(tok); res = OK
        :: state == PROGRESS && token == tok ->
            left = LEASE; res = OK
        :: OVER && token != tok && SAME(tok) ->
            lay(tok); again = AGAIN; res = OK
        :: else ->
            res = LOST
        fi;
        if
        :: res == OK && tok == runner -> lease = LEASE
        :: else
        fi

    :: op == COMMIT || op == UNSURE ->
        if
        :: state == NONE || FENCED(tok) || (OVER && SAME(tok)) ->
            if
            :: op == COMMIT ->
                state = DONE; answer = tok; left = 0
            :: else ->
                state = UNKNOWN; left = LEASE; lease = LEASE
            fi;
            token = tok;
            res = OK;
            wake(i)
        :: else ->
            if
            :: token == tok -> res = OK
            :: else -> res = LOST
            fi
        fi

    :: op == RELEASE ->
        if
        :: state == NONE ->
            res = OK
        :: OURS(tok) ->
            if
            :: tok == runner && token == tok && unkept -> lease = 0
            :: else
            fi;
            if
            :: again -> state = UNKNOWN; left = 0
            :: else -> state = NONE; left = 0; token = 0
            fi;
            again = false;
            res = OK;
            wake(i)
        :: else ->
            res = LOST
        fi
    fi
}


/*
 * An operation as it is asked.  Each try may be lost, or only its reply, or
 * may come to the store at any later time; it is tried again, or given up.
 */

inline call(op, tok, res, i)
{
    do
    :: atomic { apply(op, tok, res, i); seen = state; whose = answer;
                ticks = left; when = epoch;
                overdue[_pid] = (overdue[_pid] || res == ACQUIRED) }
        break
    :: atomic { faults < FAULTS -> faults++;
        if
        :: skip                                          /* lost           */
        :: apply(op, tok, res, i)                        /* the reply was  */
        :: nfull(late) -> late!op(tok)                   /* it is under way */
        fi;
        if
        :: res = 0                                       /* asked again    */
        :: res = ERROR; break                            /* given up       */
        fi }
    od
}


/* at most once, if nothing was excused; and never before a lease has ended */

inline start(tok)
{
    atomic {
        runs++;
        assert(runs == 1 || excused);
        assert(lease == 0);
        assert(runner == 0 || CLAIM(runner) == CLAIM(tok) || unkept);
#ifdef HOLD
        assert(runs == 1 || unkept);
#endif
        runner = tok;
        lease = left;
        holding[_pid] = true;
        overdue[_pid] = false;
    }
}


/*
 * What was stored once, and told, is what everybody is told from then on,
 * until it expires.
 */

inline told(tok)
{
    atomic {
        assert(given == 0 || given == tok || when != epoch);
        if
        :: when == epoch -> given = tok
        :: else
        fi
    }
}


#ifdef OUTBOX

/*
 * A replay of what is kept, before its lease is over: nobody else has run.
 * Later it may be told only if the store does not answer.
 */

inline told_kept(tok)
{
    assert(runner == tok)
}


/*
 * A commit that is kept, once more.  It leaves the outbox if it is answered;
 * not if it is lost to somebody who has no outcome yet, and may give back.
 */

inline deliver(tok, res, i)
{
    call(COMMIT, tok, res, i);
    atomic {
        if
        :: kept[HOST] == tok && (res == OK || (res == LOST && seen != PROGRESS)) ->
            kept[HOST] = 0; sure[HOST] = 0
        :: else
        fi;
        seen = 0; whose = 0; ticks = 0; overdue[_pid] = false;
    }
}

#endif


active [NREQ] proctype request()
{
    byte   tok = _pid + 1;
    byte   work, i, whose, ticks, when;
    mtype  res, seen;
    bool   waited, lost;
#ifdef OUTBOX
    byte   box;
#endif

begin:
#ifdef OUTBOX
    atomic {
        if
        :: kept[HOST] && sure[HOST] > 0 ->
            told_kept(kept[HOST]); goto over                /* a replay    */
        :: kept[HOST] && sure[HOST] == 0 ->
#ifdef BLIND_OUTBOX
            told_kept(kept[HOST]); goto over
#else
            box = kept[HOST]
#endif
        :: else -> goto ask
        fi
    }

    deliver(box, res, i);

    atomic {
        if
        :: res == OK -> told(box); box = 0; goto over       /* it landed   */
#ifdef DEAF_OUTBOX
        :: res == LOST -> told(box); box = 0; goto over
#else
        :: res == LOST -> box = 0
#endif
        :: res == ERROR && kept[HOST] == box ->             /* no answer   */
            box = 0; goto over
        :: res == ERROR && kept[HOST] != box -> box = 0
        fi;
        res = 0
    }

ask:
#endif
    call(BEGIN, tok, res, i);

    if
    :: res == ACQUIRED -> goto execute
    :: res == FOUND ->
        if
        :: seen == DONE -> told(whose); goto over              /* a replay    */
        :: seen == UNKNOWN -> goto over                     /* 409         */
        :: seen == PROGRESS && ticks == 0 -> goto over      /* 409, hold   */
        :: seen == PROGRESS && ticks > 0
        fi
    :: res == ERROR ->

        /* the release that follows it; it may be lost as well */

        atomic {
            if
            :: nfull(late) -> late!RELEASE(tok)
            :: skip
            fi;
        }
        if
        :: !waited -> goto over                             /* 503         */
        :: waited && patience[_pid] == 0 -> goto over
        :: waited && patience[_pid] > 0 ->
#ifndef REUSED_TOKEN
            tok = tok + NREQ;
#endif
            goto begin
        fi
    fi;

    /* wait: the store is looked at in the same step that enters the list */

    atomic {
        if
        :: !waited -> waited = true; patience[_pid] = WAIT
        :: else
        fi;
        res = 0; seen = 0; whose = 0; ticks = 0;
        woken[_pid] = (state != PROGRESS || left == 0);
        watching[_pid] = !woken[_pid];
        look[_pid] = left;
    }

    atomic {
#ifdef BROKEN_WATCH
        (woken[_pid]);
#else
        (woken[_pid] || patience[_pid] == 0 || look[_pid] == 0);
#endif
        watching[_pid] = false;
        woken[_pid] = false;
        look[_pid] = 0;
    }

    if
    :: patience[_pid] == 0 -> goto over                     /* 503         */
    :: patience[_pid] > 0 -> goto begin
    fi;

execute:
    atomic {
#ifdef OUTBOX
        mine[_pid] = LEASE;
#endif
        patience[_pid] = 0;
        waited = 0; res = 0; seen = 0; whose = 0; ticks = 0;
    }
    start(tok);

    do
    :: overdue[_pid] && work < WORK && !lost ->
        work++;
        call(RENEW, tok, res, i);
        atomic {
#ifdef OUTBOX
            if :: res == OK -> mine[_pid] = LEASE :: else fi;
#endif
            lost = (res == LOST);
            seen = 0; whose = 0; ticks = 0; res = 0;
            overdue[_pid] = false
        }

    :: overdue[_pid] && work < WORK && lost ->
        work++;
        overdue[_pid] = false

    :: atomic { faults < FAULTS ->                          /* it dies     */
        faults++;
        excused = true;
        holding[_pid] = false;
        overdue[_pid] = false }
        goto over

    :: atomic { faults < FAULTS ->                          /* it stalls   */
        faults++;
        excused = true;
        holding[_pid] = false;
        overdue[_pid] = false }
        break

    :: break                                                /* it is done  */
    od;

    /* the outcome; no time passes for a live holder before it is told */

    if
    :: atomic { overdue[_pid] = holding[_pid]; when = epoch }
        call(COMMIT, tok, res, i);
        if
        :: res == OK -> told(tok)
        :: res == LOST
        :: res == ERROR ->
            atomic {
                excused = true;
#ifdef OUTBOX
                /* its time counts from when the commit was first sent */

                if
                :: when == epoch -> kept[HOST] = tok; sure[HOST] = SURE
                :: else
                fi
#endif
            }
        fi
    :: atomic { excused = true; unkept = true };            /* not kept    */
        overdue[_pid] = holding[_pid];
        call(RELEASE, tok, res, i)
    :: excused = true;                                      /* unknown     */
        overdue[_pid] = holding[_pid];
        call(UNSURE, tok, res, i)
    fi;

over:
    atomic {
        holding[_pid] = false;
        overdue[_pid] = false;
        patience[_pid] = 0;
#ifdef OUTBOX
        mine[_pid] = 0;
#endif
        work = 0; lost = 0; waited = 0;
        tok = 0; res = 0; seen = 0; whose = 0; ticks = 0; when = 0;
    }
}


/* the network: what is late comes at any time, in any order, or never */

active proctype network()
{
    mtype  op, res;
    byte   tok, i;

end:
    do
    :: atomic { late??op,tok ->
        if
        :: apply(op, tok, res, i)
        :: skip
        fi;
        res = 0; op = 0; tok = 0 }
    od
}


#ifdef OUTBOX

/* the outbox of a host tries by itself, at any time, or never */

#define BOX(host)                                                         \
    atomic { kept[host] ->                                                \
        tok = kept[host];                                                 \
        apply(COMMIT, tok, res, i);                                       \
        if                                                                \
        :: res == OK || state != PROGRESS ->                              \
            kept[host] = 0; sure[host] = 0                                \
        :: else                                                           \
        fi;                                                               \
        res = 0; tok = 0 }

active proctype outbox()
{
    mtype  res;
    byte   tok, i;

end:
    do
    :: BOX(0)
    :: BOX(1)
    od
}

#endif

#if defined(OUTBOX) && !defined(HOLD)
#define KEPT_SURE  (sure[0] || sure[1])
#else
#define KEPT_SURE  false
#endif


/*
 * Time.  It goes on while there is something to wait for, and not before live
 * holders have renewed, or tried to.
 */

#define LEASED  (state != DONE && left > 0 && !(HELD && state == UNKNOWN))

#if NREQ > 2
#define DUE     (overdue[0] || overdue[1] || overdue[2])
#define WAITED  (patience[0] || patience[1] || patience[2])
#define HOLDING (holding[0] || holding[1] || holding[2])
#else
#define DUE     (overdue[0] || overdue[1])
#define WAITED  (patience[0] || patience[1])
#define HOLDING (holding[0] || holding[1])
#endif

active proctype clock()
{
    byte  i;

end:
    do
    :: atomic { (!DUE && (LEASED || lease > 0 || WAITED || HOLDING || KEPT_SURE)) ->

        do
        :: i < NREQ ->
            overdue[i] = holding[i];
            if :: patience[i] > 0 -> patience[i]-- :: else fi;
            if :: look[i] > 0 -> look[i]-- :: else fi;
#ifdef OUTBOX
            if :: mine[i] > 0 -> mine[i]-- :: else fi;
#endif
            i++
        :: else -> break
        od;

        i = 0;

#if defined(OUTBOX) && !defined(HOLD)
        if :: sure[0] > 0 -> sure[0]-- :: else fi;
        if :: sure[1] > 0 -> sure[1]-- :: else fi;
#endif

        if
        :: lease > 0 -> lease--
        :: else
        fi;

        /* no lock outlives its lease: whoever begins then has it */

        assert(left <= LEASE);

        if
        :: LEASED -> left--
        :: else
        fi;

        /* a live holder was out of reach of the store that long */

        if
        :: (state == PROGRESS && left == 0 && token == runner) -> excused = true
        :: else
        fi;

        }

#ifdef EXPIRY
    /* what nobody took over is forgotten with its ttl */

    :: atomic { OVER ->
        state = NONE; token = 0; unkept = true }

    /* what is over may run again, and then that is what everybody is told */

    :: atomic { state == DONE && epoch == 0 ->
        epoch++;
#ifdef OUTBOX
        /* its copy, whose time began before, is over by then */

        if :: kept[0] == answer -> kept[0] = 0; sure[0] = 0 :: else fi;
        if :: kept[1] == answer -> kept[1] = 0; sure[1] = 0 :: else fi;
#endif
        state = NONE; token = 0; excused = true; unkept = true;
        lease = 0; given = 0 }
#endif

#ifdef LOCK_EXPIRY
    :: atomic { state == PROGRESS -> state = NONE; token = 0; left = 0 }
#endif

    od
}
