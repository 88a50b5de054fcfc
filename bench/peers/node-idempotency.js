// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

// node-idempotency in a Fastify application, with its Redis adapter.  The
// package has no Fastify plug-in: two hooks, as its core is meant to be used.
//
//   node node-idempotency.js <port> <port of Redis> <answer>

const { Idempotency } = require("@node-idempotency/core");
const { RedisStorageAdapter } = require("@node-idempotency/storage-adapter-redis");

const [port, redis, answer] = process.argv.slice(2);

async function main() {
    const storage = new RedisStorageAdapter({ url: `redis://127.0.0.1:${redis}` });
    await storage.connect();

    const idempotency = new Idempotency(storage, {});
    const app = require("fastify")({ keepAliveTimeout: 600000 });

    const seen = (request) => ({
        headers: request.headers,
        body: request.body,
        path: request.url,
        method: request.method,
    });

    app.addHook("preHandler", async (request, reply) => {
        const stored = await idempotency.onRequest(seen(request));

        if (stored) {
            request.replayed = true;
            reply.code(stored.additional.status).type("application/json");
            return reply.send(stored.body);
        }
    });

    app.addHook("onSend", async (request, reply, payload) => {
        if (!request.replayed) {
            await idempotency.onResponse(seen(request), {
                body: payload,
                additional: { status: reply.statusCode },
            });
        }
        return payload;
    });

    app.post("/orders", async (request, reply) => {
        return reply.code(201).type("application/json").send(answer);
    });

    await app.listen({ host: "127.0.0.1", port: Number(port) });
}

main().catch((e) => { console.error(e); process.exit(1); });
