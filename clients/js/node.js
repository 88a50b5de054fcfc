// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

// The client under node: all of index.js, and a storage in files, so that a
// process that was killed goes on with the key it had.

import { randomUUID, webcrypto } from 'node:crypto';
import { link, mkdir, open, readdir, readFile, rename, rm }
    from 'node:fs/promises';
import { join } from 'node:path';

// node 18 has it as a module only

globalThis.crypto ??= webcrypto;

export * from './index.js';


// One file for each operation.  A file is there in full or not at all, and of
// several processes that begin the same operation one makes its file: the
// others get that one's key.  sync: false leaves out the wait for the disk,
// so that only a crash of the machine can lose a key.

export function fileStorage(directory, { sync = true } = {}) {
    const file = (name) => join(directory, name);
    let made;

    const written = async (name, text) => {
        await (made ??= mkdir(directory, { recursive: true, mode: 0o700 }));

        const path = file(`.${name}.${randomUUID()}`);
        const handle = await open(path, 'wx', 0o600);

        try {
            await handle.writeFile(text);
            sync && await handle.sync();
        } finally {
            await handle.close();
        }

        return path;
    };

    // that it has this name is on the disk, too

    const settled = async () => {
        if (sync) {
            const handle = await open(directory);

            await handle.sync().finally(() => handle.close());
        }
    };

    const get = (name) => readFile(file(name), 'utf8').catch((e) => {
        if (e.code === 'ENOENT') {
            return null;
        }
        throw e;
    });

    return {
        get,

        async set(name, text) {
            await rename(await written(name, text), file(name));
            await settled();
        },

        async add(name, text) {
            for (;;) {
                const there = await get(name);

                if (there !== null) {
                    return there;
                }

                const path = await written(name, text);

                try {
                    await link(path, file(name));
                    await settled();
                    return text;

                } catch (e) {
                    if (e.code !== 'EEXIST') {
                        throw e;
                    }
                } finally {
                    await rm(path, { force: true });
                }
            }
        },

        remove: (name) => rm(file(name), { force: true }),

        keys: () => readdir(directory).then(
            (names) => names.filter((name) => !name.startsWith('.')), () => []),
    };
}
