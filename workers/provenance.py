"""The provenance of a result: the model, software, machine and inputs that made it. Pure, except for `facts_of`.

It lets somebody compute the result again and, where the bytes differ, tells which of these differed. It is a JSON
object that a succeeded job keeps, small because every job has one: the request itself is stored with the job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from penstock.catalogue.environments import digest_of
from penstock.models import Model
from penstock.processors.registry import GROUP
from penstock.storage.canonical_hash import digest
from penstock.storage.redis.fields import dump
from penstock.workers.engine.device_class import device_class
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.sources import sha256_of
from penstock.workers.job_media import Input

#: Inputs that are listed one by one; of the others only their number, their bytes and one digest are kept.
MAX_INPUTS = 100
#: Bytes of weights without hashes in their record that a process hashes by itself, once.
MAX_HASHED_BYTES = 256 << 20
#: Files and folders of such weights. A folder with more is no folder of weights: it may be a whole disk.
MAX_HASHED_FILES = 1000
#: Machine of a model that a server computes.
SERVER = "server"
#: Fields of a record that cannot change a result. `source` and `environment` are local paths here, which differ between
#: machines; `packages` tells the environment.
_NOT_COMPUTED = frozenset(
    {
        "title", "description", "aliases", "source", "environment", "dependencies", "weights_url", "queue", "warm_up",
        "measure_batch", "cache", "io_timeout_s", "execution_timeout_s", "queue_ttl_s", "max_attempts", "licence",
        "citation", "links",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Course:
    """The way in which a result was made, beyond one attempt that computes everything."""

    #: Parts of the job that workers computed.
    parts: int = 0
    #: Units that earlier attempts, or the parts, had saved before the last attempt.
    resumed: int = 0
    #: Id of the job whose result the cache returned.
    copied_from: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that say something."""
        row = {"parts": self.parts, "resumed": self.resumed, "copied_from": self.copied_from}
        return {name: value for name, value in row.items() if value}


#: One attempt that computed everything.
ALONE = Course()


def environment(made_by: Mapping[str, Any], software: Mapping[str, str]) -> dict[str, Any]:
    """Return the description of what computes: the facts about a model and its machine, and the software."""
    return {**made_by, "software": dict(sorted(software.items()))}


def provenance(
    environment: str | None, inputs: Sequence[Input], defaults: Mapping[str, Any], course: Course = ALONE
) -> str:  # fmt: skip
    """Return the provenance of a result as JSON, without what is empty. `environment` is the digest of one."""
    listed, others = inputs[:MAX_INPUTS], inputs[MAX_INPUTS:]
    found: dict[str, Any] = {
        "environment": environment, "inputs": [each.to_json() for each in listed], "defaults": dict(defaults),
    }  # fmt: skip
    if others:
        rows = [each.to_json() for each in others]
        found["other_inputs"] = {
            "number": len(others),
            "size_bytes": sum(each.size_bytes for each in others),
            "sha256": digest(rows).hex(),
        }
    return dump({name: value for name, value in found.items() if value} | course.to_json())


def copied(found: Mapping[str, Any], inputs: Sequence[Input], defaults: Mapping[str, Any], job_id: str) -> str:
    """Return the provenance of a result that the cache returned: that of the earlier job `job_id`, with own inputs."""
    course = Course(found.get("parts", 0), found.get("resumed", 0), found.get("copied_from", job_id))
    return provenance(found.get("environment"), inputs, defaults, course)


def facts_of(model: Model) -> dict[str, Any]:
    """Return `model` and `machine` of a result. The model's `source` is a local path.

    `packages` of a model tells its environment: the digest of the lock, or of the packages in one that was ready.

    They do not change while a process serves the model. Hashes weights without hashes in their record.
    """
    served = Runners.installed().is_served(model)
    about = {
        "name": model.name, "revision": model.revision, "record_sha256": record_sha256(model),
        "weights_sha256": None if served else weights_sha256(model), "runner": model.runner, "dtype": model.dtype,
        "processor": model.processor, "processor_version": version_of(model.processor) or None,
        "packages": None if model.environment is None else digest_of(Path(model.environment)),
    }  # fmt: skip
    machine = SERVER if served else device_class(model)
    return {"model": {name: value for name, value in about.items() if value is not None}, "machine": machine}


def record_sha256(model: Model) -> str:
    """Return the digest of the fields of a record that can change a result: equal on every machine."""
    record = model.model_dump(mode="json", exclude=set(_NOT_COMPUTED), fallback=_name_of)
    record["options"].pop("file", None)  # the path of a function's file
    return digest("record", record).hex()


def weights_sha256(model: Model) -> str | None:
    """Return the digest of a model's weights; None for large ones, or many files, whose record has no hashes.

    For a folder it is the digest of its files' names and hashes: those of the record, else of all files. Looks at
    `MAX_HASHED_FILES` files at most, whatever the folder holds.
    """
    if model.sha256 is not None:
        return model.sha256
    if model.files:
        return digest("files", dict(model.files)).hex()
    if not model.source:
        return None  # as a path it would be the current folder
    root = Path(model.source)
    try:
        if root.is_file():
            return sha256_of(root) if root.stat().st_size <= MAX_HASHED_BYTES else None
        found = _few_files(root)
        return digest("files", {name: sha256_of(root / name) for name in found}).hex() if found else None
    except OSError:
        return None


def _few_files(root: Path) -> list[str] | None:
    """Return the paths of the files below a folder, sorted; None where they are more or larger than is hashed."""
    found: list[str] = []
    size = entries = 0
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as rows:
            for row in rows:
                entries += 1
                if row.is_dir(follow_symlinks=False):
                    folders.append(Path(row.path))
                elif row.is_file():
                    size += row.stat().st_size
                    found.append(str(Path(row.path).relative_to(root)))
                if entries > MAX_HASHED_FILES or size > MAX_HASHED_BYTES:
                    return None
    return sorted(found)


def _name_of(value: object) -> str:
    """Return the type of an option that is no JSON, which only code can give a model."""
    return type(value).__name__


def version_of(processor: str) -> str:
    """Return the version of the package that has a processor; empty if none is known."""
    found = {point.dist.version for point in entry_points(group=GROUP, name=processor) if point.dist is not None}
    return " ".join(sorted(found))
