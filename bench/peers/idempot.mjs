// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

// idempot-js in a Fastify application, with its Redis store.  It refuses keys
// of less than 21 characters, and a body that it knows under another key; the
// client sends shorter keys, and the same body in every request.  So the key
// is filled up, and goes into the body.  Copied by bench/fetch to where
// its packages are: an ES module finds them from there only.
//
//   node idempot.mjs <port> <port of Redis> <answer>

import Fastify from "fastify";
import { Redis } from "ioredis";
import { idempotency } from "@idempot/fastify-middleware";
import { RedisIdempotencyStore } from "@idempot/redis-store";

const [port, redis, answer] = process.argv.slice(2);

const store = new RedisIdempotencyStore({
    client: new Redis(Number(redis), "127.0.0.1"),
});
const app = Fastify({ keepAliveTimeout: 600000 });

app.addHook("preValidation", async (request) => {
    const key = request.headers["idempotency-key"].padEnd(21, "-");

    request.headers["idempotency-key"] = key;
    request.body.key = key;
});

app.post("/orders",
    { preHandler: idempotency({ store, required: true }) },
    async (request, reply) =>
        reply.code(201).type("application/json").send(answer));

await app.listen({ host: "127.0.0.1", port: Number(port) });
