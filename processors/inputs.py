"""Input mappers: from a medium's file to what a processor works on, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.errors import ConfigError, MediaUnreadable
from penstock.models import Limits
from penstock.processors.documents import parse_json
from penstock.processors.vision.picture import read_picture

#: Reads a file within a model's limits; raises an `InputError` for what is wrong with it.
Mapper = Callable[[Path, Limits], Any]


@dataclass(frozen=True, slots=True)
class InputMappers:
    """Mappers by name: an immutable value."""

    mappers: Mapping[str, Mapper] = field(default_factory=dict)

    def register(self, name: str, mapper: Mapper) -> InputMappers:
        """Return mappers that have this one too."""
        return replace(self, mappers=MappingProxyType({**self.mappers, name: mapper}))

    def read(self, name: str, path: Path, limits: Limits) -> Any:
        """Read a file; raise `ConfigError` with the known names for one that is not known."""
        if name not in self.mappers:
            raise ConfigError(f"there is no input mapper {name!r}; known are: {', '.join(sorted(self.mappers))}")
        return self.mappers[name](path, limits)


def read_text(path: Path, limits: Limits) -> str:  # noqa: ARG001  (mappers share one signature)
    """Return a UTF-8 file's text, without a byte order mark."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise MediaUnreadable(f"The file is not UTF-8 text: {error.reason} at byte {error.start}.") from error
    if "\0" in text:
        raise MediaUnreadable(f"The file is not text: it holds a NUL at character {text.index(chr(0))}.")
    return text


def read_json(path: Path, limits: Limits) -> Any:
    """Return a JSON file's data."""
    return parse_json(read_text(path, limits), "file")


INPUTS = InputMappers().register("picture", read_picture).register("text", read_text).register("json", read_json)
