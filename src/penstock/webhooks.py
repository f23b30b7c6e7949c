"""Standard Webhooks (https://www.standardwebhooks.com) at the receiver, with the standard library alone.

    event = verify(body, headers, secret)     # the raw body; raises WebhookRefused

`event` is the event: `{"type": "job.succeeded", "timestamp": ..., "data": {...}}`. The same event may arrive several
times, with the same `webhook-id`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

#: Largest difference in seconds between the clocks of sender and receiver, delays included.
TOLERANCE_S = 300.0
_PREFIX = "whsec_"


class WebhookRefused(Exception):
    """The webhook's sender does not have the secret, or the webhook is too old."""


def verify(
    body: bytes | str,
    headers: Mapping[str, str],
    secrets: str | Iterable[str],
    *,
    tolerance_s: float = TOLERANCE_S,
    at: float | None = None,
) -> dict[str, Any]:
    """Return a webhook's content; raise `WebhookRefused` unless one of the secrets signed it shortly before `at` (now).

    `body` must be the received bytes: JSON that was parsed and serialised again has another signature. During a
    rotation there are several secrets. Header names may be in any case. Raises `ValueError` for an invalid secret.
    """
    if isinstance(secrets, bytes):
        raise TypeError("a webhook secret is a str")
    keys = [_key(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    if not keys:
        raise ValueError("no secret was given: the webhook cannot be verified")
    raw = body.encode(errors="replace") if isinstance(body, str) else bytes(body)
    named = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, sent, signatures = (named[f"webhook-{part}"] for part in ("id", "timestamp", "signature"))
    except KeyError as error:
        raise WebhookRefused(f"the header {error.args[0]} is missing") from None
    _check_time(sent, time.time() if at is None else at, tolerance_s)
    signed = f"{message_id}.{sent}.".encode(errors="replace") + raw
    given = [text.partition(",")[2].encode(errors="replace") for text in signatures.split() if text.startswith("v1,")]
    # All pairs are compared, so that the duration reveals nothing about near misses.
    if not sum(hmac.compare_digest(_signature(key, signed), text) for key in keys for text in given):
        raise WebhookRefused("no signature matches a known secret")
    return _content(raw)


def _check_time(sent: str, at: float, tolerance_s: float) -> None:
    if not re.fullmatch(r"[0-9]{1,15}", sent):
        raise WebhookRefused("webhook-timestamp is not a time")
    age_s = at - int(sent)
    if abs(age_s) > tolerance_s:
        raise WebhookRefused(f"the webhook is {'old' if age_s > 0 else 'from the future'}: {abs(age_s):.0f} s")


def _key(secret: str) -> bytes:
    text = secret.strip().removeprefix(_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)  # some senders leave the padding out
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ValueError("the webhook secret is invalid: it must be `whsec_` followed by base64")
    return key


def _signature(key: bytes, signed: bytes) -> bytes:
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())


def _content(raw: bytes) -> dict[str, Any]:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WebhookRefused("the body is not JSON") from error
    if not isinstance(content, dict):
        raise WebhookRefused("the body is not a JSON object")
    return content
