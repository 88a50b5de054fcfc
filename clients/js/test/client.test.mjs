// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

// What the conformance kit does not see from outside: storages, pages without
// TLS, forms, and what the answer has on it.  node --test clients/js/test/*.mjs

import assert from 'node:assert';
import { createHash } from 'node:crypto';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { IdempotencyClient, IdempotencyError, fileStorage, memoryStorage,
         randomKey, webStorage, withIdempotencyKey } from '../node.js';

let server, url, seen, script;

before(() => new Promise((resolve) => {
    server = createServer((req, res) => {
        const body = [];

        req.on('data', (data) => body.push(data)).on('end', () => {
            seen.push({ key: req.headers['idempotency-key'],
                        type: req.headers['content-type'],
                        body: Buffer.concat(body).toString('latin1') });

            const [status, text = '', headers = {}] = script.shift() ?? [200];
            res.writeHead(status, headers).end(text);
        });
    }).listen(0, '127.0.0.1', () => {
        url = `http://127.0.0.1:${server.address().port}/`;
        resolve();
    });
}));

after(() => { server.closeAllConnections?.(); server.close(); });

const fresh = (...steps) => { seen = []; script = steps; };
const POST = { method: 'POST', body: 'x' };


test('the answer tells how it came', async () => {
    fresh([503], [201, 'made', { 'Idempotent-Replayed': 'true' }]);

    const client = new IdempotencyClient();
    const r = await client.fetch(url, POST, { operation: 'o' });
    const { key, keyHash } = r.idempotency;

    assert.strictEqual(r.url, url);
    assert.strictEqual(await r.text(), 'made');
    assert.strictEqual(keyHash, createHash('sha256').update(key).digest('hex'));
    assert.deepStrictEqual(r.idempotency, { key, keyHash, operation: 'o',
                                            replayed: true, local: false,
                                            tries: 2 });
});


test('each of two that were folded has a body of its own to read', async () => {
    fresh([200, 'text']);

    const client = new IdempotencyClient();
    const [a, b] = await Promise.all([client.fetch(url, POST),
                                      client.fetch(url, POST)]);

    assert.strictEqual(await a.text() + await b.text(), 'texttext');
    assert.strictEqual(seen.length, 1);
});


test('forms, URLSearchParams, blobs, bytes and requests are sent again as they '
     + 'were', async () => {
    const form = () => {
        const f = new FormData();
        f.set('a', '1');
        f.set('file', new Blob(['\u0000\u00ff']), 'f');
        return f;
    };

    for (const body of [form(), new URLSearchParams({ a: 'ü' }),
                        new Blob(['b']), new Uint8Array([0, 255]), 'ü'])
    {
        fresh([500], [200]);
        await new IdempotencyClient().fetch(url, { method: 'POST', body });
        assert.strictEqual(seen.length, 2);
        assert.deepStrictEqual(seen[0], seen[1]);
        assert.notStrictEqual(seen[0].body, '');
    }

    fresh([500], [200]);
    await new IdempotencyClient().fetch(new Request(url, POST));
    assert.deepStrictEqual(seen.map((s) => s.body), ['x', 'x']);
    assert.strictEqual(seen[0].key, seen[1].key);

    // a form that is made anew, after a reload: another boundary, the same key

    fresh([503], [200]);
    const client = new IdempotencyClient({ tries: 1 });
    const call = () => client.fetch(url, { method: 'POST', body: form() },
                                    { operation: 'form' });

    await assert.rejects(call, { code: 'GAVE_UP' });
    await call();
    assert.strictEqual(seen[0].key, seen[1].key);
    assert.notStrictEqual(seen[0].type, seen[1].type);
});


test('an abort that came before the call sends nothing', async () => {
    fresh();
    await assert.rejects(new IdempotencyClient().fetch(
        url, { ...POST, signal: AbortSignal.abort() }), { name: 'AbortError' });
    await new Promise((r) => setTimeout(r, 50));
    assert.strictEqual(seen.length, 0);
});


test('a page without TLS has no crypto.subtle', async () => {
    const real = globalThis.crypto;

    Object.defineProperty(globalThis, 'crypto', { configurable: true,
        value: { getRandomValues: (a) => real.getRandomValues(a) } });

    try {
        fresh([503], [200, 'done']);
        const client = new IdempotencyClient({ tries: 1 });
        const call = () => client.fetch(url, POST, { operation: 'o' });

        const error = await call().catch((e) => e);
        assert.strictEqual(error.code, 'GAVE_UP');
        assert.notStrictEqual(error.keyHash, error.key);    // no key in a log
        assert.strictEqual((await call()).status, 200);
        assert.strictEqual(seen[0].key, seen[1].key);
        assert.match(seen[0].key, /^[0-9a-f-]{36}$/);
    } finally {
        Object.defineProperty(globalThis, 'crypto', { configurable: true,
                                                      value: real });
    }
});


