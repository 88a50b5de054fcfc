// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

// A fetch() that is safe to call again.  One key per operation, kept through
// its retries and across a crash; answers of the gateway taken for what they
// mean.  docs/clients.md tells the contract, index.d.ts the types.
//
// What is kept for an operation is one entry under the hash of its name and
// its request: another payload is another entry, so it gets another key, and
// going back to the first payload finds the first key again.

const DAY = 24 * 3600000;

const DEFAULTS = {
    tries: 8,                       // of one call
    totalMs: 120000,                // of one call, waits and all
    tryMs: 30000,                   // of one try
    backoffMs: 100,                 // twice that for each further wait ...
    maxBackoffMs: 5000,             // ... up to this,
    jitter: 0.3,                    // and up to that part of it more
    foldMs: 100,                    // taps closer than that are one
    rememberMs: DAY,          // how long a success is remembered
    rememberBytes: 65536,           // ... with a body up to this size
    maxAgeMs: DAY,            // how long a key is good for
    keyFormat: /^[\w.-]{1,255}$/,
    unknown: 'report',              // or 'retry', where the gateway lets one
};

// what an error of the gateway says about the operation: errors that are not
// here are those that another try may well get over

const OUTCOME = {
    IDEMPOTENCY_CONFLICT: 'none',
    IDEMPOTENCY_KEY_MISSING: 'none',
    IDEMPOTENCY_KEY_INVALID: 'none',
    OUTCOME_UNKNOWN: 'unknown',
    RESPONSE_TOO_LARGE: 'ran',
    RESPONSE_NOT_KEPT: 'ran',
    DUPLICATE_REQUEST: 'ran',
};

const BUSY = /^(CONCURRENT_REQUEST|LOCK_TIMEOUT|TOO_MANY_WAITERS|STORE_UNAVAILABLE)$/;

// statuses worth another try, and those that leave an operation undecided

const AGAIN = /^(408|425|429|50[0234])$/;
const NOT_NOW = /^4(0[13789]|2[359])$/;


export class IdempotencyError extends Error {
    constructor(code, message, more) {
        super(message);
        this.name = 'IdempotencyError';
        this.code = code;
        Object.assign(this, more);
    }
}


// --- keys -------------------------------------------------------------------

