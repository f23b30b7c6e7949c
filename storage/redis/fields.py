"""Conversions between fields in Redis and values: microseconds, flat hashes, JSON and submissions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from dataclasses import fields as fields_of
from operator import attrgetter
from typing import Any

from penstock import formats
from penstock.jobs import JobKey, Submission, Webhook

#: Microseconds in a second: all times in Redis are in microseconds.
MICRO = 1_000_000


#: Fields of a submission that stand beside it, in the record: the release before rejects new fields inside.
_BESIDE = {"media_bytes", "after"}
#: Fields of a stored submission, in the order in which they are written.
_NAMES = {each.name: each for each in fields_of(Submission) if each.name not in formats.OWN | _BESIDE}
_values = attrgetter(*_NAMES)
#: Fields of its key and of its webhook.
_KEY, _HOOK = ({each.name for each in fields_of(cls)} for cls in (JobKey, Webhook))


def seconds(microseconds: str | int | None) -> float | None:
    """Return Redis' microseconds as seconds; None for an empty field."""
    return int(microseconds) / MICRO if microseconds not in (None, "") else None


def us(seconds: float) -> int:
    """Return seconds as Redis' microseconds."""
    return round(seconds * MICRO)


def fields(flat: Sequence[Any]) -> dict[str, Any]:
    """Return the hash behind a flat reply."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def dump(value: Any) -> str:
    """Return a value as compact JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def submission_to_json(submission: Submission) -> dict[str, Any]:
    """Return a submission as a JSON object, with its fields of newer formats."""
    return formats.carrying(submission.extra, _own(submission))


def submission_of(data: dict[str, Any], *, version: int = 1) -> Submission:
    """Return the submission of a JSON object that `submission_to_json` made, maybe of a newer release."""
    key, hook = data["key"], data.get("webhook")
    values = {name: data[name] for name in _NAMES if name in data}
    values["key"] = JobKey(key["tenant"], key["id"])
    values["webhook"] = Webhook(hook["url"], tuple(hook["events"]), hook.get("urls", {})) if hook else None
    found = Submission(**values, version=version)
    if data.keys() <= _NAMES.keys() and key.keys() <= _KEY and (not hook or hook.keys() <= _HOOK):
        return found
    return replace(found, extra=formats.unknown(data, _own(found)))


def _own(submission: Submission) -> dict[str, Any]:
    """Return the known fields. Values stay the same objects: `formats.unknown` does not compare a large input."""
    row = dict(zip(_NAMES, _values(submission), strict=True))
    hook = submission.webhook
    key = {"tenant": submission.key.tenant, "id": submission.key.id}
    return row | {"key": key, "webhook": asdict(hook) if hook else None}
