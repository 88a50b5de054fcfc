// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

// Stripe's own client against the gateway: one operation for each scenario that
// the test names, with the client's automatic retries.  Prints what it got, and
// how often the client had to ask.

import fs from 'node:fs';
import net from 'node:net';
import Stripe from 'stripe';

const told = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));

const CREATE = { amount: 2000, currency: 'usd' };


function client(port, options = {}) {
    const stripe = new Stripe('sk_test_gateway', {
        host: '127.0.0.1', port, protocol: 'http', telemetry: false,
        maxNetworkRetries: 4, timeout: 10000, ...options,
    });

    stripe.asked = 0;
    stripe.keys = new Set();

    stripe.on('request', (event) => {
        stripe.asked++;
        stripe.keys.add(event.idempotency_key);
    });

    return stripe;
}


// what became of one operation

async function outcome(stripe, operation) {
    const told = {};

    try {
        const object = await operation(stripe);

        told.id = object.id;
        told.status = object.lastResponse.statusCode;
        told.replayed = object.lastResponse.headers['idempotent-replayed'];
        told.echoed = object.lastResponse.headers['idempotency-key'];

    } catch (error) {
        told.error = error.type;
        told.rawType = error.rawType;
        told.code = error.code;
        told.message = error.message;
        told.status = error.statusCode;
        told.should = error.headers && error.headers['stripe-should-retry'];
    }

    told.asked = stripe.asked;
    told.keys = [...stripe.keys];

    return told;
}


// A way to the gateway that breaks: the first connection is closed when the
// response comes, or before anything of it does.

function broken(port, when) {
    let first = true;

    const server = net.createServer((from) => {
        const breaks = first;
        const to = net.connect(port, '127.0.0.1');

        first = false;

        from.on('error', () => to.destroy());
        to.on('error', () => from.destroy());
        from.on('close', () => to.end());

        from.on('data', (data) => {
            to.write(data);

            // the request is through, but nobody will hear of it

            if (breaks && when === 'early') {
                setTimeout(() => from.resetAndDestroy(), 100);
            }
        });

        to.on('data', (data) => {
            if (breaks) {
                from.resetAndDestroy();
                return;
            }

            from.write(data);
        });

        to.on('close', () => from.end());
    });

    return new Promise((resolve) => {
        server.listen(0, '127.0.0.1', () => resolve(server));
    });
}


const scenarios = {

    async create({ port, key }) {
        const options = key ? { idempotencyKey: key } : {};

        return outcome(client(port), (stripe) =>
            stripe.paymentIntents.create(CREATE, options));
    },

    async mismatch({ port, key }) {
        const options = { idempotencyKey: key };

        await client(port).paymentIntents.create(CREATE, options);

        return outcome(client(port), (stripe) =>
            stripe.paymentIntents.create({ ...CREATE, amount: 9900 }, options));
    },

    async twice({ port, key }) {
        const options = { idempotencyKey: key };
        const create = (stripe) => stripe.paymentIntents.create(CREATE, options);

        return Promise.all([ outcome(client(port), create),
                             outcome(client(port), create) ]);
    },

    async timeout({ port }) {
        return outcome(client(port, { timeout: 300 }), (stripe) =>
            stripe.paymentIntents.create(CREATE));
    },

    async closed({ port, when }) {
        const way = await broken(port, when);
        const told = await outcome(client(way.address().port), (stripe) =>
            stripe.paymentIntents.create(CREATE));

        way.close();
        return told;
    },
};

const result = await scenarios[told.scenario](told);

console.log(JSON.stringify(result));
process.exit(0);
