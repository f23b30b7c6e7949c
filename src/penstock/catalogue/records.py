"""Catalogue files: `models.toml` read into `Model` records, with the problems of invalid records."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from penstock.catalogue.environments import Environments
from penstock.catalogue.functions import function_records, with_function
from penstock.errors import ConfigError
from penstock.json_body import wrong_fields
from penstock.models import Model

if TYPE_CHECKING:
    from penstock.config import Settings

#: Placeholders for missing or invalid required fields of a record.
_MADE_UP = {"runner": "none", "processor": "none", "source": "", "revision": ""}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class WrongRecord:
    """An invalid record of a catalogue."""

    #: The valid fields, with placeholders for the others. The record is reported and never run.
    rest: Model
    #: The file, the model, the field and the reason.
    problem: str

    @property
    def name(self) -> str:
        """The model's name."""
        return self.rest.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """The model's other names."""
        return self.rest.aliases

    @property
    def revision(self) -> str:
        """The model's revision."""
        return self.rest.revision


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue(Mapping[str, Model]):
    """Models by name, and the invalid records: an invalid record affects its own model only."""

    models: Mapping[str, Model]
    wrong: Mapping[str, WrongRecord] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Model:
        """Return a model by its name."""
        return self.models[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the models' names."""
        return iter(self.models)

    def __len__(self) -> int:
        """Return the number of models."""
        return len(self.models)


def catalogue_of(settings: Settings, *more: Path) -> Catalogue:
    """Read the catalogue of a service's settings, and then further files; raise `ConfigError`."""
    return read_catalogue(*settings.models, *more, environments=Environments.of(settings))


def read_catalogue(*paths: Path, environments: Environments | None = None) -> Catalogue:
    """Read the shipped catalogue and then the given files; a later record replaces an earlier one of the same name.

    `package:MODULE/FILE` is a file inside an installed package. A relative path as `source` starts at its catalogue's
    folder. A Python file has a record for each of its models (`functions.py`); its environment is looked for in
    `environments`, by default in those of the default settings. An invalid record, or one that claims another model's
    alias, is listed in `wrong`. Raises `ConfigError` for a file that cannot be read or is not TOML, or for a record
    with an invalid name.
    """
    records: dict[str, _Read] = {}
    shipped = files("penstock") / "catalogue" / "models.toml"
    for read in _parse("the shipped catalogue", shipped.read_text()):
        records[read.name] = read
    for path in map(_located, paths):
        for read in _python(path, environments) if path.suffix == ".py" else _parse(str(path), _text(path)):
            records.pop(read.name, None)  # keeps the order: names that are read later come later
            records[read.name] = read.in_folder(path.parent, environments)
    found = _without_clashes(records.values())
    return Catalogue(
        MappingProxyType({read.name: read.model for read in found if read.wrong is None}),
        MappingProxyType({read.name: WrongRecord(read.model, read.wrong) for read in found if read.wrong is not None}),
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """A record read from a catalogue."""

    #: File and name of the record, for messages.
    where: str
    #: The model; for an invalid record, with its valid fields only.
    model: Model
    #: The problem of an invalid record; None for a valid one.
    wrong: str | None = None

    @property
    def name(self) -> str:
        return self.model.name

    def in_folder(self, folder: Path, environments: Environments | None) -> _Read:
        """Return the record with relative paths resolved against a folder, and with the signature of its function."""
        if self.wrong is not None:
            return self
        placed = {"source": _from_folder(self.model.source, folder)}
        if self.model.environment is not None:
            placed["environment"] = str(folder.absolute() / Path(self.model.environment).expanduser())
        model = self.model.model_copy(update=placed)
        if model.function is None:
            return replace(self, model=model)
        try:
            return replace(self, model=with_function(model, folder.absolute(), environments))
        except ConfigError as error:
            return replace(self, model=model, wrong=f"{self.where}: function: {error.detail}")

    def without_aliases(self, why: str) -> _Read:
        """Return the record as invalid because of its aliases."""
        said = f"{self.where}: aliases: {why}" if self.wrong is None else self.wrong
        return replace(self, model=self.model.model_copy(update={"aliases": ()}), wrong=said)


def _located(path: Path) -> Path:
    """Return the path of a catalogue's file; raise `ConfigError` for a package that is not installed."""
    scheme, _, rest = str(path).partition(":")
    if scheme != "package":
        return path
    module, _, file = rest.partition("/")
    spec = find_spec(module) if module.isidentifier() else None
    if spec is None or spec.origin is None:
        raise ConfigError(f"cannot read the catalogue {path}: the package {module!r} is not installed")
    return Path(spec.origin).parent / file


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read the catalogue {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the catalogue {path} is not UTF-8") from error


def _python(path: Path, environments: Environments | None) -> Iterator[_Read]:
    for model in function_records(path, environments):
        yield _Read(f"{path}: {model.name!r}", model)


def _parse(file: str, text: str) -> Iterator[_Read]:
    try:
        tables = tomllib.loads(text).get("models", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error
    if not isinstance(tables, dict):
        raise ConfigError(f"{file}: models is not a table of records: write [models.NAME]")
    for name, table in tables.items():
        yield _record(f"{file}: model {name!r}", name, table)


def _record(where: str, name: str, table: Any) -> _Read:
    """Return the record of a table; raise `ConfigError` if its name is invalid."""
    if not isinstance(table, dict):
        return _Read(where, _model_of(where, name, {}), f"{where} is not a table of a model's fields")
    if "name" in table:
        rest = {key: value for key, value in table.items() if key != "name"}
        return replace(
            _record(where, name, rest), wrong=f"{where}: name: unknown field: the table's name is the model's name"
        )
    if "function" in table and (wrong := [field for field in ("runner", "processor") if field in table]):
        rest = {key: value for key, value in table.items() if key not in wrong}
        return replace(_record(where, name, rest), wrong=f"{where}: {wrong[0]}: a record with `function` has none")
    try:
        return _Read(where, Model.model_validate({**table, "name": name}))
    except ValidationError as error:
        wrong_ones = {place["loc"][0] for place in error.errors()}
        rest = {key: value for key, value in table.items() if key not in wrong_ones}
        return _Read(where, _model_of(where, name, rest), f"{where}: {wrong_fields(error)}")


def _model_of(where: str, name: str, right: Mapping[str, Any]) -> Model:
    """Return the valid fields of an invalid record as a model that is never run."""
    try:
        return Model.model_validate({**_MADE_UP, "title": name, **right, "name": name})
    except ValidationError as error:
        raise ConfigError(f"{where}: {wrong_fields(error)}") from error


def _from_folder(source: str, folder: Path) -> str:
    """Return a source with a relative path made absolute. `package:` and `s3://` are no paths."""
    return source if _SCHEME.match(source) else str(folder.resolve() / Path(source).expanduser())


def _without_clashes(records: Iterable[_Read]) -> list[_Read]:
    """Return the records; those that claim another model's name or alias are invalid; of two, the later one is."""
    records = list(records)
    owners = {read.name: read.name for read in records}
    found = []
    for read in records:
        taken = [alias for alias in read.model.aliases if owners.setdefault(alias, read.name) != read.name]
        said = "; ".join(f"{alias!r} already is a name of model {owners[alias]!r}" for alias in taken)
        found.append(read.without_aliases(said) if taken else read)
    return found
