// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

// The MCP SDK on both sides of the gateway: a server of its own with one tool,
// and a client that calls it as an agent does, with retries.  Prints what the
// client got, and how often the tool ran.

import fs from 'node:fs';
import http from 'node:http';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';

const told = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));

const TOOL = 'formbridge_vendor-onboarding_submit';
const ACME = { companyName: 'Acme Corp' };

let runs = 0;


// --- the server: each request by itself, answered in JSON ---

function mcpServer() {
    const server = new McpServer({ name: 'formbridge', version: '1.0.0' });

    server.registerTool(TOOL, {
        description: 'Submit vendor onboarding form',
        inputSchema: {
            fields: z.record(z.string(), z.any()),
            idempotencyKey: z.string().optional(),
        },
    }, async () => {
        const id = `sub_${++runs}`;

        await new Promise((resolve) => setTimeout(resolve, 200));
        return { content: [ { type: 'text', text: id } ] };
    });

    return server;
}

const listener = http.createServer(async (req, res) => {
    if (req.method !== 'POST') {
        res.writeHead(405).end();
        return;
    }

    const transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: undefined, enableJsonResponse: true,
    });

    await mcpServer().connect(transport);
    await transport.handleRequest(req, res);
});

await new Promise((resolve) => listener.listen(told.server, '127.0.0.1', resolve));


// --- the client; its way to the gateway may lose a response ---

let lose = 0;

async function lossy(url, options) {
    const response = await fetch(url, options);

    if (lose > 0 && String(options?.body).includes('tools/call')) {
        lose--;
        await response.arrayBuffer();
        throw new TypeError('fetch failed');
    }

    return response;
}

const client = new Client({ name: 'agent', version: '1.0.0' });

await client.connect(new StreamableHTTPClientTransport(
    new URL(`http://127.0.0.1:${told.port}/mcp`), { fetch: lossy }));

async function call(fields, idempotencyKey) {
    try {
        const result = await client.callTool(
            { name: TOOL, arguments: { fields, idempotencyKey } },
            undefined, { timeout: 15000 });

        return result.content[0].text;

    } catch (error) {
        return `error: ${error.message}`;
    }
}

const result = {};

result.tools = (await client.listTools()).tools.map((tool) => tool.name);
result.first = await call(ACME, 'idem_one');
result.retry = await call(ACME, 'idem_one');
result.runs = runs;

result.conflict = await call({ companyName: 'Evil Corp' }, 'idem_one');
result.runsAfterConflict = runs;

lose = 1;
result.lost = await call(ACME, 'idem_two');
result.found = await call(ACME, 'idem_two');
result.runsAfterLoss = runs;

result.together = await Promise.all([ call(ACME, 'idem_three'),
                                      call(ACME, 'idem_three') ]);
result.runsTogether = runs;

result.without = [ await call(ACME), await call(ACME) ];

console.log(JSON.stringify(result));
process.exit(0);
