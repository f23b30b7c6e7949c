"""Output kinds: file formats of artifacts. A package adds one by the decorator `output_kind` and an entry point.

Imports nothing heavy: the client reads the kinds, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.media_types import essence, is_media_type

#: Group of entry points. Each names a `Kind`, under the kind's name.
GROUP = "penstock.output_kinds"


@dataclass(frozen=True, slots=True)
class Kind:
    """A file format of artifacts."""

    media_type: str
    suffix: str
    #: Writes a value to a path; raises `TypeError` or `ValueError` for a value that the format cannot hold.
    write: Callable[[Path, Any], None]
    #: Opens a file for the client's `result.open()`; None: as other files with this suffix.
    open: Callable[[Path], Any] | None = None


def output_kind(
    media_type: str,
    suffix: str,
    *,
    open: Callable[[Path], Any] | None = None,  # noqa: A002
) -> Callable[[Callable[[Path, Any], None]], Kind]:
    """Return a decorator that makes a `Kind` of the function that writes it.

    Raises `ConfigError` for a suffix that does not start with a dot, or an invalid media type.
    """
    if not suffix.startswith(".") or not is_media_type(media_type):
        raise ConfigError(f"an output kind has a media type and a suffix like .mp4, not {media_type!r} and {suffix!r}")

    def kind_of(write: Callable[[Path, Any], None]) -> Kind:
        return Kind(media_type, suffix, write, open)

    return kind_of


def installed() -> Mapping[str, EntryPoint]:
    """Return the entry points of the installed packages' kinds by name, without importing them."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load(point: EntryPoint) -> Kind:
    """Return the kind of an entry point; raise `ConfigError` with the reason if it has none."""
    try:
        found = point.load()
    except Exception as error:
        reason = f"{point.value} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(f"the output kind {point.name!r}: {reason}") from error
    if not isinstance(found, Kind):
        raise ConfigError(f"the output kind {point.name!r}: {point.value} is no `Kind`; use `output_kind`")
    return found


def opener_of(name: str, media_type: str) -> Callable[[Path], Any] | None:
    """Return the function with which an installed package opens files of this name and media type, if there is one.

    A package whose kind cannot be imported is passed over.
    """
    for point in installed().values():
        try:
            kind = load(point)
        except ConfigError:
            continue
        if kind.open is not None and name.endswith(kind.suffix) and essence(kind.media_type) == essence(media_type):
            return kind.open
    return None