export const randomKey = (prefix = '') => {
    const b = crypto.getRandomValues(new Uint8Array(16));

    b[6] = b[6] & 15 | 64;
    b[8] = b[8] & 63 | 128;

    return prefix + hex(b).replace(/(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
};

export const workflowKey = (workflow, step) =>
    checked(`workflow-${workflow}_step-${step}`);

export const jobKey = (job) => checked(`job_${job}`);

export const testKey = (name, iteration = 1) =>
    checked(`test_${name}_${iteration}`);


const checked = (key, format = DEFAULTS.keyFormat) => {
    if (!format.test(key)) {
        throw new TypeError(`"${key}" is no idempotency key: it must match ${format}`);
    }

    return key;
};


// --- storages ---------------------------------------------------------------

// get(name), set(name, text), remove(name), keys(); add(name, text) sets what
// is not there yet, in one step, and returns what is there then.  Any of them
// may return a promise.

export const memoryStorage = (map = new Map()) => ({
    get: (name) => map.get(name) ?? null,
    set: (name, text) => void map.set(name, text),
    remove: (name) => void map.delete(name),
    keys: () => [...map.keys()],

    add(name, text) {
        map.has(name) || map.set(name, text);
        return map.get(name);
    },
});


// localStorage, sessionStorage and their like; where the browser has locks,
// two tabs that begin at the same time agree on one key

export const webStorage = (area = globalThis.localStorage,
                           prefix = 'idempotency:') => {
    const locks = globalThis.navigator?.locks;

    const add = (name, text) => {
        const there = area.getItem(prefix + name);

        there === null && area.setItem(prefix + name, text);
        return there ?? text;
    };

    return {
        get: (name) => area.getItem(prefix + name),
        set: (name, text) => area.setItem(prefix + name, text),
        remove: (name) => area.removeItem(prefix + name),
        keys: () => Object.keys(area).filter((k) => k.startsWith(prefix))
                          .map((k) => k.slice(prefix.length)),
        add: (name, text) => locks
            ? locks.request(prefix + name, () => add(name, text))
            : add(name, text),
    };
};


// --- the client -------------------------------------------------------------

export class IdempotencyClient {
    #options;
    #storage;
    #flights = new Map();           // name of the entry -> what is on its way
    #pruned = 0;

    constructor(options = {}) {
        this.#options = { ...DEFAULTS, generate: () => randomKey(), ...options };
        this.#storage = options.storage ?? memoryStorage();
    }


    // As fetch(); call: operation, key, stream, and any option.

    async fetch(input, init, call = {}) {
        const o = { ...this.#options, ...call };
        const request = new Request(input, init);
        const send = o.fetch ?? fetch;

        if (/^(GET|HEAD|OPTIONS|TRACE)$/.test(request.method)) {
            return send(request);
        }

        const signal = request.signal;
        const bytes = new Uint8Array(await request.arrayBuffer());
        const key = o.key ?? request.headers.get('Idempotency-Key')
                              ?.replace(/^"(.*)"$/, '$1');

        if (key !== undefined) {
            checked(key, o.keyFormat);
        }

        const op = { o, send, request, bytes, key,
                     operation: o.operation ?? key ?? null, tries: 0,
                     name: await signature(o.operation ?? key ?? '', request,
                                           bytes) };

        let flight = this.#flights.get(op.name);

        if (flight) {
            emit(op, 'fold');

        } else {
            flight = this.#depart(op);
        }

        const answer = await join(flight, signal);

        if (!answer.live) {
            return makeResponse(answer, answer.bytes);
        }

        // a stream is read by one: the gateway has it for the others

        if (answer.taken) {
            return this.fetch(new Request(request, { body: bytes, signal }),
                              undefined,
                              { ...call, operation: undefined, key: answer.key });
        }

        answer.taken = true;
        return makeResponse(answer, answer.live);
    }


    // Operations that have no final answer yet, for a page or a process that
    // was started again.

    async pending() {
        return (await this.#entries()).filter(([, e]) => !e.done)
            .map(([name, e]) => ({ name, ...e }));
    }


    // The next call of this operation (or of one that pending() named) is a
    // new one, with a new key: only for who knows that the old one is over.

    async forget(operation) {
        for (const [name, e] of await this.#entries()) {
            if (name === operation || e.operation === operation) {
                await this.#storage.remove(name);
            }
        }
    }


    async #entries() {
        const found = [];

        for (const name of await this.#storage.keys()) {
            const e = parse(await this.#storage.get(name));
            e && found.push([name, e]);
        }

        return found;
    }


    #depart(op) {
        const { foldMs } = op.o;
        const started = Date.now();
        const flight = { callers: 0 };

        const land = () => this.#flights.get(op.name) === flight
                           && this.#flights.delete(op.name);

        flight.cancel = (reason) => {
            land();
            op.aborted = true;
            op.stop?.(reason);
            emit(op, 'end', { outcome: 'aborted' });
        };
        flight.promise = this.#run(op);
        flight.promise.then((answer) => {
            const left = foldMs - (Date.now() - started);
            flight.live = answer.live;
            answer.live || left <= 0 ? land() : setTimeout(land, left).unref?.();
        }, land);

        if (foldMs || op.operation) {
            this.#flights.set(op.name, flight);
        }

        return flight;
    }


    async #run(op) {
        const { o } = op;
        const started = Date.now();

        const resumed = await this.#begin(op);
        const { entry } = op;

        emit(op, 'start', { resumed });

        if (entry.done) {
            emit(op, 'remembered');
            return remembered(op);
        }

        for (;;) {
            let answer, cause;

            if (op.aborted) {
                throw 0;            // nobody is left to hear it
            }

            op.tries++;
            emit(op, 'try');

            try {
                answer = await attempt(op,
                    Math.min(o.tryMs, o.totalMs - (Date.now() - started)));
            } catch (e) {
                if (op.aborted) {
                    throw e;
                }
                cause = e;
            }

            emit(op, 'answer', { status: answer?.status, code: answer?.code,
                                 replayed: answer?.replayed, cause });

            if (answer && !answer.again) {
                return this.#finish(op, answer);
            }

            const wait = Math.max(backoff(o, op.tries - 1), answer?.after ?? 0);

            if (op.tries >= o.tries || Date.now() - started + wait > o.totalMs) {
                emit(op, 'end', { outcome: 'unknown' });
                throw failure(op, entry, answer?.code ?? 'GAVE_UP', 'unknown',
                              true, answer, cause);
            }

            emit(op, 'wait', { ms: wait });
            await sleep(op, wait);
        }
    }


    // The entry of this operation: the one that is there, or a new one.

    async #begin(op) {
        const { o, request, operation } = op;
        const now = Date.now();

        const fresh = {
            key: op.key ?? checked(o.generate(op), o.keyFormat),
            operation, method: request.method, url: request.url, since: now,
        };

        const text = JSON.stringify(fresh);

        await this.#safely(op, () => this.#prune(o, now));

        const there = await this.#safely(op,
            () => this.#storage.add(op.name, text)) ?? text;

        let entry = there === text ? fresh : parse(there);

        // too old: a remembered success is over, and so is an operation that
        // nobody named; of one that has a name nobody knows what became of it

        const over = !entry || (entry.done ? now - entry.done > o.rememberMs
                                           : now - entry.since > o.maxAgeMs);

        if (over) {
            if (entry && !entry.done && operation !== null) {
                throw failure(op, entry, 'KEY_EXPIRED', 'unknown', false);
            }

            entry = fresh;
            await this.#safely(op, () => this.#storage.set(op.name, text));
        }

        op.entry = entry;
        op.keyHash = await sha256(entry.key);

        return entry !== fresh;
    }


    // A final answer: what is known about the operation from now on.

    async #finish(op, answer) {
        const { o, entry, name, operation } = op;
        const { status, code } = answer;
        const outcome = code ? OUTCOME[code] ?? 'unknown'
                      : status < 400 ? 'ran' : 'none';

        const done = async () => {
            if (outcome === 'ran') {
                // a second tap that is still to come finds it in the flights
                await this.#safely(op, () => operation === null
                    ? code || this.#storage.remove(name)
                    : this.#storage.set(name, JSON.stringify({
                          ...entry, done: Date.now(), code, status,
                          ...kept(o, answer),
                      })));

            } else if (code ? /_KEY_/.test(code)
                            : status < 500 && !NOT_NOW.test(status))
            {
                await this.#safely(op, () => this.#storage.remove(name));
            }

            emit(op, 'end', { outcome, status, code });
        };

        if (answer.live) {
            answer.live = answer.live.pipeThrough(
                new TransformStream({ flush: done }));

        } else {
            await done();
        }

        if (code) {
            throw failure(op, entry, code, outcome, answer.retryable === true,
                          answer);
        }

        return answer;
    }


    // once a minute: what is remembered too long, or was never finished

    async #prune(o, now) {
        if (now - this.#pruned < 60000) {
            return;
        }

        this.#pruned = now;

        for (const [name, e] of await this.#entries()) {
            if (e.done ? now - e.done > o.rememberMs
                       : now - e.since > 30 * o.maxAgeMs)
            {
                await this.#storage.remove(name);
            }
        }
    }


    // a storage that fails is told, and does not keep anybody from working

    async #safely(op, code) {
        try {
            return await code();
        } catch (cause) {
            emit(op, 'storage', { cause });
        }
    }
}


