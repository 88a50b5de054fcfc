# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""The client under test: a program that is told what to do in lines of JSON.
../README.md has the protocol."""

import asyncio
import json
import os
import signal


class Client:
    def __init__(self, command, storage):
        self.command = command
        self.storage = storage          # a directory, for its process to keep
        self.can = set()
        self.name = command
        self.events = []
        self._process = None
        self._answers = {}
        self._reader = None

    async def start(self):
        self._process = await asyncio.create_subprocess_shell(
            f"exec {self.command}", stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, limit=1 << 26,
            env={**os.environ, "CONFORMANCE_STORAGE": self.storage})
        self._hello = asyncio.get_running_loop().create_future()
        self._reader = asyncio.ensure_future(self._read())
        hello = await asyncio.wait_for(self._hello, 60)
        self.name = hello.get("name", self.command)
        self.can = set(hello.get("can", []))

    async def _read(self):
        while True:
            line = await self._process.stdout.readline()
            if not line:
                break
            message = json.loads(line)
            if "hello" in message:
                self._hello.set_result(message["hello"])
            elif "event" in message:
                self.events.append(message["event"])
            else:
                future = self._answers.get(message["id"])
                if future is not None and not future.done():
                    future.set_result(message)

        if not self._hello.done():
            self._hello.set_exception(RuntimeError("the client has ended"))
        for future in self._answers.values():
            if not future.done():
                future.set_result({"error": {"code": "PROCESS_ENDED"}})

    def tell(self, id, do, **more):
        """Sends a command; the answer is a future."""
        future = asyncio.get_running_loop().create_future()
        if id is not None:
            self._answers[id] = future
        message = {"do": do, **({"id": id} if id is not None else {}), **more}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        return future

    async def kill(self):
        """As a crash would."""
        try:
            self._process.send_signal(signal.SIGKILL)
        except ProcessLookupError:
            pass
        await self._process.wait()
        await self._reader

    async def stop(self):
        if self._process is None or self._process.returncode is not None:
            return
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except asyncio.TimeoutError:
            await self.kill()
