# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""What the conformance kit does not see from outside: storages, asyncio, and
what the answer has on it.  python3 -m unittest discover clients/python/tests"""

import asyncio
import hashlib
import http.server
import json
import os
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from idempotency_client import (AsyncClient, Cancel, Cancelled, Client,
                                FileStorage, IdempotencyError, MemoryStorage)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        server.seen.append((self.headers["Idempotency-Key"], body))
        status, text, headers, late = (
            server.script.pop(0) if server.script else (200, b"", {}, 0))
        time.sleep(late)
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except OSError:
            pass

    def log_message(self, *_):
        pass


def step(status, text=b"", headers=None, late=0):
    return status, text, headers or {}, late


class ClientTest(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.seen = []
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, args=(0.01,),
                         daemon=True).start()

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()

    def script(self, *steps):
        self.server.script = list(steps)

    def keys(self):
        return [key for key, _ in self.server.seen]

    def test_the_answer_tells_how_it_came(self):
        self.script(step(503), step(201, b'{"a":1}',
                                    {"Idempotent-Replayed": "true"}))
        r = Client().request("POST", self.url, json={"x": 1}, operation="o")
        self.assertEqual((r.status, r.json(), r.replayed, r.local, r.tries,
                          r.operation, r.ok),
                         (201, {"a": 1}, True, False, 2, "o", True))
        self.assertEqual(r.key_hash,
                         hashlib.sha256(r.key.encode()).hexdigest())
        self.assertEqual(self.server.seen[0][1], b'{"x":1}')

    def test_storage_that_fails(self):
        class Bad:
            def __getattr__(self, name):
                raise OSError("no space left")

        told = []

        def watch(event):
            told.append(event["type"])
            raise RuntimeError("ignored")

        self.script(step(503), step(200, b"done"))
        r = Client(Bad(), on_event=watch).request("POST", self.url, "x")
        self.assertEqual(r.text, "done")
        self.assertEqual(len(set(self.keys())), 1)
        self.assertIn("storage", told)

    def test_entry_that_is_broken(self):
        storage = MemoryStorage()
        client = Client(storage, tries=1)
        self.script(step(503), step(200))
        with self.assertRaises(IdempotencyError):
            client.request("POST", self.url, "x", operation="o")
        for broken in ("{", "[1]"):
            storage.set(storage.keys()[0], broken)
        client.request("POST", self.url, "x", operation="o")
        self.assertEqual(len(set(self.keys())), 2)

    def test_file_storage(self):
        with tempfile.TemporaryDirectory() as directory:
            storages = [FileStorage(directory) for _ in range(8)]
            got = []
            threads = [threading.Thread(
                target=lambda i=i, s=s: got.append(s.add("a", f"v{i}")))
                for i, s in enumerate(storages)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual((len(got), len(set(got))), (8, 1))
            storages[0].set("a", "new")
            self.assertEqual(storages[1].get("a"), "new")
            self.assertEqual(os.listdir(directory), ["a"])
            storages[2].remove("a")
            self.assertIsNone(storages[1].get("a"))

    def test_what_is_remembered_too_long_goes(self):
        storage = MemoryStorage()
        self.script()
        Client(storage, remember=0.05).request("POST", self.url, "x",
                                               operation="old")
        time.sleep(0.1)
        Client(storage, remember=0.05).request("POST", self.url, "x",
                                               operation="new")
        self.assertEqual([json.loads(storage.get(k))["operation"]
                          for k in storage.keys()], ["new"])

    def test_cookies_are_not_remembered(self):
        storage = MemoryStorage()
        self.script(step(200, b"", {"Set-Cookie": "session=secret"}))
        Client(storage).request("POST", self.url, "x", operation="o")
        self.assertNotIn("secret", "".join(map(storage.get, storage.keys())))

    def test_an_error_says_what_is_known(self):
        self.script(step(409, json.dumps({"error": {
            "code": "IDEMPOTENCY_CONFLICT", "retryable": False}}).encode(),
            {"Content-Type": "application/problem+json"}))
        with self.assertRaises(IdempotencyError) as caught:
            Client().request("POST", self.url, "x", operation="o")
        e = caught.exception
        self.assertRegex(str(e), "^IDEMPOTENCY_CONFLICT: .*did not run")
        self.assertEqual(e.response.json()["error"]["code"], e.code)
        self.assertEqual(e.key, self.keys()[0])

    def test_what_cannot_be_sent_is_no_reason_to_retry(self):
        with self.assertRaises(ValueError):
            Client().request("POST", "ftp://example.org/", "x")

    def test_cancel(self):
        self.script(step(200, late=5))
        cancel = Cancel()
        threading.Timer(0.2, cancel.set).start()
        began = time.monotonic()
        with self.assertRaises(Cancelled):
            Client().request("POST", self.url, "x", cancel=cancel)
        self.assertLess(time.monotonic() - began, 4)

    def test_asyncio(self):
        self.script(step(503), step(200, b"done"))

        async def main():
            async with AsyncClient() as client:
                a, b = await asyncio.gather(
                    client.request("POST", self.url, "x", operation="o"),
                    client.request("POST", self.url, "x", operation="o"))
                return a.text, b.text, await client.pending()

        self.assertEqual(asyncio.run(main()), ("done", "done", []))
        self.assertEqual(len(set(self.keys())), 1)
        self.assertEqual(len(self.keys()), 2)

    def test_asyncio_cancelled_keeps_the_key(self):
        self.script(step(200, late=2), step(200, b"done"))

        async def main():
            async with AsyncClient() as client:
                task = asyncio.ensure_future(
                    client.request("POST", self.url, "x", operation="o"))
                while not self.server.seen:
                    await asyncio.sleep(0.01)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                pending = await client.pending()
                r = await client.request("POST", self.url, "x", operation="o")
                return [p["operation"] for p in pending], r.text

        self.assertEqual(asyncio.run(main()), (["o"], "done"))
        self.assertEqual(len(set(self.keys())), 1)


if __name__ == "__main__":
    unittest.main()