// fetch(input, init, call), with a client of its own

export const withIdempotencyKey = (wrapped, options) => {
    const client = new IdempotencyClient({ ...options, fetch: wrapped });

    return (input, init, call) => client.fetch(input, init, call);
};


// --- one try ----------------------------------------------------------------

async function attempt(op, ms) {
    const { o, send, request, bytes, tries, keyHash, operation } = op;
    const { key } = op.entry;
    const controller = new AbortController();
    const timer = setTimeout(
        () => controller.abort(new DOMException(`no answer in ${ms} ms`,
                                                'TimeoutError')), ms);
    op.stop = (reason) => controller.abort(reason);

    try {
        const headers = new Headers(request.headers);

        headers.set('Idempotency-Key', o.quoted ? `"${key}"` : key);

        const r = await send(new Request(request, {
            headers, body: bytes, signal: controller.signal,
        }));

        const type = r.headers.get('Content-Type') ?? '';

        const answer = {
            status: r.status, statusText: r.statusText, url: r.url,
            headers: [...r.headers],
            replayed: r.headers.get('Idempotent-Replayed') === 'true',
            local: false, tries, key, keyHash, operation,
        };

        if (r.status < 400 && r.body
            && (o.stream || type.startsWith('text/event-stream')))
        {
            answer.live = r.body;
            return answer;
        }

        answer.bytes = new Uint8Array(await r.arrayBuffer());

        return judge(o, answer, type, r.headers.get('Retry-After'));

    } finally {
        clearTimeout(timer);
    }
}


// Whether to try again, and not before when.

