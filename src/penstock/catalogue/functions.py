"""Records of the models in a Python file: the file is read by a process of its own, never imported here."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.functions.confinement import environment
from penstock.models import Limits, Model

#: Seconds that a file may take to be imported.
_IMPORT_S = 120


def function_records(path: Path) -> list[Model]:
    """Return the records of a Python file's models; raise `ConfigError` with file and line of what is wrong.

    The revision is the beginning of the file's SHA-256.
    """
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read the models in {path}: {error.strerror}") from error
    signatures = json.loads(_described(path.absolute(), digest))
    if not signatures:
        raise ConfigError(f"{path} has no models: write `@penstock.model` above a function")
    return [_record(path.absolute(), digest, signature) for signature in signatures]


@lru_cache(maxsize=64)
def _described(path: Path, digest: str) -> str:  # noqa: ARG001  (a changed file is read again)
    """Return the signatures of a file as JSON, by a process of its own."""
    command = [sys.executable, "-P", "-m", "penstock.functions.child", "--describe", str(path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_IMPORT_S, check=False, stdin=subprocess.DEVNULL,
            env=environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{path} took more than {_IMPORT_S} s to be imported: move slow work to `load`") from None
    if done.returncode:
        said = done.stderr.strip() or f"its import ended with the status {done.returncode}"
        raise ConfigError(f"cannot read the models in {path}: {said}")
    return done.stdout.rpartition("\n")[2]


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
