# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""The client: one key per operation, whatever happens on the way.

What is kept for an operation is one entry under the hash of its name and its
request: another payload is another entry, so it gets another key, and going
back to the first payload finds the first key again.
"""

import http.client
import json as _json
import random
import re
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Optional

from . import answers
from .errors import IdempotencyError
from .keys import TOKEN, checked, random_key, sha256
from .response import Response
from .storage import MemoryStorage
from .transport import HttpTransport

DAY = 24 * 3600
NETWORK = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class Options:
    """Times in seconds."""

    tries: int = 8                      # of one call
    total: float = 120                  # of one call, waits and all
    timeout: float = 30                 # of one try
    backoff: float = 0.1                # twice that for each further wait ...
    max_backoff: float = 5              # ... up to this,
    jitter: float = 0.3                 # and up to that part of it more
    fold: float = 0.1                   # calls closer than that are one
    remember: float = DAY               # how long a success is remembered
    remember_bytes: int = 65536         # ... with a body up to this size
    max_age: float = DAY                # how long a key is good for
    key_format: "re.Pattern" = TOKEN
    quoted: bool = False                # sends an RFC 8941 String
    unknown: str = "report"             # or "retry", where the gateway lets one
    generate: Callable[[], str] = random_key
    transport: Callable = HttpTransport()
    on_event: Optional[Callable[[dict], Any]] = None


class Cancelled(Exception):
    """The caller gave up.  The operation keeps its key."""


class Cancel:
    """Ends a call from another thread: cancel.set()."""

    def __init__(self):
        self._lock = threading.Lock()
        self._set = False
        self._codes = []

    def set(self):
        with self._lock:
            self._set = True
            codes, self._codes = self._codes, []
        for code in codes:
            code()

    def is_set(self):
        return self._set

    def on_set(self, code):
        """Has code called once this is set; returns what takes that back."""
        with self._lock:
            if not self._set:
                self._codes.append(code)
                return lambda: self._remove(code)
        code()
        return lambda: None

    def _remove(self, code):
        with self._lock:
            if code in self._codes:
                self._codes.remove(code)


class _Operation:
    """One call on its way, and all who wait for it."""

    def __init__(self, options, name, operation, key, method, url, headers,
                 body, stream):
        self.o = options
        self.name = name
        self.operation = operation
        self.key = key
        self.method = method
        self.url = url
        self.headers = headers
        self.body = body
        self.stream = stream
        self.entry = self.key_hash = None
        self.tries = 0
        self.started = time.monotonic()
        self.callers = 0
        self.cancel = Cancel()
        self.change = threading.Condition()
        self.result = self.error = None
        self.over = self.taken = False

    def again(self, key):
        """The same request, as an operation of its own under that key."""
        return _Operation(
            self.o, _signature(key, self.method, self.url,
                               _header(self.headers, "Content-Type") or "",
                               self.body),
            key, key, self.method, self.url, self.headers, self.body,
            self.stream)

    def emit(self, type, **more):
        if self.o.on_event is None:
            return
        try:
            self.o.on_event({
                "type": type, "operation": self.operation,
                "method": self.method, "url": self.url,
                "key_hash": self.key_hash, "tries": self.tries,
                "time": time.time(), **more})
        except Exception:               # who watches does not take part
            pass

    def failure(self, code, outcome, retryable=False, response=None,
                status=None, entry=None):
        entry = entry or self.entry
        if response is not None:
            self.label(response)
            status = response.status
        return IdempotencyError(
            code, outcome, retryable=retryable, operation=entry["operation"],
            key=entry["key"], key_hash=self.key_hash, tries=self.tries,
            status=status, response=response)

    def label(self, response):
        response.tries = self.tries
        response.key = self.entry["key"]
        response.key_hash = self.key_hash
        response.operation = self.operation
        return response


class Client:
    """request() sends, and sends again.  Options may be given here, and any of
    them again with each call.  One client serves many threads."""

    def __init__(self, storage=None, **options):
        self.options = Options(**options)
        self._storage = storage if storage is not None else MemoryStorage()
        self._lock = threading.Lock()
        self._flights = {}              # name of the entry -> _Operation
        self._pruned = 0.0

    def request(self, method, url, body=b"", *, json=None, headers=(),
                operation=None, key=None, stream=False, cancel=None,
                **options):
        """The answer of the application, whatever its status.

        operation names what is done (an order, a form); key is for where
        something else names it (workflow_key(), job_key()).  Raises an
        IdempotencyError where there is no answer, Cancelled, or whatever
        http.client says of a request that cannot be sent.
        """
        o = replace(self.options, **options) if options else self.options
        method = method.upper()
        pairs = list(headers.items() if hasattr(headers, "items") else headers)

        if json is not None:
            body = _json.dumps(json, separators=(",", ":")).encode()
            if not _header(pairs, "Content-Type"):
                pairs.append(("Content-Type", "application/json"))
        elif isinstance(body, str):
            body = body.encode()

        if method in ("GET", "HEAD", "OPTIONS", "TRACE"):
            return self._once(o, method, url, pairs, body, stream, cancel)

        if key is None:
            key = _header(pairs, "Idempotency-Key")
            if key is not None and key[:1] == key[-1:] == '"':
                key = key[1:-1]

        if key is not None:
            checked(key, o.key_format)

        pairs = [p for p in pairs if p[0].lower() != "idempotency-key"]
        name = operation if operation is not None else key

        op = _Operation(
            o, _signature(name or "", method, url,
                          _header(pairs, "Content-Type") or "", body),
            name, key, method, url, pairs, body, stream)

        return self._fold(op, cancel)

    def pending(self):
        """Operations that have no final answer yet, for a process that was
        started again."""
        return [{"name": name, **entry} for name, entry in self._entries()
                if not entry.get("done")]

    def forget(self, operation):
        """The next call of this operation (or of the name that pending()
        told) has a new key: for who knows that the old one is over."""
        for name, entry in self._entries():
            if operation in (name, entry.get("operation")):
                self._storage.remove(name)

    # --- callers ------------------------------------------------------------

    def _fold(self, op, cancel):
        while True:
            with self._lock:
                flight = self._flights.get(op.name)
                first = flight is None
                if first:
                    flight = op
                    if op.o.fold or op.operation is not None:
                        self._flights[op.name] = op
                flight.callers += 1

            left = threading.Event()
            forget = (cancel.on_set(partial(self._leave, flight, left))
                      if cancel is not None else lambda: None)

            if not first:
                op.emit("fold")
            elif cancel is None:
                self._fly(flight)
            else:
                threading.Thread(target=self._fly, args=(flight,),
                                 daemon=True).start()

            response = self._join(flight, left, forget)

            # a stream is read by one: the gateway has it for the others

            with self._lock:
                if not (response.is_stream and flight.taken):
                    flight.taken = True
                    break

            op = op.again(response.key)

        return response if first or response.is_stream else _copy(response)

    def _join(self, flight, left, forget):
        with flight.change:
            while not flight.over and not left.is_set():
                flight.change.wait()

        forget()

        if left.is_set():
            raise Cancelled()
        if flight.error is not None:
            raise flight.error
        return flight.result

    # In the thread that cancels: when cancel.set() returns, nobody can fold
    # into a call that all its callers have left.

    def _leave(self, flight, left):
        if flight.over:
            return

        with self._lock:
            flight.callers -= 1
            last = flight.callers == 0
            if last:
                self._land(flight)

        left.set()

        if last:
            flight.cancel.set()
            flight.emit("end", outcome="aborted")

        with flight.change:
            flight.change.notify_all()

    def _fly(self, op):
        try:
            op.result = self._run(op)
        except BaseException as e:
            op.error = e

        left = op.o.fold - (time.monotonic() - op.started)

        if op.error is None and not op.result.is_stream and left > 0:
            timer = threading.Timer(left, self._land_now, args=(op,))
            timer.daemon = True
            timer.start()
        else:
            self._land_now(op)

        with op.change:
            op.over = True
            op.change.notify_all()

    def _land(self, op):
        if self._flights.get(op.name) is op:
            del self._flights[op.name]

    def _land_now(self, op):
        with self._lock:
            self._land(op)

    # --- an operation -------------------------------------------------------

    def _run(self, op):
        o = op.o
        resumed = self._begin(op)

        op.emit("start", resumed=resumed)

        if op.entry.get("done"):
            op.emit("remembered")
            return _remembered(op)

        while True:
            answer = cause = None

            if op.cancel.is_set():
                raise Cancelled()

            op.tries += 1
            op.emit("try")

            try:
                answer = self._attempt(
                    op, min(o.timeout,
                            o.total - (time.monotonic() - op.started)))
            except NETWORK as e:
                if op.cancel.is_set():
                    raise Cancelled() from e
                cause = e

            op.emit("answer", cause=cause, status=answer and answer.status,
                    code=answer and answer.code,
                    replayed=answer and answer.response.replayed)

            if answer is not None and not answer.again:
                return self._finish(op, answer)

            wait = _backoff(o, op.tries - 1)
            if answer is not None:
                wait = max(wait, answer.after)

            if (op.tries >= o.tries
                    or time.monotonic() - op.started + wait > o.total):
                op.emit("end", outcome="unknown")
                raise op.failure(answer and answer.code or "GAVE_UP",
                                 "unknown", True,
                                 answer and answer.response) from cause

            op.emit("wait", seconds=wait)
            _sleep(op, wait)

    def _attempt(self, op, timeout):
        key = op.entry["key"]
        headers = op.headers + [
            ("Idempotency-Key", f'"{key}"' if op.o.quoted else key)]
        raw = op.o.transport(op.method, op.url, headers, op.body,
                             max(timeout, 0.001), op.cancel.on_set)
        return _answer(op.o, raw, op.url, op.stream)

    def _begin(self, op):
        """The entry of this operation: the one that is there, or a new one.
        Returns whether it was there."""
        o, now = op.o, time.time() * 1000
        fresh = {
            "key": op.key if op.key is not None
            else checked(o.generate(), o.key_format),
            "operation": op.operation, "method": op.method, "url": op.url,
            "since": int(now),
        }
        text = _json.dumps(fresh)

        self._safely(op, lambda: self._prune(o, now))
        there = self._safely(op, lambda: self._storage.add(op.name, text))
        entry = fresh if there in (None, text) else answers.parse(there)

        # too old: a remembered success is over, and so is an operation that
        # nobody named; of one that has a name nobody knows what became of it

        if not isinstance(entry, dict) or (
                now - entry["done"] > o.remember * 1000 if entry.get("done")
                else now - entry["since"] > o.max_age * 1000):

            if (isinstance(entry, dict) and not entry.get("done")
                    and op.operation is not None):
                raise op.failure("KEY_EXPIRED", "unknown", entry=entry)

            entry = fresh
            self._safely(op, lambda: self._storage.set(op.name, text))

        op.entry = entry
        op.key_hash = sha256(entry["key"])
        return entry is not fresh

    def _finish(self, op, answer):
        """A final answer: what is known about the operation from now on."""
        response, code = answer.response, answer.code
        status = response.status

        if code:
            outcome = answers.OUTCOME.get(code, "unknown")
        else:
            outcome = "ran" if status < 400 else "none"

        def done():
            if outcome == "ran":
                if op.operation is not None:
                    self._keep(op, code, response)
                elif not code:
                    self._safely(op, lambda: self._storage.remove(op.name))
            elif ("_KEY_" in code if code
                  else status < 500 and status not in answers.NOT_NOW):
                self._safely(op, lambda: self._storage.remove(op.name))

            op.emit("end", outcome=outcome, status=status, code=code)

        op.label(response)

        if response.is_stream:
            response._ended = done
        else:
            done()

        if code:
            raise op.failure(code, outcome, answer.retryable is True, response)

        return response

    def _keep(self, op, code, response):
        entry = {**op.entry, "done": int(time.time() * 1000),
                 "status": response.status}

        if code:
            entry["code"] = code
        elif (not response.is_stream
              and len(response.body) <= op.o.remember_bytes):
            entry["statusText"] = response.reason
            entry["headers"] = [[n, v] for n, v in response.headers
                                if n.lower() != "set-cookie"]
            entry["body"] = response.body.decode("latin-1")

        self._safely(op, lambda: self._storage.set(op.name,
                                                   _json.dumps(entry)))

    def _once(self, o, method, url, headers, body, stream, cancel):
        cancel = cancel or Cancel()
        raw = o.transport(method, url, headers, body, o.timeout, cancel.on_set)
        return _answer(o, raw, url, stream).response

    # --- the storage --------------------------------------------------------

    def _entries(self):
        for name in self._storage.keys():
            entry = answers.parse(self._storage.get(name))
            if isinstance(entry, dict):
                yield name, entry

    def _prune(self, o, now):
        """Once a minute: what is remembered too long, or was never finished."""
        if now - self._pruned < 60000:
            return
        self._pruned = now

        for name, entry in self._entries():
            if (now - entry["done"] > o.remember * 1000 if entry.get("done")
                    else now - entry["since"] > 30 * o.max_age * 1000):
                self._storage.remove(name)

    def _safely(self, op, code):
        """A storage that fails is told, and does not keep anybody from
        working."""
        try:
            return code()
        except Exception as e:
            op.emit("storage", cause=e)
            return None


def _answer(o, raw, url, stream):
    response = Response(raw.status, raw.reason, list(raw.headers), url)
    content_type = response.header("Content-Type", "")

    if raw.status < 400 and (stream
                             or content_type.startswith("text/event-stream")):
        if hasattr(raw, "no_limit"):
            raw.no_limit()
        response._raw = raw
    else:
        try:
            response._body = b"".join(iter(raw.read, b""))
        finally:
            raw.close()

    return answers.judge(o.unknown, response)


def _remembered(op):
    entry = op.entry

    if "body" not in entry:
        raise op.failure(entry.get("code", "ALREADY_DONE"), "ran",
                         status=entry.get("status"))

    response = Response(entry["status"], entry.get("statusText", ""),
                        [tuple(h) for h in entry["headers"]], entry["url"],
                        entry["body"].encode("latin-1"))
    op.label(response)
    response.replayed = response.local = True
    return response


def _copy(response):
    copy = Response(response.status, response.reason, list(response.headers),
                    response.url, response.body)
    for name in ("replayed", "local", "tries", "key", "key_hash", "operation"):
        setattr(copy, name, getattr(response, name))
    return copy


def _backoff(o, n):
    wait = min(o.backoff * 2 ** n, o.max_backoff)
    return wait * (1 + random.random() * o.jitter)


def _sleep(op, seconds):
    woken = threading.Event()
    forget = op.cancel.on_set(woken.set)
    woken.wait(seconds)
    forget()
    if op.cancel.is_set():
        raise Cancelled()


def _header(pairs, name):
    name = name.lower()
    return next((v for n, v in pairs if n.lower() == name), None)


def _signature(operation, method, url, content_type, body):
    """What makes a request this one.  The boundary of a form is another for
    each try, and does not count; nor does it for the gateway."""
    boundary = re.search(r'boundary="?([^";]+)', content_type)
    text = _json.dumps([operation, method, url, content_type],
                       ensure_ascii=False, separators=(",", ":"))
    text += "\n" + body.decode("latin-1")
    if boundary:
        text = text.replace(boundary[1], "")
    return sha256(text)
