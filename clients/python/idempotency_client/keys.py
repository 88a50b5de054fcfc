# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""Keys: what names one operation to the gateway."""

import hashlib
import re
import uuid

TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,255}")


def checked(key, pattern=TOKEN):
    if not isinstance(key, str) or not pattern.fullmatch(key):
        raise ValueError(f"{key!r} is no idempotency key: "
                         f"it must match {pattern.pattern}")
    return key


def random_key(prefix=""):
    """A UUID of version 4."""
    return f"{prefix}{uuid.uuid4()}"


def workflow_key(workflow, step):
    return checked(f"workflow-{workflow}_step-{step}")


def job_key(job):
    return checked(f"job_{job}")


def test_key(name, iteration=1):
    return checked(f"test_{name}_{iteration}")


test_key.__test__ = False               # it is none, whatever pytest thinks


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()
