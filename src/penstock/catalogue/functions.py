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

from penstock.catalogue.environments import Environments
from penstock.catalogue.script import Script, names_of, read_script
from penstock.errors import ConfigError, ModelUnavailable
from penstock.functions.confinement import environment_of
from penstock.models import Limits, Model

#: Seconds that a file may take to be imported.
_IMPORT_S = 120


def function_records(path: Path, environments: Environments | None = None, *, build: bool = False) -> list[Model]:
    """Return the records of a Python file's models; raise `ConfigError` with file and line of what is wrong.

    The revision is the beginning of the file's SHA-256. Without `build`, the records of a file whose environment is
    not built have no signature: `with_signature` adds it. Raises `ModelUnavailable` if it cannot be built.
    """
    environments = environments or Environments.here()
    script = read_script(path)
    python = environments.build(script) if build else environments.find(script)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path = path.absolute()
    if python is None:
        found = [_unbuilt(path, digest, name, script) for name in names_of(path)]
    else:
        described = json.loads(_described(path, digest, python))
        found = [_record(path, digest, one, python, script.dependencies) for one in described]
    if not found:
        raise ConfigError(f"{path} has no models: write `@penstock.model` above a function")
    return found


def with_signature(model: Model, environments: Environments, build: bool) -> Model:
    """Return the record with its signature; raise `ModelUnavailable` if its environment is not or cannot be built."""
    if not model.is_unbuilt:
        return model
    path = Path(model.source)
    try:
        found = {one.name: one for one in function_records(path, environments, build=build)}
    except ConfigError as error:
        raise ModelUnavailable(error.detail) from error
    record = found.get(model.name)
    if record is None:
        raise ModelUnavailable(f"{path.name} has no model {model.name!r} any more: it has {', '.join(found)}")
    if record.is_unbuilt:
        raise ModelUnavailable(f"the environment of {path.name} is not built yet: `penstock models build {path}`")
    return record


@lru_cache(maxsize=64)
def _described(path: Path, digest: str, python: Path) -> str:  # noqa: ARG001  (a changed file is read again)
    """Return the signatures of a file as JSON, by a process of its own."""
    command = [str(python), "-m", "penstock.functions.child", "--describe", str(path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_IMPORT_S, check=False, stdin=subprocess.DEVNULL,
            env=environment_of(python),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{path} took more than {_IMPORT_S} s to be imported: move slow work to `load`") from None
    if done.returncode:
        said = done.stderr.strip() or f"its import ended with the status {done.returncode}"
        raise ConfigError(f"cannot read the models in {path}: {said}")
    return done.stdout.rpartition("\n")[2]


def _unbuilt(path: Path, digest: str, name: str, script: Script) -> Model:
    return Model(
        name=name, title=name, runner="function", processor="function", source=str(path), revision=digest[:12],
        sha256=digest, warm_up=False, dependencies=script.dependencies,
    )  # fmt: skip


def _record(
    path: Path, digest: str, signature: Mapping[str, Any], python: Path, dependencies: tuple[str, ...]
) -> Model:
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
        environment=None if python == Path(sys.executable) else str(python),
        dependencies=dependencies,
        options={"signature": dict(signature)},
    )
