"""Records of the models in a Python file: the file is read by a process of its own, never imported here."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from penstock.catalogue.environments import Environments
from penstock.catalogue.script import Script, names_of, read_script
from penstock.errors import ConfigError, ModelUnavailable
from penstock.functions.checks import wrong_name
from penstock.functions.confinement import environment_of
from penstock.models import Limits, Model

#: Seconds that a file may take to be imported.
_IMPORT_S = 120
#: The option of a record whose environment is not built: the packages that its file names.
_DEPENDENCIES = "dependencies"


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
        found = [_record(path, digest, one, python) for one in json.loads(_described(path, digest, python))]
    if not found:
        raise ConfigError(f"{path} has no models: write `@penstock.model` above a function")
    return found


def is_unbuilt(model: Model) -> bool:
    """Return True for a record without a signature, because the environment of its file was not built."""
    return _DEPENDENCIES in model.options


def with_signature(model: Model, environments: Environments, build: bool) -> Model:
    """Return the record with its signature; raise `ModelUnavailable` if its environment is not or cannot be built."""
    path = Path(model.source)
    try:
        found = {one.name: one for one in function_records(path, environments, build=build)}
    except ConfigError as error:
        raise ModelUnavailable(error.detail) from error
    record = found.get(model.name)
    if record is None:
        raise ModelUnavailable(f"{path.name} has no model {model.name!r} any more: it has {', '.join(found)}")
    if is_unbuilt(record):
        raise ModelUnavailable(f"the environment of {path.name} is not built yet: `penstock models build {path}`")
    return record


@lru_cache(maxsize=64)
def _described(path: Path, digest: str, python: Path) -> str:  # noqa: ARG001  (a changed file is read again)
    """Return the signatures of a file as JSON, by a process of its own."""
    boot = str(files("penstock") / "functions" / "boot.py")
    command = [str(python), "-P", boot, "penstock.functions.child", "--describe", str(path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_IMPORT_S, check=False, stdin=subprocess.DEVNULL,
            env=environment_of(python),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{path} took more than {_IMPORT_S} s to be imported: move slow work to `load`") from None
    described = done.stdout.rpartition("\n")[2]
    if done.returncode or not described:
        said = done.stderr.strip() or f"its import ended with the status {done.returncode}"
        raise ConfigError(f"cannot read the models in {path}: {said}")
    return described


def _unbuilt(path: Path, digest: str, name: str, script: Script) -> Model:
    if wrong := wrong_name(name):
        raise ConfigError(f"{path.name}: {wrong}")
    return Model(
        name=name, title=name, runner="function", processor="function", source=str(path), revision=digest[:12],
        sha256=digest, warm_up=False, options={_DEPENDENCIES: list(script.dependencies)},
    )  # fmt: skip


def _record(path: Path, digest: str, signature: Mapping[str, Any], python: Path) -> Model:
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
        options={"signature": dict(signature), "python": str(python)},
    )
