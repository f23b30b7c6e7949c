"""What `penstock models check` looks at: all that must be true of a model before a worker can serve it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jsonschema import Draft202012Validator, SchemaError

from penstock.errors import ModelUnavailable, PenstockError
from penstock.installation import Installation
from penstock.models import CatalogueEntry, Model
from penstock.offline import Engine
from penstock.workers.engine.runners import CHECKS, FACTORIES
from penstock.workers.engine.weights import locate

#: A runner that nobody looks for.
_FOR_TESTS = "fake"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of a model. It is usable if there are no problems."""

    model: str
    revision: str
    source: str
    problems: tuple[str, ...]
    #: What is good to know and no problem.
    notes: tuple[str, ...] = ()
    #: How long the dummy request took, where it was run.
    warm_up_s: float | None = None

    @property
    def ok(self) -> bool:
        """Whether it can be used."""
        return not self.problems


def inspect(engine: Engine, names: Sequence[str], *, warm_up: bool) -> Iterator[Finding]:
    """Check the named models, or all; nothing is fetched. With `warm_up` the dummies of the sound ones are run."""
    for name in names or engine.installation.names:
        found = _inspect(engine.installation, name)
        yield _warm_up(engine, found) if warm_up and found.ok else found


def _inspect(installation: Installation, name: str) -> Finding:
    record, entry = installation.look_up(name)
    if wrong := installation.wrong(name):
        return Finding(record.name, record.revision, record.source, (wrong.problem,))
    return Finding(record.name, record.revision, record.source, tuple(_problems(record, entry)), tuple(_notes(record)))


def _warm_up(engine: Engine, found: Finding) -> Finding:
    try:
        warmth = engine.warm_up(found.model)
    except PenstockError as error:
        return replace(found, problems=(f"its dummy request failed: {error.code}: {error.detail}",))
    except Exception as error:  # a processor's own fault is what is looked for
        return replace(found, problems=(f"its dummy request failed: {type(error).__name__}: {error}",))
    note = f"loaded in {warmth.load_s:.1f} s, warmed up in {warmth.warm_up_s:.2f} s"
    return replace(found, notes=(*found.notes, note), warm_up_s=warmth.warm_up_s)


def size_bytes(path: Path) -> int:
    """Return the size of a file, or of everything in a folder; links count as what they lead to, once."""
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
    """Return what the model's runner finds wrong with a source that is here."""
    if record.runner not in FACTORIES:
        known = sorted(set(FACTORIES) - {_FOR_TESTS})
        return f"there is no runner {record.runner!r}; known are: {', '.join(known)}"
    check = CHECKS[record.runner]
    try:
        if "://" not in record.source and locate(record).exists():  # else the entry says what is not here
            check(record)
    except ModelUnavailable as error:
        return error.detail
    return None


def _notes(record: Model) -> Iterator[str]:
    if record.sha256 is None and not record.files:
        yield "no hashes are pinned"
