# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""One HTTP request by way of http.client.

A transport of your own is called with method, url, headers (pairs), body,
timeout (s, for the whole of it) and on_cancel, and returns what has status,
reason, headers (pairs), read() (the next piece of the body, b"" at its end;
an error if it broke off) and close().  on_cancel(code) has code called when
nobody waits for the answer any more; what it returns takes that back.
"""

import http.client
import socket
import ssl
import time
from urllib.parse import urlsplit


class HttpTransport:
    """Redirects are not followed: they are answers."""

    def __init__(self, context=None):
        self._context = context

    def __call__(self, method, url, headers, body, timeout, on_cancel):
        return _Exchange(self._connect(url, timeout), method, url, headers,
                         body, timeout, on_cancel)

    def _connect(self, url, timeout):
        parts = urlsplit(url)

        if parts.scheme == "https":
            context = self._context or ssl.create_default_context()
            return http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=timeout, context=context)

        if parts.scheme != "http":
            raise ValueError(f"{url!r} is neither http nor https")

        return http.client.HTTPConnection(parts.hostname, parts.port,
                                          timeout=timeout)


class _Exchange:
    def __init__(self, connection, method, url, headers, body, timeout,
                 on_cancel):
        self._connection = connection
        self._end = time.monotonic() + timeout
        self._forget = lambda: None

        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

        try:
            connection.connect()
            # http.client lets go of the socket when the answer ends with the
            # connection
            self._socket = connection.sock
            self._forget = on_cancel(self._shut)

            connection.putrequest(method, target, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.putheader("Connection", "close")
            connection.endheaders(body)

            self._limit()
            self._response = connection.getresponse()
        except BaseException:
            self.close()
            raise

        self._left = self._response.length      # None: the body tells its end
        self.status = self._response.status
        self.reason = self._response.reason
        self.headers = self._response.getheaders()

    def no_limit(self):
        """A stream may take as long as it likes."""
        self._end = None
        self._limit()

    def read(self):
        if self._left == 0:
            return b""

        self._limit()
        chunk = self._response.read1(min(65536, self._left or 65536))

        # http.client takes the end of the connection for the end of the body

        if self._left is not None:
            if not chunk:
                raise http.client.IncompleteRead(b"", self._left)
            self._left -= len(chunk)

        return chunk

    def close(self):
        self._forget()
        self._connection.close()
        response = getattr(self, "_response", None)
        if response is not None:
            response.close()

    def _limit(self):
        left = None
        if self._end is not None:
            left = self._end - time.monotonic()
            if left <= 0:
                raise socket.timeout("no answer in time")
        self._socket.settimeout(left)

    def _shut(self):
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
