"""Band selection: match the scene's bands to the model's by request, by name or by order. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import InvalidInput, Issue, MissingBands
from penstock.processors.geo.options import Band


@dataclass(frozen=True, slots=True)
class SceneBand:
    """A data band of the scene. Alpha bands are excluded."""

    #: Number of the band within its file, from 1, as in GDAL.
    index: int
    #: Name from the request, or the band description in the file.
    name: str | None
    #: Names in the scene's STAC item.
    aliases: tuple[str, ...] = ()
    #: Index of the band's file, from 0.
    file: int = 0
    #: Number of bands in all earlier files.
    before: int = 0

    @property
    def number(self) -> int:
        """Number of the band across all files, from 1, as in requests."""
        return self.before + self.index

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the band; the display name first."""
        return (*filter(None, (self.name,)), *self.aliases)


def select_bands(
    needed: Sequence[Band], present: Sequence[SceneBand], request: Sequence[str | int] | None
) -> tuple[SceneBand, ...]:
    """Return the scene's bands in the model's order.

    Raises `MissingBands` if bands are missing or cannot be identified by name, and `InvalidInput` if the request
    selects bands ambiguously or in the wrong number.
    """
    if request is not None:
        return _requested(needed, present, request)
    found = {band.name: _named(band, present) for band in needed}
    if all(found.values()):
        return tuple(match for match in found.values() if match)
    missing = [name for name, match in found.items() if match is None]
    if len(missing) < len(needed) or len(present) != len(needed):
        raise MissingBands(_sentence(needed, present, missing))
    return tuple(present)


def _requested(
    needed: Sequence[Band], present: Sequence[SceneBand], request: Sequence[str | int]
) -> tuple[SceneBand, ...]:
    if len(request) != len(needed):
        wrong = (
            f"names {bands_in_words(len(request))}, but the model needs {len(needed)}: {_names(needed)}, in this order"
        )
        raise InvalidInput(f"`bands` {wrong}.", errors=[Issue("/input/bands", wrong)])
    return tuple(_requested_one(at, wanted, present) for at, wanted in enumerate(request))


def _requested_one(at: int, wanted: str | int, present: Sequence[SceneBand]) -> SceneBand:
    if isinstance(wanted, int):
        matches = [band for band in present if band.number == wanted]
    else:
        matches = _all_named(wanted, present)
    if not matches:
        raise MissingBands(
            f"`bands` names {wanted!r}, which is not in the scene; the scene has {_listing(present)}.",
            errors=[Issue(f"/input/bands/{at}", f"is none of the scene's {bands_in_words(len(present))}")],
        )
    if len(matches) > 1:
        raise InvalidInput(f"`bands` names {wanted!r}, which the scene has {len(matches)} times; use the band number.")
    return matches[0]


def _named(band: Band, present: Sequence[SceneBand]) -> SceneBand | None:
    for name in (band.name, *band.synonyms):
        matches = _all_named(name, present)
        if len(matches) > 1:
            raise InvalidInput(f"The scene has {len(matches)} bands named {name!r}; select one with `bands`.")
        if matches:
            return matches[0]
    return None


def _all_named(name: str, present: Sequence[SceneBand]) -> list[SceneBand]:
    return [band for band in present if canonical(name) in map(canonical, band.names)]


def canonical(name: str) -> str:
    """Return a normalised band name: `B02`, `b2` and `B-2` are equal, and so are `NIR narrow` and `nir_narrow`."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", re.sub(r"[\s_-]", "", name.lower()))


def bands_in_words(count: int) -> str:
    """Return `1 band`, `2 bands`."""
    return f"{count} band{'' if count == 1 else 's'}"


def _sentence(needed: Sequence[Band], present: Sequence[SceneBand], missing: Sequence[str]) -> str:
    if len(present) < len(needed):
        found = _listing(present) if present else "none"
        count = bands_in_words(len(needed))
        return f"The model needs {count} ({_names(needed)}), but the scene has {len(present)}: {found}."
    return (
        f"The model needs {_names(needed)}; the scene has {_listing(present)}. No band matches the name of "
        f"{', '.join(missing)}. Give the bands in the model's order in `bands` (names or numbers from 1)."
    )


def _names(needed: Sequence[Band]) -> str:
    return ", ".join(band.name for band in needed)


def _listing(present: Sequence[SceneBand]) -> str:
    shown = [f"{band.number} {band.names[0]!r}" if band.names else f"{band.number} (unnamed)" for band in present[:20]]
    return ", ".join(shown) + (f" and {len(present) - 20} more" if len(present) > 20 else "")
