# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""The Python client, told what to do by the conformance kit."""

import http.client
import json
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../../python"))

import idempotency_client as idempotency

OPTIONS = {
    "tries": ("tries", 1), "total_ms": ("total", 1000),
    "try_ms": ("timeout", 1000), "unknown": ("unknown", None),
    "remember_ms": ("remember", 1000), "remember_bytes": ("remember_bytes", 1),
    "max_age_ms": ("max_age", 1000), "fold_ms": ("fold", 1000),
    "quoted": ("quoted", None),
}

GENERATORS = {
    "random": idempotency.random_key, "workflow": idempotency.workflow_key,
    "job": idempotency.job_key, "test": idempotency.test_key,
}

lock = threading.Lock()
cancels = {}


def say(message):
    with lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def watch(event):
    if not os.environ.get("CONFORMANCE_QUIET"):
        say({"event": {"type": event["type"], "operation": event["operation"]}})


client = idempotency.Client(
    storage=idempotency.FileStorage(
        os.environ["CONFORMANCE_STORAGE"],
        sync=not os.environ.get("CONFORMANCE_NOSYNC")), on_event=watch)


def send(command):
    call = {}
    for name, value in command.get("options", {}).items():
        option, unit = OPTIONS[name]
        call[option] = value if unit in (None, 1) else value / unit
    for name in ("operation", "key"):
        if name in command:
            call[name] = command[name]
    if "generator" in command:
        kind, *arguments = command["generator"]
        call["key"] = GENERATORS[kind](*arguments)

    try:
        with client.request(
                command.get("method", "POST"), command["url"],
                command.get("body", ""), headers=command.get("headers", {}),
                stream=command.get("stream", False),
                cancel=cancels[command["id"]], **call) as r:
            try:
                body = b"".join(r).decode()
            except (OSError, http.client.HTTPException) as e:
                return {"error": {"code": "BROKEN", "message": repr(e)}}
            return {"result": {
                "status": r.status, "headers": r.headers, "body": body,
                "replayed": r.replayed,
                "local": r.local, "tries": r.tries or 1 if not r.local else 0}}
    except idempotency.IdempotencyError as e:
        return {"error": {
            "code": e.code, "message": str(e), "outcome": e.outcome,
            "retryable": e.retryable, "status": e.status, "tries": e.tries}}
    except idempotency.Cancelled:
        return {"error": {"code": "ABORTED"}}
    except ValueError as e:
        return {"error": {"code": "INVALID", "message": str(e)}}
    except Exception as e:
        return {"error": {"code": type(e).__name__, "message": repr(e)}}


def key(command):
    kind, *arguments = command["generator"]
    try:
        return {"result": GENERATORS[kind](*arguments)}
    except ValueError as e:
        return {"error": {"code": "INVALID", "message": str(e)}}


def forget(command):
    client.forget(command["operation"])
    return {"result": True}


DO = {
    "send": send, "key": key, "forget": forget,
    "pending": lambda _: {"result": [e["operation"] for e in client.pending()]},
}


def work(command):
    answer = DO[command["do"]](command)
    cancels.pop(command["id"], None)
    say({"id": command["id"], **answer})


say({"hello": {"name": "python",
               "can": ["abort", "events", "fold", "generators", "keep",
                       "pending", "quoted", "stream"]}})

for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "abort":
        cancel = cancels.get(command["of"])
        if cancel is not None:
            cancel.set()
        continue
    cancels[command["id"]] = idempotency.Cancel()
    threading.Thread(target=work, args=(command,), daemon=True).start()

os._exit(0)
