# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""What a client connects to: it sees every request, and decides for each what
the network, or a gateway that is played from a script, makes of it.

A step, as it stands in a scenario:

    {"status": 503, "headers": {...}, "json": {...}}    answers by itself
    "pass"          passes it to the gateway, and the answer back
    "reset"         RST, and nothing is passed on; "close": the same with FIN
    "hang"          nothing is passed on, and nothing answered
    "lost"          passes it on, and resets when the answer has come
    "gone"          passes it on, and resets both sides before there is one
    "truncate"      passes it on, and half of the answer back, then resets
    "slow:<ms>"     passes it on, and the answer back that much later
    "late:<ms>"     passes it on that much later
"""

import asyncio
import json

from . import http


class Front:
    def __init__(self, steps, default="pass", gateway=None):
        self.gateway = gateway          # its port, if there is one
        self.steps = list(steps)        # for the next requests, in their order
        self.default = default          # for all further ones
        self.decide = None              # or a function that names each step
        self.seen = []
        self.unexpected = 0
        self._tasks = set()

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0,
                                                  backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            # connections are kept, as nginx keeps them: where one is to be
            # closed, some clients take any end of it for that of the body

            while True:
                request = await http.read_request(reader)
                if request is None or not await self._act(request, reader,
                                                          writer):
                    break
        except (ConnectionError, asyncio.CancelledError, OSError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _act(self, request, reader, writer):
        """Returns whether the connection is to be kept."""
        self.seen.append(request)

        if self.decide is not None:
            step = self.decide(request)
        elif self.steps:
            step = self.steps.pop(0)
        else:
            step = self.default

        if isinstance(step, dict):
            await asyncio.sleep(step.get("ms", 0) / 1000)
            return await self._answer(step, writer)

        name, _, ms = step.partition(":")

        if name == "reset":
            http.reset(writer)
        elif name == "hang":
            await http.gone(reader)
        elif name == "none":            # more than the script has
            self.unexpected += 1
            writer.write(http.response(404, body=b"not in the script\n"))
            await writer.drain()
        elif name != "close":
            if name == "late":
                await asyncio.sleep(int(ms) / 1000)
            return await self._pass(request, name, int(ms or 0) / 1000, reader,
                                    writer)
        return False

    async def _answer(self, step, writer):
        headers = list(step.get("headers", {}).items())
        body = step.get("body", "").encode()

        if "json" in step:
            body = json.dumps(step["json"]).encode()
            if not any(n.lower() == "content-type" for n, _ in headers):
                headers.append(("Content-Type", "application/problem+json"))

        data = http.response(step["status"], headers, body)
        cut = step.get("cut")

        if cut is None:
            writer.write(data)
            await writer.drain()
            return True

        # so many bytes of the body, then RST or FIN

        writer.write(data[:len(data) - len(body) + cut])
        await writer.drain()
        await asyncio.sleep(0.05)
        if step.get("rst"):
            http.reset(writer)
        return False

    async def _pass(self, request, name, late, reader, writer):
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1",
                                                             self.gateway)
        try:
            up_writer.write(self._forwarded(request))
            await up_writer.drain()

            if name == "gone":
                await asyncio.sleep(0.3)
                http.reset(writer)
                http.reset(up_writer)
                return False

            if name in ("lost", "truncate", "slow"):
                head, kept = await http.read_head(up_reader)
                body = await up_reader.read(-1)
                if name == "slow":
                    await asyncio.sleep(late)
                    writer.write(head + body)
                    await writer.drain()
                    return kept
                if name == "truncate":
                    writer.write(head + body[:len(body) // 2])
                    await writer.drain()
                    await asyncio.sleep(0.05)
                http.reset(writer)
                return False

            return await self._relay(up_reader, up_writer, reader, writer)
        finally:
            up_writer.close()

    async def _relay(self, up_reader, up_writer, reader, writer):
        # a client that goes away is felt by the gateway

        leave = asyncio.ensure_future(http.gone(reader))
        leave.add_done_callback(lambda _: up_writer.close())

        try:
            head, kept = await http.read_head(up_reader)
            data = head
            while data:
                writer.write(data)
                await writer.drain()
                data = await up_reader.read(65536)
            return kept
        finally:
            leave.cancel()
            await asyncio.wait([leave])

    @staticmethod
    def _forwarded(request):
        lines = [f"{request.method} {request.target} HTTP/1.1"]
        lines += [f"{n}: {v}" for n, v in request.headers
                  if n.lower() not in ("connection", "transfer-encoding",
                                       "content-length", "keep-alive")]
        lines += [f"Content-Length: {len(request.body)}", "Connection: close"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + request.body
