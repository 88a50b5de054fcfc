# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""As much of HTTP/1.1 as the servers of the kit need, on asyncio streams."""

import asyncio
import hashlib
import socket
import struct
import time


class Request:
    def __init__(self, method, target, headers, body):
        self.method = method
        self.target = target
        self.path = target.split("?")[0]
        self.headers = headers          # pairs, as they came
        self.body = body
        self.time = time.monotonic()
        self.sha256 = hashlib.sha256(body).hexdigest()

    def header(self, name):
        name = name.lower()
        return next((v for n, v in self.headers if n.lower() == name), None)


async def read_request(reader):
    """The next request, or None at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None

    line, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, _ = line.split(" ", 2)
    headers = [tuple(part.strip() for part in h.split(":", 1)) for h in lines]
    request = Request(method, target, headers, b"")

    try:
        if (request.header("Transfer-Encoding") or "").lower() == "chunked":
            body = await _read_chunked(reader)
        else:
            body = await reader.readexactly(
                int(request.header("Content-Length") or 0))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None

    return Request(method, target, headers, body)


async def _read_chunked(reader):
    body = b""
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        body += (await reader.readexactly(size + 2))[:-2]
        if size == 0:
            return body


def response(status, headers=(), body=b"", reason="Whatever"):
    names = {n.lower() for n, _ in headers}
    lines = [f"HTTP/1.1 {status} {reason}"]
    lines += [f"{n}: {v}" for n, v in headers]
    if (not names & {"content-length", "transfer-encoding"}
            and status not in (204, 304)):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def read_head(reader):
    """The header of a response, less its Connection: close, and whether the
    body tells its own end.  No header, if there is none."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as e:
        return e.partial, False

    lower = head.lower()
    kept = (b"\r\ncontent-length:" in lower
            or b"\r\ntransfer-encoding:" in lower
            or head.startswith((b"HTTP/1.1 204", b"HTTP/1.1 304")))
    if kept:
        head = head.replace(b"\r\nConnection: close", b"")
    return head, kept


def reset(writer):
    """Closes with RST, as a crash or a firewall would."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                            struct.pack("ii", 1, 0))
        except OSError:
            pass
    writer.transport.abort()


async def gone(reader):
    """Returns when the peer has closed."""
    try:
        while await reader.read(65536):
            pass
    except ConnectionError:
        pass
