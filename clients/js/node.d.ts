// Copyright (C) the contributors of ngx_http_idempotency_module
// SPDX-License-Identifier: BSD-2-Clause

import type { Storage } from './index.js';

export * from './index.js';

/** One file for each operation, in a directory that is made if need be. */
export function fileStorage(directory: string,
                            options?: { sync?: boolean }): Storage;
