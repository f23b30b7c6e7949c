"""Input mappers: functions by name that read a media file for a processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.errors import ConfigError, MediaUnreadable
from penstock.models import Limits
from penstock.processors.documents import parse_json
from penstock.processors.vision.image import read_image

#: Reads a file within a model's limits; raises an `InputError` if the file is invalid.
Mapper = Callable[[Path, Limits], Any]


@dataclass(frozen=True, slots=True)
class InputMappers:
    """Mappers by name; an instance never changes."""

    mappers: Mapping[str, Mapper] = field(default_factory=dict)

    def register(self, name: str, mapper: Mapper) -> InputMappers:
        """Return a copy with one more mapper."""
        return replace(self, mappers=MappingProxyType({**self.mappers, name: mapper}))

    def read(self, name: str, path: Path, limits: Limits) -> Any:
        """Read a file with a mapper; raise `ConfigError` with the known names for an unknown one."""
        if name not in self.mappers:
            raise ConfigError(f"there is no input mapper {name!r}; known mappers: {', '.join(sorted(self.mappers))}")
        return self.mappers[name](path, limits)


def read_text(path: Path, limits: Limits) -> str:  # noqa: ARG001  (mappers share one signature)
    """Return the text of a UTF-8 file, without a byte order mark."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise MediaUnreadable(f"The file is not UTF-8 text: {error.reason} at byte {error.start}.") from error
    if "\0" in text:
        raise MediaUnreadable(f"The file is not text: it holds a NUL at character {text.index(chr(0))}.")
    return text


def read_json(path: Path, limits: Limits) -> Any:
    """Return the data of a JSON file."""
    return parse_json(read_text(path, limits), "file")


INPUTS = InputMappers().register("image", read_image).register("text", read_text).register("json", read_json)
INPUTS = INPUTS.register("picture", read_image)  # the name of `image` in earlier releases
