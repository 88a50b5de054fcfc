// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

// The MCP SDK on both sides of the gateway: two agents on ways that break, and a
// server that answers in JSON, and later as an event stream.
// Prints what the agents got, and how often each tool ran.

import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';

const told = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));


// --- the server: each request by itself ---

const runs = {};

function mcpServer() {
    const server = new McpServer({ name: 'orders', version: '1.0.0' });

    // it takes its time, and fails the first time if it is to stumble

    const tool = async ({ order, way }, extra) => {
        const n = runs[order] = (runs[order] ?? 0) + 1;

        if (extra._meta?.progressToken !== undefined) {
            await extra.sendNotification({
                method: 'notifications/progress',
                params: { progressToken: extra._meta.progressToken,
                          progress: 1, total: 2 },
            });
        }

        await sleep(300);

        if (way === 'stumble' && n === 1) {
            return { isError: true, content: [ { type: 'text', text: 'no' } ] };
        }

        return { content: [ { type: 'text', text: `${order} paid, run ${n}` } ] };
    };

    server.registerTool('pay', {
        description: 'Pay an order',
        inputSchema: { order: z.string(), way: z.string().optional(),
                       idempotencyKey: z.string().optional() },
    }, tool);

    return server;
}

let sse = false;

const listener = http.createServer(async (req, res) => {
    if (req.method !== 'POST') {
        res.writeHead(405).end();
        return;
    }

    const transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: undefined, enableJsonResponse: !sse,
    });

    await mcpServer().connect(transport);
    await transport.handleRequest(req, res);
});

await new Promise((resolve) => listener.listen(told.server, '127.0.0.1', resolve));


// --- a way to the gateway that breaks: "request" closes the connection when a
// --- call was sent on, "response" in the middle of what comes back

let cut = null;
let cuts = 0;

const way = net.createServer((from) => {
    const to = net.connect(told.port, '127.0.0.1');
    let breaks = null;

    const both = () => { from.destroy(); to.destroy(); };

    from.on('error', both);
    to.on('error', both);
    from.on('close', () => to.destroy());
    to.on('close', () => from.end());

    from.on('data', (data) => {
        to.write(data);

        if (cut && data.includes('tools/call')) {
            breaks = cut;
            cut = null;

            if (breaks === 'request') {
                setTimeout(() => { cuts++; both(); }, 100);
            }
        }
    });

    to.on('data', (data) => {
        if (breaks !== 'response') {
            from.write(data);
            return;
        }

        breaks = null;
        cuts++;
        from.write(data.subarray(0, data.length - 12), () => both());
    });
});

await new Promise((resolve) => way.listen(0, '127.0.0.1', resolve));


// --- agents ---

const sent = [];

async function noted(url, options) {
    if (String(options?.body).includes('tools/call')) {
        sent.push(JSON.parse(options.body).id);
    }

    return fetch(url, options);
}

// sends the message itself again, with its id, until it is answered in full

async function insistent(url, options) {
    for (let tries = 1; ; tries++) {
        try {
            const response = await noted(url, options);

            return new Response(response.body && await response.arrayBuffer(), {
                status: response.status, headers: response.headers });

        } catch (error) {
            if (tries === 3 || options?.method !== 'POST') {
                throw error;
            }
        }
    }
}

async function agent(name, fetcher = noted) {
    const client = new Client({ name, version: '1.0.0' });

    client.onerror = () => {};

    await client.connect(new StreamableHTTPClientTransport(
        new URL(`http://127.0.0.1:${way.address().port}/mcp`),
        { fetch: fetcher, requestInit: { headers: { Authorization: `Bearer ${name}` } },
          reconnectionOptions: { maxRetries: 0, initialReconnectionDelay: 1,
                                 maxReconnectionDelay: 1,
                                 reconnectionDelayGrowFactor: 1 } }));

    return client;
}

async function once(client, args, { key, timeout = 8000, ...options } = {}) {
    const params = { name: 'pay', arguments: args };

    if (key) {
        params._meta = { idempotencyKey: key };
    }

    try {
        const result = await client.callTool(params, undefined, { timeout, ...options });

        return (result.isError ? 'failed: ' : '') + result.content[0].text;

    } catch (error) {
        return `error: ${error.message}`;
    }
}

// what an agent does: calls again, with the same key, until it has an answer

async function call(client, args, options) {
    const got = [];

    do {
        got.push(await once(client, args, options));
    } while (got.length < 3 && got.at(-1).startsWith('error:'));

    return got;
}

const result = {};
const a = await agent('a');
const b = await agent('b');

result.tools = (await a.listTools()).tools.map((tool) => tool.name);

// by _meta and by argument; the connection is lost before and in the answer

cut = 'request';
result.request = await call(a, { order: 'one' }, { key: 'k-one' });

cut = 'response';
result.response = await call(a, { order: 'two', idempotencyKey: 'k-two' });

result.other = await once(a, { order: 'three' }, { key: 'k-one' });
result.failed = [ await once(a, { order: 'four', way: 'stumble' }, { key: 'k-four' }),
                  await once(a, { order: 'four', way: 'stumble' }, { key: 'k-four' }),
                  await once(a, { order: 'four', way: 'stumble' }, { key: 'k-four' }) ];

// two agents at once, each with a key of its own, each twice

result.two = await Promise.all([
    once(a, { order: 'a' }, { key: 'k-a' }), once(b, { order: 'b' }, { key: 'k-b' }),
    once(a, { order: 'a' }, { key: 'k-a' }), once(b, { order: 'b' }, { key: 'k-b' }),
]);

// one agent does not get what is another's

result.stolen = await once(b, { order: 'one' }, { key: 'k-one' });

// as an event stream: the message itself is sent again

sse = true;

const c = await agent('c', insistent);
let progress = 0;

cut = 'response';
sent.length = 0;
result.stream = await call(c, { order: 'six' },
                           { key: 'k-six', onprogress: () => progress++ });
result.streamIds = [ ...sent ];
result.progress = progress;

// calls that the agent makes anew, each with an id of its own

const d = await agent('d');

sent.length = 0;
result.anew = [];

for (let n = 0; n < 3; n++) {
    result.anew.push(await once(d, { order: 'seven' }, { key: 'k-seven' }));
}

result.anewIds = new Set(sent).size;

result.failedStream = [];

for (let n = 0; n < 3; n++) {
    result.failedStream.push(await once(d, { order: 'eight', way: 'stumble' },
                                        { key: 'k-eight' }));
}

result.cuts = cuts;
result.runs = runs;

console.log(JSON.stringify(result));
process.exit(0);
