# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""Plays a scenario: tells the client what to do, step by step, and holds what
came against what should have.  ../README.md has the form."""

import asyncio
import itertools
import os
import re
import shutil
import time

from .client import Client
from .front import Front
from .site import in_thread

PATIENCE = 60


class Failed(Exception):
    pass


class Player:
    def __init__(self, scenario, number, command, app, site, directory):
        self.scenario = scenario
        self.command = command
        self.app, self.site = app, site
        self.storage = os.path.join(directory, f"storage{number}")
        self.path = f"/{scenario.get('location', 'plain')}/{number}"
        self.front = Front(scenario.get("network", []),
                           "pass" if scenario.get("peer") == "gateway"
                           else "none", site and site.port)
        self.futures = {}
        self.clients = {}
        self.ids = {}
        self.next_id = itertools.count(1)
        self.events = []

    async def play(self):
        """Returns None, or why it was left out; raises Failed."""
        scenario = self.scenario

        await self.front.start()
        self.app.plan(self.path, scenario.get("app", []))

        client = await self._client(1)
        missing = set(scenario.get("needs", [])) - client.can

        try:
            if missing:
                return "the client has no " + ", ".join(sorted(missing))

            for at, step in enumerate(scenario["steps"], 1):
                try:
                    await self._step(step)
                except Failed as e:
                    raise Failed(f"step {at}: {e}") from None
            self._check_end(scenario)
        finally:
            await self._end()
        return None

    async def _client(self, process):
        if process not in self.clients:
            client = Client(self.command, self.storage)
            client.events = self.events
            await client.start()
            self.clients[process] = client
        return self.clients[process]

    async def _end(self):
        self.app.release(self.path)
        for client in self.clients.values():
            await client.kill()
        await self.front.stop()
        shutil.rmtree(self.storage, ignore_errors=True)

    def _check_end(self, scenario):
        if self.front.unexpected:
            raise Failed(f"{self.front.unexpected} requests more than the "
                         f"script has")
        if "seen" in scenario:
            self._seen(scenario["seen"])
        if "executions" in scenario:
            self._executions(scenario["executions"])

    # --- steps --------------------------------------------------------------

    async def _step(self, step):
        for kind in ("start", "send", "expect", "abort", "wait", "sleep", "release",
                     "kill", "gateway", "pending", "forget", "key", "seen",
                     "executions", "events"):
            if kind in step:
                await getattr(self, f"_do_{kind}")(step)
                return
        raise Failed(f"no such step: {step}")

    async def _do_start(self, step):
        await self._client(step["start"])

    async def _do_send(self, step):
        process = step.get("process", 1)
        client = await self._client(process)
        id = next(self.next_id)
        more = {name: step[name] for name in
                ("method", "headers", "body", "operation", "key", "generator",
                 "stream") if name in step}
        options = {**self.scenario.get("options", {}), **step.get("options", {})}
        url = (f"http://127.0.0.1:{self.front.port}{self.path}"
               f"{step.get('query', '')}")

        self.ids[step["send"]] = (process, id)
        self.futures[step["send"]] = client.tell(id, "send", url=url,
                                                 options=options, **more)
        # what is sent first is first
        await asyncio.sleep(0.005)

    async def _do_expect(self, step):
        name = step["expect"]
        try:
            message = await asyncio.wait_for(
                asyncio.shield(self.futures[name]), PATIENCE)
        except asyncio.TimeoutError:
            raise Failed(f"no answer to \"{name}\" in {PATIENCE} s") from None

        got = message.get("result") or message.get("error")

        if ("error" in step) != ("error" in message):
            raise Failed(f"\"{name}\" got {got}")

        for field in ("status", "replayed", "local", "tries", "outcome",
                      "retryable", "body"):
            if field in step and got.get(field) != step[field]:
                raise Failed(f"\"{name}\": {field} is {got.get(field)!r}, not "
                             f"{step[field]!r}: {got}")

        if "error" in step and got.get("code") != step["error"]:
            raise Failed(f"\"{name}\": code is {got.get('code')}, not "
                         f"{step['error']}: {got}")

        if "same_body" in step:
            other = (await self.futures[step["same_body"]]).get("result", {})
            if other.get("body") != got.get("body"):
                raise Failed(f"\"{name}\": {got.get('body')!r} is not the body "
                             f"of \"{step['same_body']}\": {other.get('body')!r}")

        if "run" in step and f'"run": {step["run"]},' not in got.get("body", ""):
            raise Failed(f"\"{name}\" is not of run {step['run']}: {got}")

    async def _do_abort(self, step):
        process, id = self.ids[step["abort"]]
        self.clients[process].tell(None, "abort", of=id)

    async def _do_wait(self, step):
        """For so many requests to be seen, or executions to have begun."""
        end = time.monotonic() + PATIENCE
        want = step["wait"]

        while (len(self.front.seen) < want.get("requests", 0)
               or self.app.count(self.path) < want.get("executions", 0)):
            if time.monotonic() > end:
                raise Failed(f"in vain for {want}: {len(self.front.seen)} "
                             f"requests, {self.app.count(self.path)} executions")
            await asyncio.sleep(0.005)

    async def _do_sleep(self, step):
        await asyncio.sleep(step["sleep"] / 1000)

    async def _do_release(self, step):
        self.app.release(self.path)

    async def _do_kill(self, step):
        client = self.clients.pop(step["kill"])
        await client.kill()

    async def _do_gateway(self, step):
        act = {
            "reload": self.site.reload, "kill": self.site.kill_workers,
            "pause store": lambda: self.site.pause_store(True),
            "resume store": lambda: self.site.pause_store(False),
        }[step["gateway"]]
        await in_thread(act)

    async def _ask(self, step, do, **more):
        client = await self._client(step.get("process", 1))
        return await asyncio.wait_for(
            client.tell(next(self.next_id), do, **more), PATIENCE)

    async def _do_pending(self, step):
        got = (await self._ask(step, "pending"))["result"]
        if sorted(map(str, got)) != sorted(map(str, step["pending"])):
            raise Failed(f"pending are {got}, not {step['pending']}")

    async def _do_forget(self, step):
        await self._ask(step, "forget", operation=step["forget"])

    async def _do_key(self, step):
        got = await self._ask(step, "key", generator=step["key"])
        if "error" in step:
            if "error" not in got:
                raise Failed(f"{step['key']} made a key: {got}")
        elif not re.fullmatch(step["like"], got.get("result") or ""):
            raise Failed(f"{step['key']} made {got}")

    async def _do_seen(self, step):
        self._seen(step["seen"])

    async def _do_executions(self, step):
        self._executions(step["executions"])

    async def _do_events(self, step):
        end = time.monotonic() + 5
        while True:
            got = [e["type"] for e in self.events
                   if e["operation"] == step.get("operation")]
            if got == step["events"]:
                return
            if time.monotonic() > end:
                raise Failed(f"events are {got}, not {step['events']}")
            await asyncio.sleep(0.02)

    # --- what was seen on the other side --------------------------------------

    def _seen(self, want):
        seen = self.front.seen
        keys = [_bare(r.header("Idempotency-Key")) for r in seen]

        if "requests" in want and len(seen) != want["requests"]:
            raise Failed(f"{len(seen)} requests were seen, not "
                         f"{want['requests']}")

        if "keys" in want and _pattern(keys) != want["keys"]:
            raise Failed(f"the keys of the requests are {_pattern(keys)}, not "
                         f"{want['keys']}: {keys}")

        if "bodies" in want:
            got = _pattern([r.sha256 for r in seen])
            if got != want["bodies"]:
                raise Failed(f"the bodies of the requests are {got}, not "
                             f"{want['bodies']}")

        if "key_like" in want:
            for r in seen:
                if not re.fullmatch(want["key_like"],
                                    r.header("Idempotency-Key") or ""):
                    raise Failed(f"the key {r.header('Idempotency-Key')!r} is "
                                 f"not like {want['key_like']}")

        # Lower bounds are exact, less what clocks and timers round; upper
        # ones are for a machine that is busy.

        for at, gap in enumerate(want.get("gaps_ms", [])):
            least, most = gap if isinstance(gap, list) else (gap, None)
            got = (seen[at + 1].time - seen[at].time) * 1000
            if got < least * 0.98 - 2:
                raise Failed(f"try {at + 2} came after {got:.0f} ms, "
                             f"not {least}")
            if most is not None and got > most:
                raise Failed(f"try {at + 2} came after {got:.0f} ms, "
                             f"that is more than {most}")

    def _executions(self, want):
        got = self.app.count(self.path)
        if got != want:
            raise Failed(f"{got} executions, not {want}")


def _bare(key):
    return key.strip('"') if key is not None else None


def _pattern(values):
    """A letter for each that differs, in the order they come; - for none."""
    names, text = {}, ""
    for value in values:
        if value is None:
            text += "-"
        else:
            text += names.setdefault(value, chr(ord("A") + len(names)))
    return text