function judge(o, answer, type, retryAfter) {
    const { status } = answer;

    if (status < 400) {
        return answer;
    }

    const body = /\bjson\b/.test(type)
                 && parse(new TextDecoder().decode(answer.bytes)) || {};
    const error = Object(body.error);
    const told = error.retryable ?? body.retryable;
    const ms = error.retryAfterMs ?? body.retryAfterMs;

    const after = ms >= 0 ? ms
        : retryAfter === null ? undefined
        : /^\d+$/.test(retryAfter) ? retryAfter * 1000
        : Date.parse(retryAfter) - Date.now();

    answer.after = after > 0 ? after : 0;
    answer.retryable = told;

    // a stored answer stays what it is, however often one asks

    if (answer.replayed) {
        return answer;
    }

    const known = OUTCOME[error.code];

    if (known || BUSY.test(error.code)) {
        answer.code = error.code;
    }

    answer.again = known ? known === 'unknown' && o.unknown === 'retry' && told
        : told ?? (AGAIN.test(status)
                   || after !== undefined && /^4(09|23)$/.test(status));

    return answer;
}


const backoff = (o, n) =>
    Math.min(o.backoffMs * 2 ** n, o.maxBackoffMs) * (1 + Math.random() * o.jitter);


const sleep = (op, ms) => new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);

    op.stop = (reason) => {
        clearTimeout(timer);
        reject(reason);
    };
});


// One more caller.  Who goes away leaves the others their answer; the last
// one ends the flight.

const join = (flight, signal) => new Promise((resolve, reject) => {
    let landed;

    flight.callers++;
    flight.promise.then(resolve, reject).then(() => { landed = true; });

    const leave = () => {
        reject(signal.reason);
        --flight.callers || landed && !flight.live || flight.cancel(signal.reason);
    };

    signal.aborted ? leave() : signal.addEventListener('abort', leave);
});


// --- answers ----------------------------------------------------------------

const makeResponse = (answer, body) => {
    const { status, statusText, headers, url } = answer;
    const response = new Response([204, 205, 304].includes(status) ? null : body,
                                  { status, statusText, headers });
    const { key, keyHash, operation, replayed, local, tries } = answer;

    Object.defineProperty(response, 'url', { value: url });
    response.idempotency = { key, keyHash, operation, replayed, local, tries };

    return response;
};


const kept = (o, { code, bytes, statusText, headers }) =>
    code || !bytes || bytes.length > o.rememberBytes ? {}
    : { statusText, headers: headers.filter(([n]) => n !== 'set-cookie'),
        body: binary(bytes) };


const remembered = (op) => {
    const { entry, keyHash } = op;
    const { body, code, status } = entry;

    if (body === undefined) {
        throw failure(op, entry, code ?? 'ALREADY_DONE', 'ran', false, { status });
    }

    return { ...entry, keyHash, tries: 0, replayed: true, local: true,
             bytes: Uint8Array.from(body, (c) => c.charCodeAt(0)) };
};


const MESSAGES = {
    none: 'the request was refused, it did not run',
    ran: 'it ran, and there is no response to have',
    unknown: 'it is not known whether it ran',
};

const failure = (op, { key, operation }, code, outcome, retryable, answer, cause) =>
    new IdempotencyError(code, `${code}: ${MESSAGES[outcome]}`, {
        outcome, retryable, operation, key, keyHash: op.keyHash,
        tries: op.tries, status: answer?.status, cause,
        response: answer?.headers && makeResponse(answer, answer.bytes),
    });


const emit = ({ o, operation, keyHash, tries, request }, type, more) => {
    try {
        o.onEvent?.({ type, operation, method: request.method, url: request.url,
                      keyHash, tries, time: Date.now(), ...more });
    } catch {
        // who watches does not take part
    }
};


// --- the rest ---------------------------------------------------------------

const parse = (text) => {
    try {
        return JSON.parse(text);
    } catch {
        return null;
    }
};

const hex = (bytes) =>
    Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('');

const binary = (bytes) => {
    let text = '';

    for (let i = 0; i < bytes.length; i += 8192) {
        text += String.fromCharCode(...bytes.subarray(i, i + 8192));
    }

    return text;
};


// What makes a request this one.  The boundary of a form is another for each
// try, and does not count; nor does it for the gateway.

const signature = async (operation, request, bytes) => {
    const type = request.headers.get('Content-Type') ?? '';
    const boundary = /boundary="?([^";]+)/.exec(type)?.[1];
    const text = JSON.stringify([operation, request.method, request.url, type])
                 + '\n' + binary(bytes);
    const same = boundary ? text.split(boundary).join('') : text;

    return await sha256(same) ?? same;
};


// In hex, of text as UTF-8.  Pages without TLS have no crypto.subtle.

const sha256 = async (text) => crypto.subtle && hex(new Uint8Array(
    await crypto.subtle.digest('SHA-256', new TextEncoder().encode(text))));
