import type { Storage } from './index.js';

export * from './index.js';

/** One file for each operation, in a directory that is made if need be. */
export function fileStorage(directory: string,
                            options?: { sync?: boolean }): Storage;