test('a storage that fails is told of, and keeps nobody from working', async () => {
    fresh([503], [200, 'done']);

    const told = [];
    const bad = () => { throw new Error('QuotaExceededError'); };
    const client = new IdempotencyClient({
        storage: { get: bad, set: bad, add: bad, remove: bad, keys: bad },
        onEvent: (e) => { told.push(e.type); throw new Error('ignored'); },
    });

    assert.strictEqual(await (await client.fetch(url, POST)).text(), 'done');
    assert.strictEqual(seen[0].key, seen[1].key);
    assert.ok(told.includes('storage'));
});


test('an entry that is broken is replaced', async () => {
    fresh([503], [200], [200]);

    const map = new Map();
    const client = new IdempotencyClient({ storage: memoryStorage(map), tries: 1 });

    await client.fetch(url, POST, { operation: 'o' }).catch(() => {});
    map.set([...map.keys()][0], '{');
    await client.fetch(url, POST, { operation: 'o' });
    assert.notStrictEqual(seen[0].key, seen[1].key);
});


test('webStorage keeps to its prefix', async () => {
    const area = Object.create({
        getItem(k) { return this[k] ?? null; },
        setItem(k, v) { this[k] = v; },
        removeItem(k) { delete this[k]; },
    });

    area.mine = '1';
    fresh([503], [200], [200]);

    const one = new IdempotencyClient({ storage: webStorage(area), tries: 1 });
    await one.fetch(url, POST, { operation: 'o' }).catch(() => {});

    const two = new IdempotencyClient({ storage: webStorage(area), tries: 1 });
    assert.deepStrictEqual((await two.pending()).map((e) => e.operation), ['o']);
    await two.fetch(url, POST, { operation: 'o' });
    assert.strictEqual(seen[0].key, seen[1].key);
    assert.deepStrictEqual(await two.pending(), []);

    await two.forget('o');
    assert.deepStrictEqual(Object.keys(area), ['mine']);
});


test('fileStorage: of many that add one wins, and nothing else is left', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'idempotency-'));

    try {
        const storages = Array.from({ length: 8 }, () => fileStorage(directory));
        const got = await Promise.all(storages.map((s, i) => s.add('a', `v${i}`)));

        assert.strictEqual(new Set(got).size, 1);
        await storages[0].set('a', 'new');
        assert.strictEqual(await storages[1].get('a'), 'new');
        assert.deepStrictEqual(await readdir(directory), ['a']);
        await storages[2].remove('a');
        assert.strictEqual(await storages[1].get('a'), null);
    } finally {
        await rm(directory, { recursive: true });
    }
});


test('what is remembered too long goes', async () => {
    fresh([200], [200]);

    const map = new Map();
    const options = { storage: memoryStorage(map), rememberMs: 50 };

    await new IdempotencyClient(options).fetch(url, POST, { operation: 'old' });
    await new Promise((r) => setTimeout(r, 100));
    await new IdempotencyClient(options).fetch(url, POST, { operation: 'new' });
    assert.deepStrictEqual([...map.values()].map((v) => JSON.parse(v).operation),
                           ['new']);
});


test('cookies are not remembered', async () => {
    fresh([200, '', { 'Set-Cookie': 'session=secret' }]);

    const map = new Map();
    const client = new IdempotencyClient({ storage: memoryStorage(map) });

    await client.fetch(url, POST, { operation: 'o' });
    assert.ok(![...map.values()].join().includes('secret'));
});


test('withIdempotencyKey wraps a fetch', async () => {
    fresh([500], [200]);

    let calls = 0;
    const wrapped = withIdempotencyKey((...a) => { calls++; return fetch(...a); },
                                       { generate: () => randomKey('idem_') });

    assert.strictEqual((await wrapped(url, POST)).status, 200);
    assert.strictEqual(calls, 2);
    assert.match(seen[0].key, /^idem_/);
});


test('many retries leave no listeners behind', async () => {
    fresh(...Array(15).fill([500]), [200]);

    const warnings = [];
    const note = (w) => warnings.push(String(w));
    process.on('warning', note);

    const abort = new AbortController();
    const client = new IdempotencyClient({ tries: 20, backoffMs: 1,
                                           maxBackoffMs: 1 });

    await client.fetch(url, { ...POST, signal: abort.signal });
    await new Promise((r) => setTimeout(r, 20));
    process.off('warning', note);
    assert.deepStrictEqual(warnings, []);
    assert.strictEqual(seen.length, 16);
});


test('an error says what is known', async () => {
    fresh([409, JSON.stringify({ error: { code: 'IDEMPOTENCY_CONFLICT',
                                          retryable: false } }),
           { 'Content-Type': 'application/problem+json' }]);

    const e = await new IdempotencyClient().fetch(url, POST, { operation: 'o' })
        .catch((error) => error);

    assert.ok(e instanceof IdempotencyError);
    assert.match(e.message, /^IDEMPOTENCY_CONFLICT: .*did not run/);
    assert.strictEqual((await e.response.json()).error.code, e.code);
    assert.strictEqual(e.key, seen[0].key);
});


test('keys are UUIDs of version 4, and each another one', () => {
    const keys = Array.from({ length: 1000 }, () => randomKey());

    for (const key of keys) {
        assert.match(key, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    }

    assert.strictEqual(new Set(keys).size, 1000);
});
