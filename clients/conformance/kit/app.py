# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""The application behind the gateway.  Each path is an operation; what its
executions do is told beforehand, one after the other:

    {"status": 201, "headers": {...}, "ms": 300, "size": 2000}
    {"fault": "reset" | "close" | "hang" | "truncate" | "garbage"}
    {"hold": true}      answers when it is released
    {"sse": 3}          so many events

Its answer is {"run": <n>, "operation": <path>, "token": <another each time>}.
"""

import asyncio
import json
import time
import uuid

from . import http


class Run:
    def __init__(self, step, token):
        self.step = step
        self.token = token
        self.began = time.monotonic()
        self.ended = None

    def __repr__(self):
        return f"{self.step} {self.token[:8]}"


class App:
    def __init__(self):
        self.plans = {}                 # path -> steps still to come
        self.runs = {}                  # path -> [Run ...]
        self.choose = None              # or a function that makes the step
        self._held = {}                 # path -> what its executions wait for

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0,
                                                  backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self):
        self._server.close()
        for path in list(self._held):
            self.release(path)

    def plan(self, path, steps):
        self.plans[path] = list(steps)
        self._held[path] = asyncio.Event()

    def release(self, path):
        self._held[path].set()

    def count(self, path):
        return len(self.runs.get(path, []))

    async def _serve(self, reader, writer):
        try:
            request = await http.read_request(reader)
            if request is not None:
                run = self._begin(request)
                try:
                    await self._execute(request, run, reader, writer)
                finally:
                    run.ended = time.monotonic()
        except (ConnectionError, OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _begin(self, request):
        plan = self.plans.get(request.path)

        if self.choose is not None:
            step = self.choose(request)
        else:
            step = plan.pop(0) if plan else {}

        run = Run(step, uuid.uuid4().hex)
        self.runs.setdefault(request.path, []).append(run)
        run.number = self.count(request.path)
        return run

    async def _execute(self, request, run, reader, writer):
        path, step, token = request.path, run.step, run.token

        body = json.dumps({"run": run.number, "operation": path,
                           "token": token}).encode()
        body += b" " * (step.get("size", 0) - len(body))

        if step.get("hold"):
            await self._held[path].wait()
        if "ms" in step:
            await asyncio.sleep(step["ms"] / 1000)

        fault = step.get("fault")
        status = step.get("status", 200)
        headers = [("Content-Type", "application/json"),
                   *step.get("headers", {}).items()]

        if "sse" in step:
            await self._events(step, token, writer)
        elif fault == "reset":
            http.reset(writer)
        elif fault == "hang":
            await http.gone(reader)
        elif fault == "truncate":
            writer.write(http.response(status, headers, body)[:-20])
            await writer.drain()
        elif fault == "garbage":
            writer.write(b"\x01\x02 what is that\r\n\r\n")
            await writer.drain()
        elif fault != "close":
            writer.write(http.response(status, headers, body))
            await writer.drain()

    async def _events(self, step, token, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n")
        for n in range(step["sse"]):
            event = f"data: {token} event {n}\n\n"
            writer.write(f"{len(event):x}\r\n{event}\r\n".encode())
            await writer.drain()
            await asyncio.sleep(0.02)
        if step.get("fault") == "reset":
            http.reset(writer)
        else:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
