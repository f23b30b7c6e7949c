"""Ready records: models that Penstock ships a record of, without weights. `penstock models add` completes one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from penstock.catalogue.records import read_catalogue
from penstock.errors import ConfigError, ModelUnavailable
from penstock.models import Model, no_model, on_hub

#: Function from a catalogue's file and a model's name to the SHA-256 of the model's files.
Pins = Callable[[Path, str], Mapping[str, str]]


def ready_records() -> dict[str, Model]:
    """Return the shipped records without weights, by name."""
    folder = Path(str(files("penstock") / "catalogue" / "ready"))
    names = sorted(path.stem for path in folder.glob("*.toml"))
    found = read_catalogue(*(folder / f"{name}.toml" for name in names))
    return {name: found[name] for name in names}


def add_ready(name: str, catalogue: Path, pins: Pins, *, hub: str | None = None) -> Model:
    """Append a ready record to a catalogue, with its revision and the hashes of its files; return it.

    A revision of the hub becomes the commit that it names now. The catalogue is made if it is missing, and it stays as
    it is where anything fails. Raises `ConfigError` for an unknown model and for a catalogue that has it or cannot be
    read, and `ModelUnavailable` where the files cannot be fetched.
    """
    known = ready_records()
    if name not in known:
        raise ConfigError(no_model([name], known))
    require_absent(catalogue, name)  # before anything is fetched
    text = (files("penstock") / "catalogue" / "ready" / f"{name}.toml").read_text()
    record = known[name]
    if record.source.startswith("hf://"):
        text = edited(text, name, {"revision": _commit(record, hub)})
        with tempfile.TemporaryDirectory(prefix="penstock-add-") as folder:
            path = Path(folder) / "models.toml"
            path.write_text(text)
            found = dict(pins(path, name))
            # The path of a source that is one file is empty.
            text = edited(text, name, {"sha256": found[""]} if "" in found else {"files": found})
    append(catalogue, name, text)
    return read_catalogue(catalogue)[name]


def _commit(record: Model, hub: str | None) -> str:
    """Return the commit that a revision of the hub names now."""
    from penstock.workers.engine.weights import requires

    repository, _ = on_hub(record.source)
    with requires("transformers"):
        from huggingface_hub import HfApi
    try:
        commit = HfApi(endpoint=hub).model_info(repository, revision=record.revision).sha
    except Exception as error:  # the hub's client raises what its HTTP library does, too
        raise ModelUnavailable(
            f"the hub does not tell the commit of {repository} ({type(error).__name__}): "
            "run this where the hub can be reached"
        ) from error
    if commit is None:
        raise ModelUnavailable(f"the hub tells no commit of {repository}")
    return commit


def file_of(name: str, paths: Sequence[Path]) -> Path:
    """Return the last file with a record of this name: its record takes precedence.

    Raises `ConfigError` if only a catalogue of a package has the record: such a catalogue is not changed.
    """
    for path in reversed(paths):
        if not str(path).startswith("package:") and name in _read(path).get("models", {}):
            return path
    raise ConfigError(
        f"{name} is in a catalogue that comes with a package and stays as it is: copy its record into your models.toml"
    )


def edited(text: str, name: str, values: Mapping[str, object]) -> str:
    """Return a catalogue with other values in a record; `options.NAME` names an option."""
    document: Any = tomlkit.parse(text)
    record = document["models"][name]
    for key, value in values.items():
        table, last = record, key
        if key.startswith("options."):
            if "options" not in record:
                record["options"] = tomlkit.table()
            table, last = record["options"], key.removeprefix("options.")
        table[last] = value
    return tomlkit.dumps(document)


def write(path: Path, name: str, values: Mapping[str, object]) -> None:
    """Change a record in its file, at once or not at all."""
    _replace(path, edited(path.read_text(encoding="utf-8-sig"), name, values))


def append(path: Path, name: str, record: str) -> None:
    """Append the text of a record to a catalogue, at once or not at all; the catalogue is made if it is missing.

    Raises `ConfigError` for a catalogue that has a record of this name or cannot be read.
    """
    require_absent(path, name)
    before = path.read_text(encoding="utf-8-sig").rstrip() if path.exists() else ""
    _replace(path, f"{before}\n\n{record}".lstrip("\n"))


def require_absent(path: Path, name: str) -> None:
    """Raise `ConfigError` for a catalogue that has a record of this name or cannot be read."""
    if path.exists() and name in _read(path).get("models", {}):
        raise ConfigError(f"{path} has a record of {name} already")


def _replace(path: Path, text: str) -> None:
    mode = path.stat().st_mode if path.exists() else 0o644
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}-", delete=False
    ) as file:
        file.write(text)
    Path(file.name).chmod(mode)
    Path(file.name).replace(path)


def _read(path: Path) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(path.read_text(encoding="utf-8-sig"))
    except (OSError, TOMLKitError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
