"""A job's output, its text and JSON: a large one lies in the object store, and the record says where.

    tenants/T/jobs/ID/attempts/FENCE/_output.json    the output, as `GET /v1/jobs/ID` has it in `output`

An attempt stores it under its own prefix, as it does its artifacts. No artifact can have this name (`safe_name`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from penstock.errors import JobGone, ObjectExists, ObjectNotFound, ObjectStoreUnavailable
from penstock.jobs import Artifact, Claim
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis.fields import dump

_NAME, _TYPE = "output.json", "application/json"


def output_json(text: str | None, data: Mapping[str, Any] | None) -> bytes:
    """Return an output as JSON."""
    return dump({"text": text, "json": data}).encode()


def store_output(
    objects: ObjectStore, claim: Claim, text: str | None, data: Mapping[str, Any] | None, *, inline_bytes: int
) -> Artifact | None:
    """Store the output of an attempt; None where the record has it all, because it has at most `inline_bytes` of JSON.

    A part of a job has no output.
    """
    if claim.part is not None or (text is None and data is None):
        return None
    body = output_json(text, data)
    if len(body) <= inline_bytes:
        return None
    stored = Artifact(_NAME, _TYPE, len(body), hashlib.sha256(body).hexdigest(), f"{claim.prefix}_{_NAME}")
    with suppress(ObjectExists):  # an earlier try of the same put, whose answer was lost
        objects.put_bytes(stored.key, body, content_type=_TYPE, if_absent=True)
    return stored


def read_output(objects: ObjectStore, stored: Artifact) -> tuple[str | None, Mapping[str, Any] | None]:
    """Return the text and the JSON of a stored output; `JobGone` where it was deleted with its job."""
    try:
        body = objects.get_bytes(stored.key, limit_bytes=stored.size_bytes)
    except ObjectNotFound as error:
        raise JobGone("the job's output was deleted") from error
    if hashlib.sha256(body).hexdigest() != stored.sha256:
        raise ObjectStoreUnavailable(f"the object {stored.key} is damaged")
    found = json.loads(body)
    return found["text"], found["json"]
