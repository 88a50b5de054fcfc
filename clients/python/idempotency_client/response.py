# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""An answer, and what is known about how it came."""

import json as _json


class Response:
    """status, reason, headers (pairs, as they came), url, and body (bytes).

    Of a stream there is no body: iterate over it, or read() it, and close()
    it or use it as a context manager.  replayed: the gateway had it stored;
    local: it was remembered here, and the gateway not asked.
    """

    def __init__(self, status, reason, headers, url, body=None, raw=None):
        self.status = status
        self.reason = reason
        self.headers = headers
        self.url = url
        self.replayed = self.header("Idempotent-Replayed") == "true"
        self.local = False
        self.tries = 0
        self.key = self.key_hash = self.operation = None
        self._body = body
        self._raw = raw
        self._ended = lambda: None

    def header(self, name, default=None):
        """The first of this name."""
        name = name.lower()
        return next((v for n, v in self.headers if n.lower() == name), default)

    @property
    def ok(self):
        return 200 <= self.status < 300

    @property
    def body(self):
        if self._body is None:
            self._body = b"".join(self)
        return self._body

    def read(self):
        return self.body

    @property
    def text(self):
        return self.body.decode("utf-8", "replace")

    def json(self):
        return _json.loads(self.body)

    @property
    def is_stream(self):
        return self._raw is not None

    def __iter__(self):
        """The body as it comes.  An error in the middle leaves the operation
        pending: the next call of it reads the whole from its beginning."""
        if self._raw is None:
            yield self.body
            return

        try:
            while True:
                chunk = self._raw.read()
                if not chunk:
                    break
                yield chunk
            self._ended()
        finally:
            self.close()

    def lines(self):
        """The lines of a stream, without their ends."""
        rest = b""
        for chunk in self:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.rstrip(b"\r").decode("utf-8", "replace")
        if rest:
            yield rest.decode("utf-8", "replace")

    def close(self):
        if self._raw is not None:
            self._raw.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"<Response {self.status}{' replayed' * self.replayed}>"
