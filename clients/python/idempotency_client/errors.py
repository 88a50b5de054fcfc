# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""What is told about an operation that has no answer of the application."""

_MEANING = {
    "none": "the request was refused, it did not run",
    "ran": "it ran, and there is no response to have",
    "unknown": "it is not known whether it ran",
}


class IdempotencyError(Exception):
    """code: a code of the gateway, or GAVE_UP, KEY_EXPIRED, ALREADY_DONE.

    outcome: "none" (this request did not run), "ran" or "unknown";
    retryable: calling again with the same operation may well succeed;
    response: the last answer, if there was one; its cause (``__cause__``):
    what the last try failed with, if it got no answer.
    """

    def __init__(self, code, outcome, *, retryable=False, operation=None,
                 key=None, key_hash=None, tries=0, status=None,
                 response=None):
        super().__init__(f"{code}: {_MEANING[outcome]}")
        self.code = code
        self.outcome = outcome
        self.retryable = retryable
        self.operation = operation
        self.key = key
        self.key_hash = key_hash
        self.tries = tries
        self.status = status
        self.response = response
