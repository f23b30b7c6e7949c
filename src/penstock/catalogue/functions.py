"""Records of functions: of the models in a Python file, and of a function that a record of `models.toml` names.

The file is read by a process of its own, never imported here.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.catalogue.environments import Environments
from penstock.catalogue.script import Script, names_of, read_script
from penstock.errors import ConfigError, ModelUnavailable
from penstock.functions.checks import wrong_name
from penstock.functions.confinement import environment_of
from penstock.models import FUNCTION, Limits, Model

#: Group of entry points: functions that records name by one word. Each is `MODULE:NAME` of a file of functions.
GROUP = "penstock.functions"
#: Fields of a record that its function gives where the record does not.
_GIVEN = ("description", "device", "queue", "max_batch", "cache", "execution_timeout_s", "warm_up")
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


def with_function(
    model: Model, folder: Path, environments: Environments | None = None, *, build: bool = False
) -> Model:
    """Return a record with the signature of its `function`, and with what the function says and the record does not.

    `FILE.py:NAME` begins at `folder`. Raises `ConfigError` for a function that does not exist, and for `options` that
    its class does not take.
    """
    return _joined(model, *_located(model.function or "", folder), environments, build=build)


def _joined(model: Model, path: Path, name: str, environments: Environments | None, *, build: bool) -> Model:
    """Return a record with what the function of this name in a file says; raise `ConfigError`."""
    found = function_records(path, environments, build=build)
    function = next((one for one in found if name in (one.name, _attribute(one))), None)
    if function is None:
        raise ConfigError(f"{path.name} has no function {name!r}; it has {', '.join(map(_attribute, found))}")
    arguments = dict(model.options)
    takes = function.options.get("signature", {}).get("options")
    if takes is not None and (unknown := sorted(set(arguments) - set(takes))):
        raise ConfigError(
            f"options: {name} of {path.name} takes {', '.join(takes) or 'none'}, not {', '.join(unknown)}"
        )
    said = {field: getattr(function, field) for field in _GIVEN if field not in model.model_fields_set}
    said |= {"environment": function.environment, "dependencies": function.dependencies}
    # A changed file changes results whatever the record's revision is.
    code = {"file": str(path), "code_sha256": function.sha256, "arguments": arguments}
    return model.model_copy(
        update={
            **said, "title": model.title or function.title, "processor": function.processor,
            "options": {**function.options, **code},
        }
    )  # fmt: skip


def with_signature(model: Model, environments: Environments, build: bool) -> Model:
    """Return the record with its signature; raise `ModelUnavailable` if its environment is not or cannot be built."""
    if not model.is_unbuilt:
        return model
    path = file_of(model)
    try:
        if model.function is not None:
            named = model.model_copy(update={"options": model.options["arguments"]})
            name = _located(model.function, path.parent)[1]
            record: Model | None = _joined(named, path, name, environments, build=build)
        else:
            found = {one.name: one for one in function_records(path, environments, build=build)}
            record = found.get(model.name)
    except ConfigError as error:
        raise ModelUnavailable(error.detail) from error
    if record is None:
        raise ModelUnavailable(f"{path.name} has no model {model.name!r} any more: it has {', '.join(found)}")
    if record.is_unbuilt:
        raise ModelUnavailable(f"the environment of {path.name} is not built yet: `penstock models build {path}`")
    return record


def file_of(model: Model) -> Path:
    """Return the Python file of a function's record."""
    return Path(model.options.get("file", model.source))


def _located(reference: str, folder: Path) -> tuple[Path, str]:
    """Return the file and the name of a function; raise `ConfigError` for one that is not installed."""
    file, colon, name = reference.rpartition(":")
    if colon:
        return folder / Path(file).expanduser(), name
    points = {point.name: point for point in entry_points(group=GROUP)}
    if reference not in points:
        known = ", ".join(sorted(points)) or "none"
        raise ConfigError(f"there is no function {reference!r}; known: {known}, or write FILE.py:NAME")
    spec = find_spec(points[reference].module)
    if spec is None or spec.origin is None:
        raise ConfigError(f"the function {reference!r} is not installed: there is no module {points[reference].module}")
    return Path(spec.origin), points[reference].attr


def _attribute(record: Model) -> str:
    """Return the name of a function in its file."""
    return str(record.options.get("signature", {}).get("attribute", record.name))


@lru_cache(maxsize=64)
def _described(path: Path, digest: str, python: Path) -> str:  # noqa: ARG001  (a changed file is read again)
    """Return the signatures of a file as JSON, by a process of its own."""
    command = [str(python), "-P", "-m", "penstock.functions.child", "--describe", str(path)]
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
        name=name, title=name, runner=FUNCTION, processor=FUNCTION, source=str(path), revision=digest[:12],
        sha256=digest, warm_up=False, dependencies=script.dependencies,
    )  # fmt: skip


def _record(
    path: Path, digest: str, signature: Mapping[str, Any], python: Path, dependencies: tuple[str, ...]
) -> Model:
    raster = signature["raster"] or {"processor": FUNCTION, "options": {}}
    return Model(
        name=signature["name"],
        title=signature["title"],
        description=signature["description"],
        runner=FUNCTION,
        processor=raster["processor"],
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
        options={**raster["options"], "signature": dict(signature)},
    )
