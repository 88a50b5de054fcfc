// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

// The JavaScript client, told what to do by the conformance kit.

import { createInterface } from 'node:readline';
import * as idempotency from '../../js/node.js';

const say = (message) => process.stdout.write(JSON.stringify(message) + '\n');

const OPTIONS = {
    tries: 'tries', total_ms: 'totalMs', try_ms: 'tryMs', unknown: 'unknown',
    remember_ms: 'rememberMs', remember_bytes: 'rememberBytes',
    max_age_ms: 'maxAgeMs', fold_ms: 'foldMs', quoted: 'quoted',
};

const GENERATORS = {
    random: idempotency.randomKey, workflow: idempotency.workflowKey,
    job: idempotency.jobKey, test: idempotency.testKey,
};

const client = new idempotency.IdempotencyClient({
    storage: idempotency.fileStorage(process.env.CONFORMANCE_STORAGE,
                                     { sync: !process.env.CONFORMANCE_NOSYNC }),
    onEvent: ({ type, operation }) => process.env.CONFORMANCE_QUIET
                                      || say({ event: { type, operation } }),
});

const aborts = new Map();


async function send({ id, url, method = 'POST', headers, body, operation, key,
                      generator, stream, options = {} })
{
    const abort = new AbortController();
    const call = { stream };

    if (operation !== undefined) call.operation = operation;
    if (key !== undefined) call.key = key;
    if (generator) call.key = GENERATORS[generator[0]](...generator.slice(1));

    for (const [name, value] of Object.entries(options)) {
        call[OPTIONS[name]] = value;
    }

    let reading = false;
    aborts.set(id, abort);

    try {
        const r = await client.fetch(url, { method, headers, body,
                                            signal: abort.signal }, call);
        const pieces = [];

        if (stream) {
            reading = true;
            for await (const piece of r.body) pieces.push(piece);
        }

        return { result: {
            status: r.status, headers: [...r.headers],
            body: stream ? Buffer.concat(pieces).toString() : await r.text(),
            replayed: r.idempotency?.replayed ?? false,
            local: r.idempotency?.local ?? false,
            tries: r.idempotency?.tries ?? 1,
        } };

    } catch (e) {
        const { code, outcome, retryable, status, tries } = e;

        return { error: {
            code: e.name === 'AbortError' ? 'ABORTED'
                : reading ? 'BROKEN'
                : e instanceof idempotency.IdempotencyError ? code
                : e instanceof TypeError && /no idempotency key/.test(e) ? 'INVALID'
                : e.name,
            message: String(e), outcome, retryable, status, tries,
        } };

    } finally {
        aborts.delete(id);
    }
}


const DO = {
    send,
    abort: ({ of }) => aborts.get(of)?.abort(),
    pending: async () => ({ result: (await client.pending())
                                    .map((e) => e.operation) }),
    forget: async ({ operation }) => (await client.forget(operation),
                                      { result: true }),
    key: ({ generator }) => {
        try {
            return { result: GENERATORS[generator[0]](...generator.slice(1)) };
        } catch (e) {
            return { error: { code: 'INVALID', message: String(e) } };
        }
    },
};

createInterface({ input: process.stdin }).on('line', async (line) => {
    const command = JSON.parse(line);
    const answer = await DO[command.do](command);

    if (command.id !== undefined) {
        say({ id: command.id, ...answer });
    }
}).on('close', () => process.exit());

say({ hello: { name: 'js', can: ['abort', 'events', 'fold', 'generators',
                                 'keep', 'pending', 'quoted', 'stream'] } });
