"""Documentation of attributes in the code: their `#:` comments or docstrings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]


class Undocumented(Exception):
    """A public setting, field, route or error has no description."""


@cache
def _package() -> griffe.Module:
    extensions = griffe.load_extensions("griffe_sphinx")
    package = griffe.load("penstock", search_paths=[ROOT / "src"], extensions=extensions)
    assert isinstance(package, griffe.Module)  # noqa: S101  (`load` may return an alias, which the name of a package is not)
    return package


def comments_of(cls: type) -> Mapping[str, str]:
    """Return the comments of all documented attributes of a penstock class, including those of its bases."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if each.__module__.partition(".")[0] == "penstock":
            written = _package()[f"{each.__module__.removeprefix('penstock.')}.{each.__name__}"]
            found |= {name: member.docstring.value for name, member in written.members.items() if member.docstring}
    return {name: " ".join(text.split()) for name, text in found.items()}
