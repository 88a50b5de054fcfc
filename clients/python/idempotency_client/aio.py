# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""The client for asyncio: the same one, in threads of its own."""

import asyncio
import concurrent.futures
import functools

from .client import Cancel, Client


class AsyncClient:
    """As Client, with request() to be awaited.  A task that is cancelled ends
    its request; the operation keeps its key.  Streams are read in full:
    use Client in a thread for them."""

    def __init__(self, storage=None, *, threads=32, **options):
        self._client = Client(storage, **options)
        self._pool = concurrent.futures.ThreadPoolExecutor(
            threads, thread_name_prefix="idempotency")

    async def request(self, method, url, *arguments, **options):
        cancel = Cancel()
        future = asyncio.get_running_loop().run_in_executor(
            self._pool, functools.partial(
                self._whole, method, url, *arguments, cancel=cancel, **options))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda f: f.cancelled() or f.exception())
            cancel.set()
            raise

    async def pending(self):
        return await asyncio.to_thread(self._client.pending)

    async def forget(self, operation):
        await asyncio.to_thread(self._client.forget, operation)

    async def aclose(self):
        await asyncio.to_thread(self._pool.shutdown)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.aclose()

    def _whole(self, *arguments, **options):
        response = self._client.request(*arguments, **options)
        response.read()
        return response
