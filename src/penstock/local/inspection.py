"""The checks of `penstock models check`: everything that a worker needs to serve a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, SchemaError

from penstock.errors import ModelUnavailable, PenstockError
from penstock.local.installation import Installation
from penstock.local.library import Engine
from penstock.local.precision import Difference, is_compared
from penstock.models import CatalogueEntry, Model
from penstock.processors.directory import REMOVED_OPTIONS
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.weights import locate

#: Runners that read the removed options.
_READ_THEM = frozenset({"torch", "transformers"})


@dataclass(frozen=True, slots=True)
class ModelFinding:
    """The result of checking a model. The model is usable if there are no problems."""

    model: str
    revision: str
    source: str
    problems: tuple[str, ...]
    #: Remarks that are no problems.
    notes: tuple[str, ...] = ()
    #: Seconds of the dummy request, if it was run.
    warm_up_s: float | None = None
    #: The difference to float32, for a warmed-up model with classes or numbers in another number type.
    float32: Difference | None = None

    @property
    def ok(self) -> bool:
        """True if the model can be used."""
        return not self.problems


#: Returns a model's input with a sample file, by the schema of its input.
InputOf = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Sample:
    """A file on which models in another number type than float32 are compared with float32."""

    name: str
    input_of: InputOf


def inspect(
    engine: Engine, names: Sequence[str], *, warm_up: bool, sample: Sample | None = None
) -> Iterator[ModelFinding]:
    """Check the named models, or all, without fetching files. With `warm_up`, run the dummy requests of sound ones.

    Those in another number type than float32 are compared with float32, on the sample or on noise.
    """
    for name in names or engine.installation.names:
        found = _inspect(engine.installation, name)
        if warm_up and found.ok:
            found = _warm_up(engine, found)
            found = _compare(engine, found, sample) if found.ok else found
        yield found


def _inspect(installation: Installation, name: str) -> ModelFinding:
    record, entry = installation.look_up(name)
    if wrong := installation.wrong(name):
        return ModelFinding(record.name, record.revision, record.source, (wrong.problem,))
    problems, notes = tuple(_problems(record, entry)), tuple(_notes(record))
    return ModelFinding(record.name, record.revision, record.source, problems, notes)


def _warm_up(engine: Engine, found: ModelFinding) -> ModelFinding:
    try:
        warmth = engine.warm_up(found.model)
    except PenstockError as error:
        return replace(found, problems=(f"its dummy request failed: {error.code}: {error.detail}",))
    except Exception as error:  # a fault of the processor is a finding, too
        return replace(found, problems=(f"its dummy request failed: {type(error).__name__}: {error}",))
    note = f"loaded in {warmth.load_s:.1f} s, warmed up in {warmth.warm_up_s:.2f} s"
    return replace(found, notes=(*found.notes, note), warm_up_s=warmth.warm_up_s)


def _compare(engine: Engine, found: ModelFinding, sample: Sample | None) -> ModelFinding:
    """Add the difference to float32, if the model has one that is quick to compute."""
    record, entry = engine.installation.look_up(found.model)
    if not is_compared(record):
        return found
    try:
        document = None if sample is None else sample.input_of(entry.input_schema)
        difference = engine.compare(record.name, document, sample="noise" if sample is None else sample.name)
    except PenstockError as error:
        said = f"not compared with float32: {error.code}: {error.detail}"
        if sample is not None:
            return replace(found, problems=(*found.problems, said))
        # The user named no sample, and two networks may need too much memory.
        return replace(found, notes=(*found.notes, said))
    return replace(found, notes=tuple(filter(None, (*found.notes, str(difference)))), float32=difference)


def size_bytes(path: Path) -> int:
    """Return the size of a file, or of all files in a folder; links count as their targets, each once."""
    files = {file.resolve() for file in path.rglob("*") if file.is_file()} if path.is_dir() else {path}
    return sum(file.stat().st_size for file in files if file.exists())


def _problems(record: Model, entry: CatalogueEntry) -> Iterator[str]:
    found = dict.fromkeys((_runner_problem(record), entry.problem))
    yield from (problem for problem in found if problem is not None)
    try:
        Draft202012Validator.check_schema(entry.input_schema)
    except SchemaError as error:
        yield f"its processor's schema is not JSON Schema: {error.message}"


def _runner_problem(record: Model) -> str | None:
    """Return what the model's runner finds wrong with a local source; None if nothing."""
    try:
        runners = Runners.installed()
        # A missing file is reported by the entry.
        if runners.is_served(record) or ("://" not in record.source and locate(record).exists()):
            runners.check(record)
    except ModelUnavailable as error:
        return error.detail
    return None


def _notes(record: Model) -> Iterator[str]:
    if record.sha256 is None and not record.files and not Runners.installed().is_served(record):
        yield "no hashes are pinned"
    if record.measure_batch:
        yield "measure_batch has no effect any more: `penstock models tune` measures batches"
    removed = REMOVED_OPTIONS if record.runner in _READ_THEM else {}
    for name in sorted(set(record.options) & set(removed)):
        yield f"options.{name} has no effect any more: {removed[name]}"
