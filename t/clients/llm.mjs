// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

// The client of OpenAI or of Anthropic against the gateway, with an application
// behind it that streams as theirs do, on a way that breaks.  Prints what the
// client got, and how often the application ran.

import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';

const told = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const WORDS = [ 'The', ' money', ' is', ' spent', ' once', '.' ];


// --- the application; the prompt is the name of what is asked for ---

const runs = {};
const seen = {};
const ended = {};

const openaiEvents = (n) => {
    const chunk = (delta, finish_reason = null) => ({ data: JSON.stringify({
        id: `chatcmpl-${n}`, object: 'chat.completion.chunk', created: 1,
        model: 'gpt', choices: [ { index: 0, delta, finish_reason } ] }) });

    return [ chunk({ role: 'assistant', content: '' }),
             ...WORDS.map((content) => chunk({ content })),
             chunk({}, 'stop'), { data: '[DONE]' } ];
};

const anthropicEvents = (n) => {
    const event = (type, more) => ({ event: type,
                                     data: JSON.stringify({ type, ...more }) });

    return [
        event('message_start', { message: {
            id: `msg_${n}`, type: 'message', role: 'assistant', model: 'claude',
            content: [], stop_reason: null, stop_sequence: null,
            usage: { input_tokens: 1, output_tokens: 1 } } }),
        event('content_block_start', { index: 0,
            content_block: { type: 'text', text: '' } }),
        ...WORDS.map((text) => event('content_block_delta', {
            index: 0, delta: { type: 'text_delta', text } })),
        event('content_block_stop', { index: 0 }),
        event('message_delta', { delta: { stop_reason: 'end_turn',
            stop_sequence: null }, usage: { output_tokens: 6 } }),
        event('message_stop', {}),
    ];
};

const application = http.createServer(async (req, res) => {
    let body = '';

    for await (const data of req) {
        body += data;
    }

    const name = JSON.parse(body).messages[0].content;
    const n = runs[name] = (runs[name] ?? 0) + 1;

    if (name === 'busy' && n === 1) {
        res.writeHead(529, { 'Content-Type': 'application/json',
                             'Retry-After-Ms': '10' });
        res.end('{"type":"error","error":{"type":"overloaded_error"}}');
        return;
    }

    res.writeHead(200, { 'Content-Type': 'text/event-stream' });

    for (let line = 0; name === 'large' && line < 4200; line++) {
        res.write(`: ${'x'.repeat(1000)}\n`);
    }

    const events = req.url === '/v1/messages' ? anthropicEvents(n) : openaiEvents(n);

    for (const { event, data } of events) {
        // the end of this one comes after the client has asked again

        while (name === 'middle' && data.includes(' once') && seen.middle.length < 2) {
            await sleep(10);
        }

        res.write((event ? `event: ${event}\n` : '') + `data: ${data}\n\n`);
        await sleep(10);
    }

    res.end();
    ended[name] = true;
});

await new Promise((resolve) => application.listen(told.server, '127.0.0.1', resolve));


// --- a way to the gateway that breaks: "before" anything comes back, or in the
// --- "middle", when some of the words have

let cut = null;
let cuts = 0;

const way = net.createServer((from) => {
    const to = net.connect(told.port, '127.0.0.1');
    let breaks = null;
    let text = '';

    const both = () => { from.destroy(); to.destroy(); };

    from.on('error', both);
    to.on('error', both);
    from.on('close', () => to.destroy());
    to.on('close', () => from.end());

    from.on('data', (data) => {
        if (data.includes('POST /v1/')) {
            breaks = cut;
            cut = null;
            text = '';
        }

        to.write(data);
    });

    to.on('data', (data) => {
        text += data;

        if (breaks === 'before') {
            cuts++;
            both();
            return;
        }

        from.write(data);

        if (breaks === 'middle' && text.includes(WORDS[1])) {
            cuts++;
            breaks = null;
            setTimeout(both, 50);
        }
    });
});

await new Promise((resolve) => way.listen(0, '127.0.0.1', resolve));


// --- the client, as it comes, except for where it asks ---

const base = `http://127.0.0.1:${way.address().port}`;

const fetcher = (url, options) => {
    const headers = new Headers(options.headers);
    const name = JSON.parse(options.body).messages[0].content;

    (seen[name] ??= []).push({ key: headers.get('idempotency-key'),
                               retry: headers.get('x-stainless-retry-count') });

    return fetch(url, options);
};

const LIBRARY = await import(told.package);
let ask;

if (told.package === 'openai') {
    const client = new LIBRARY.default({ apiKey: 'sk-test', fetch: fetcher,
                                         baseURL: `${base}/v1` });

    ask = async (name, headers, got) => {
        const stream = await client.chat.completions.create(
            { model: 'gpt', stream: true, messages: [ { role: 'user', content: name } ] },
            { headers, idempotencyKey: 'option' });

        for await (const chunk of stream) {
            got.id = chunk.id;
            got.text += chunk.choices[0].delta.content ?? '';
            got.ended = chunk.choices[0].finish_reason;
        }
    };

} else {
    const client = new LIBRARY.default({ apiKey: 'sk-test', fetch: fetcher,
                                         baseURL: base });

    ask = async (name, headers, got) => {
        const stream = await client.messages.create(
            { model: 'claude', stream: true, max_tokens: 100,
              messages: [ { role: 'user', content: name } ] },
            { headers, idempotencyKey: 'option' });

        for await (const event of stream) {
            got.id = event.message?.id ?? got.id;
            got.text += event.delta?.text ?? '';
            got.ended = event.type === 'message_stop' ? 'stop' : null;
        }
    };
}

async function once(name, key = name) {
    const got = { text: '', ended: null };

    try {
        await ask(name, key ? { 'Idempotency-Key': key } : undefined, got);
    } catch (error) {
        got.error = error.status ? `status ${error.status}` : error.message || 'error';
    }

    return got;
}

const result = {};

// plain; lost before the answer, which the client retries by itself

result.plain = await once('plain');

cut = 'before';
result.before = await once('before');

// lost in the middle: the client says so, and the caller asks again, at once

cut = 'middle';
result.middle = [ await once('middle') ];
result.early = ended.middle ?? false;
result.middle.push(await once('middle'));

// an error of the application is retried, and runs

result.busy = await once('busy');

// a stream that was too large to be kept

result.large = [ await once('large'), await once('large') ];

// another prompt under a key

result.conflict = await once('conflict', 'plain');

// without a key: what the client sends by itself

cut = 'before';
result.without = await once('without', null);

result.cuts = cuts;
result.runs = runs;
result.seen = seen;

console.log(JSON.stringify(result));
process.exit(0);
