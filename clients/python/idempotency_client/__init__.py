# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""Requests that are safe to send again.

One key per operation, kept through its retries and across a crash; answers
of the gateway (ngx_http_idempotency_module) taken for what they mean.

    from idempotency_client import Client, FileStorage

    client = Client(storage=FileStorage("/var/lib/shop/operations"))
    response = client.request("POST", url, json={"amount": 100},
                              operation="order-42")

docs/clients.md of the module tells the whole contract.
"""

from .aio import AsyncClient
from .client import Cancel, Cancelled, Client, Options
from .errors import IdempotencyError
from .keys import job_key, random_key, test_key, workflow_key
from .response import Response
from .storage import FileStorage, MemoryStorage
from .transport import HttpTransport

__version__ = "0.2.0"

__all__ = [
    "AsyncClient", "Cancel", "Cancelled", "Client", "FileStorage",
    "HttpTransport", "IdempotencyError", "MemoryStorage", "Options",
    "Response", "job_key", "random_key", "test_key", "workflow_key",
]
