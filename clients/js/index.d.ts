// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

/** Where keys and successes are kept. Any method may return a promise. */
export interface Storage {
    get(name: string): string | null | Promise<string | null>;
    set(name: string, text: string): void | Promise<void>;
    remove(name: string): void | Promise<void>;
    keys(): string[] | Promise<string[]>;
    /** Sets what is not there yet, in one step; returns what is there then. */
    add(name: string, text: string): string | Promise<string>;
}

/** What is known of an operation: it did not run; it ran; nobody knows. */
export type Outcome = 'none' | 'ran' | 'unknown';

/** Codes of the gateway, and three of the client's own. */
export type Code =
    | 'IDEMPOTENCY_KEY_MISSING' | 'IDEMPOTENCY_KEY_INVALID'
    | 'IDEMPOTENCY_CONFLICT' | 'CONCURRENT_REQUEST' | 'LOCK_TIMEOUT'
    | 'TOO_MANY_WAITERS' | 'STORE_UNAVAILABLE' | 'OUTCOME_UNKNOWN'
    | 'RESPONSE_TOO_LARGE' | 'RESPONSE_NOT_KEPT' | 'DUPLICATE_REQUEST'
    | 'GAVE_UP' | 'KEY_EXPIRED' | 'ALREADY_DONE';

export class IdempotencyError extends Error {
    readonly name: 'IdempotencyError';
    readonly code: Code;
    readonly outcome: Outcome;
    /** Calling again with the same operation may well succeed. */
    readonly retryable: boolean;
    readonly operation: string | null;
    readonly key: string;
    /** SHA-256 of the key in hex: key_hash in the gateway's events. */
    readonly keyHash?: string;
    readonly tries: number;
    readonly status?: number;
    /** The last answer, if there was one. */
    readonly response?: Response;
    /** What the last try failed with, if it got no answer. */
    readonly cause?: unknown;
}

/** What happens to an operation, for telemetry. */
export interface Event {
    type: 'start' | 'try' | 'answer' | 'wait' | 'fold' | 'remembered'
        | 'storage' | 'end';
    operation: string | null;
    method: string;
    url: string;
    keyHash?: string;
    tries: number;
    time: number;
    /** start: the key was there already. */
    resumed?: boolean;
    status?: number;
    code?: Code;
    replayed?: boolean;
    ms?: number;
    outcome?: Outcome | 'aborted';
    cause?: unknown;
}

export interface Options {
    /** memoryStorage() unless given. */
    storage?: Storage;
    /** The fetch to wrap. */
    fetch?: typeof fetch;
    /** Makes the key of a new operation: randomKey() unless given. */
    generate?: () => string;
    keyFormat?: RegExp;
    /** Sends the key as an RFC 8941 String, in quotes. */
    quoted?: boolean;
    /** Tries of one call: 8. */
    tries?: number;
    /** Time of one call, waits and all: 120000. */
    totalMs?: number;
    /** Time of one try: 30000. */
    tryMs?: number;
    /** First wait: 100; twice that for each further one, */
    backoffMs?: number;
    /** up to this: 5000, */
    maxBackoffMs?: number;
    /** and up to this part of it more: 0.3. */
    jitter?: number;
    /** Identical calls closer than that are one: 100. While one is on its way
        they are one in any case. 0: those without a name are not folded. */
    foldMs?: number;
    /** How long the success of a named operation is remembered: a day. */
    rememberMs?: number;
    /** ... with a body up to this size: 65536. */
    rememberBytes?: number;
    /** How long a key is good for: the gateway's idempotency_ttl, a day. */
    maxAgeMs?: number;
    /** An unknown outcome is reported, or tried again where the gateway says
        that it may: that can run the operation twice. */
    unknown?: 'report' | 'retry';
    onEvent?: (event: Event) => void;
}

export interface Call extends Options {
    /** Names the operation: what an order, a form or a job is called here. */
    operation?: string;
    /** The key, where something else names it: workflowKey(), jobKey(). */
    key?: string;
    /** Hands the body over as it comes; text/event-stream always is. */
    stream?: boolean;
}

export interface Info {
    readonly key: string;
    readonly keyHash?: string;
    readonly operation: string | null;
    readonly replayed: boolean;
    /** Remembered here: the gateway was not asked. */
    readonly local: boolean;
    readonly tries: number;
}

/** Missing on the answer to a GET, which passes as it is. */
export type IdempotentResponse = Response & { readonly idempotency?: Info };

export interface Pending {
    name: string;
    operation: string | null;
    key: string;
    method: string;
    url: string;
    /** Milliseconds since 1970. */
    since: number;
}

export class IdempotencyClient {
    constructor(options?: Options);
    fetch(input: RequestInfo | URL, init?: RequestInit,
          call?: Call): Promise<IdempotentResponse>;
    /** Operations that have no final answer yet. */
    pending(): Promise<Pending[]>;
    /** The next call of this operation has a new key. */
    forget(operation: string): Promise<void>;
}

/** The same as a function in place of fetch. */
export function withIdempotencyKey(wrapped?: typeof fetch, options?: Options):
    (input: RequestInfo | URL, init?: RequestInit,
     call?: Call) => Promise<IdempotentResponse>;

/** A UUID of version 4. */
export function randomKey(prefix?: string): string;
/** workflow-<workflow>_step-<step> */
export function workflowKey(workflow: string | number, step: string | number): string;
/** job_<job> */
export function jobKey(job: string | number): string;
/** test_<name>_<iteration> */
export function testKey(name: string, iteration?: number): string;

export function memoryStorage(map?: Map<string, string>): Storage;
/** localStorage, sessionStorage and their like. */
export function webStorage(area?: globalThis.Storage, prefix?: string): Storage;
