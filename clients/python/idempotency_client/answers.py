# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""What an answer means: whether to try again, and not before when."""

import email.utils
import json
import re
import time

# what an error of the gateway says about the operation: errors that are not
# here are those that another try may well get over

OUTCOME = {
    "IDEMPOTENCY_CONFLICT": "none",
    "IDEMPOTENCY_KEY_MISSING": "none",
    "IDEMPOTENCY_KEY_INVALID": "none",
    "OUTCOME_UNKNOWN": "unknown",
    "RESPONSE_TOO_LARGE": "ran",
    "RESPONSE_NOT_KEPT": "ran",
    "DUPLICATE_REQUEST": "ran",
}

BUSY = {"CONCURRENT_REQUEST", "LOCK_TIMEOUT", "TOO_MANY_WAITERS",
        "STORE_UNAVAILABLE"}

# statuses worth another try, and those that leave an operation undecided

AGAIN = {408, 425, 429, 500, 502, 503, 504}
NOT_NOW = {401, 403, 407, 408, 409, 423, 425, 429}


class Answer:
    def __init__(self, response):
        self.response = response
        self.status = response.status
        self.code = None
        self.again = False
        self.retryable = None
        self.after = 0.0


def judge(unknown, response):
    answer = Answer(response)
    status = response.status

    if status < 400:
        return answer

    body = None
    if re.search(r"\bjson\b", response.header("Content-Type", "")):
        body = parse(response.body)
    body = body if isinstance(body, dict) else {}

    error = body.get("error")
    error = error if isinstance(error, dict) else {}
    told = _first(error.get("retryable"), body.get("retryable"))
    ms = _first(error.get("retryAfterMs"), body.get("retryAfterMs"))
    after = _seconds(ms, response.header("Retry-After"))

    answer.after = max(after or 0.0, 0.0)
    answer.retryable = told

    # a stored answer stays what it is, however often one asks

    if response.replayed:
        return answer

    code = error.get("code")
    known = OUTCOME.get(code) if isinstance(code, str) else None

    if known or isinstance(code, str) and code in BUSY:
        answer.code = code

    if known:
        answer.again = bool(known == "unknown" and unknown == "retry" and told)
    elif told is not None:
        answer.again = bool(told)
    else:
        answer.again = (status in AGAIN
                        or after is not None and status in (409, 423))

    return answer


def parse(text):
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return None


def _first(*values):
    return next((v for v in values if v is not None), None)


def _seconds(ms, retry_after):
    if isinstance(ms, (int, float)) and not isinstance(ms, bool) and ms >= 0:
        return ms / 1000

    if retry_after is None:
        return None

    if re.fullmatch(r"[0-9]{1,9}", retry_after.strip()):
        return float(retry_after)

    try:
        when = email.utils.parsedate_to_datetime(retry_after)
        return when.timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return 0.0
