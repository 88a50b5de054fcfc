// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

// express-idempotency as its README shows it, with its store in memory.
//
//   node express-idempotency.js <port> <answer>

const express = require("express");
const { idempotency, getSharedIdempotencyService } = require("express-idempotency");

const [port, answer] = process.argv.slice(2);
const app = express();

app.use(express.json());
app.use(idempotency());

app.post("/orders", (request, response) => {
    if (getSharedIdempotencyService().isHit(request)) {
        return;
    }

    response.status(201).type("application/json").send(answer);
});

app.listen(Number(port), "127.0.0.1").keepAliveTimeout = 600000;
