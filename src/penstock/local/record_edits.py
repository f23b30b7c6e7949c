"""Changes of a record in a catalogue's file that keep its comments and layout."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from penstock.errors import ConfigError


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
