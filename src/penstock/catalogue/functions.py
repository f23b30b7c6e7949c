"""Records of the models in a Python file: the file is read by a process of its own, never imported here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.models import Limits, Model

#: Reads a file and returns the signatures of its models.
Describe = Callable[[Path], list[dict[str, Any]]]


def records_of(path: Path, signatures: list[dict[str, Any]]) -> list[Model]:
    """Return the records of a file's models. The revision is the beginning of the file's SHA-256."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return [_record(path.absolute(), digest, signature) for signature in signatures]


def _record(path: Path, digest: str, signature: Mapping[str, Any]) -> Model:
    return Model(
        name=signature["name"],
        title=signature["title"],
        description=signature["description"],
        runner="function",
        processor="function",
        source=str(path),
        revision=digest[:12],
        sha256=digest,
        device="cuda" if signature["gpu"] else "cpu",
        queue=signature["queue"],
        max_batch=signature["max_batch"] if signature["batched"] else signature["concurrency"],
        warm_up=False,
        limits=Limits(),
        cache=signature["cache"],
        execution_timeout_s=signature["timeout_s"],
        options={"signature": dict(signature)},
    )
