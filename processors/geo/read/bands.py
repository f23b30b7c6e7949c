"""Band selection: match the scene's bands to the model's by request, by name, by identity or by order. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from penstock.errors import InvalidInput, Issue, MissingBands
from penstock.json_body import shown
from penstock.processors.geo.options import Band
from penstock.processors.geo.read.band_identity import Identity, SceneBand, identify, without_numbering
from penstock.processors.geo.read.band_names import (
    broad_kinds,
    canonical,
    find_code,
    mentions_band,
    named_kinds,
    numbered_swir,
)
from penstock.processors.geo.read.sensors import SENSORS, SWIR, Sensor

#: Bands in a message, at most.
_MOST_LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class Selection:
    """The scene's bands in the model's order, and notes on what was assumed to find them."""

    bands: tuple[SceneBand, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """The bands if ambiguous codes are those of one sensor."""

    sensor: Sensor
    selection: Selection


@dataclass(frozen=True)
class NeededBand:
    """A band of the model, with the common names that its names have."""

    band: Band
    #: The sensor of the codes among the names of the model's bands; None if they may be of several.
    sensor: Sensor | None
    #: Common names of the numbered bands of short-wave infrared, as all names of the model's bands say.
    swir: Mapping[int, str] = field(default_factory=lambda: SWIR)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the band, best first."""
        return (self.band.name, *self.band.synonyms)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Common names of the band, best first."""
        return tuple(dict.fromkeys(kind for name in self.names for kind in self.kinds_of(name)))

    @cached_property
    def coded(self) -> tuple[str, ...]:
        """Common names that the codes among the names have, best first."""
        return tuple(kinds[0] for name in self.names if find_code(name) and (kinds := self.kinds_of(name)))

    def kinds_of(self, name: str) -> tuple[str, ...]:
        """Return the common names of one of the band's names; of a code, those of the band or of the model's sensor."""
        if found := named_kinds(name, self.swir):
            return found
        code = find_code(name)
        known = self.sensor.bands.get(code.key) if self.sensor and code else None
        words = tuple(kind for each in self.names for kind in named_kinds(each))
        return known.kinds if known else words if code else ()

    def names_band(self, name: str, band: SceneBand, identity: Identity) -> bool:
        """Return True if a name of this band is one of the scene's band, and is no code of another meaning there."""
        found = {canonical(text) for text in (*band.names, *band.texts)} | _file_code(band, identity)
        if not found or canonical(name) not in found:
            return False
        kinds = self.kinds_of(name)
        contradicts = bool(kinds and identity.kinds) and not broad_kinds(kinds) & broad_kinds(identity.kinds)
        if identity.renumbered and kinds:
            return not contradicts and bool(identity.kinds)
        return not (contradicts and find_code(name) is not None)


def needed_bands(needed: Sequence[Band]) -> tuple[NeededBand, ...]:
    """Return the bands of a model with their common names."""
    sensors = [sensor for sensor in SENSORS if all(_fits(band, sensor) for band in needed)]
    coded = any(find_code(name) for band in needed for name in (band.name, *band.synonyms))
    swir = numbered_swir(name for band in needed for name in (band.name, *band.synonyms))
    return tuple(NeededBand(band, sensors[0] if coded and len(sensors) == 1 else None, swir) for band in needed)


def _fits(band: Band, sensor: Sensor) -> bool:
    """Return True if the codes among a band's names can be of a sensor."""
    names = (band.name, *band.synonyms)
    codes = [code.key for name in names if (code := find_code(name)) and not named_kinds(name)]
    words = {kind for name in names for kind in named_kinds(name)}
    known = [sensor.bands[key].kinds if key in sensor.bands else None for key in codes]
    return all(kinds is not None and (not words or broad_kinds(words) & broad_kinds(kinds)) for kinds in known)


def select_bands(
    needed: Sequence[Band],
    present: Sequence[SceneBand],
    request: Sequence[str | int] | None,
    sensor: Sensor | None = None,
) -> Selection:
    """Return the scene's bands in the model's order, by the request, by name, or by what the bands are.

    `sensor` is the sensor of the scene, if its metadata name it. Bands without names are used in their order, with a
    note. Raises `MissingBands` if bands are missing or cannot be identified, and `InvalidInput` if the request selects
    bands ambiguously or in the wrong number.
    """
    if request is not None:
        return Selection(_requested(needed, present, request))
    wanted, identities = needed_bands(needed), identify(present, sensor)
    found = _matches(wanted, present, identities)
    if None not in found:
        return _selection(wanted, present, identities, found)
    readings = _readings(wanted, present, identities, sensor)
    unclear = [one for one in identities if one.code is not None and len(one.sensors) > 1]
    if len(readings) == 1 and not any(one.code is not None and one.code.bare for one in unclear):
        [only] = readings
        note = f"The codes {_codes(unclear)} are of several Landsats. They were read as those of {only.sensor.name}, "
        return Selection(only.selection.bands, (f"{note}the only one with all bands.", *only.selection.notes))
    if _order_only(wanted, present, identities, found):
        return Selection(tuple(present), _order_note(needed, present))
    raise MissingBands(_sentence(needed, present, identities, found, readings))


def find_places(
    need: NeededBand, present: Sequence[SceneBand], identities: Sequence[Identity]
) -> tuple[str, tuple[int, ...]]:
    """Return the places of the scene's bands that a model's band names or means, and the name; none if there is none.

    Names come first, in their order, then common names. A model's band that may be a broad or a narrow one is that of
    its first code, such as B8A, however the scene writes its names.
    """
    pairs = list(enumerate(zip(present, identities, strict=True)))
    if len(need.kinds) > 1:
        pairs = [pair for pair in pairs if need.coded and pair[1][1].kinds[:1] == need.coded[:1]] or pairs
    for name in need.names:
        if places := tuple(at for at, (band, known) in pairs if need.names_band(name, band, known)):
            return name, places
    for kind in need.kinds:
        if places := tuple(at for at, (_, known) in pairs if kind in known.kinds):
            return kind, places
    return need.band.name, ()


def _find_one(need: NeededBand, present: Sequence[SceneBand], identities: Sequence[Identity]) -> int | None:
    name, places = find_places(need, present, identities)
    if len(places) > 1:
        listed = _listing([present[at] for at in places], [identities[at] for at in places])
        raise InvalidInput(f"The scene has {len(places)} bands named {name!r}: {listed}. Select one with `bands`.")
    return places[0] if places else None


def _matches(
    wanted: Sequence[NeededBand], present: Sequence[SceneBand], identities: Sequence[Identity]
) -> list[int | None]:
    """Return the place of each band of the model; no band of the scene is used for two that differ."""
    found = list[int | None]()
    for need in wanted:
        match = _find_one(need, present, identities)
        taken = match is not None and match in found and not _named(need, present[match], identities[match])
        found.append(None if taken else match)
    return found


def _named(need: NeededBand, band: SceneBand, identity: Identity) -> bool:
    return any(need.names_band(name, band, identity) for name in need.names)


def _file_code(band: SceneBand, identity: Identity) -> set[str]:
    return {canonical(identity.code.text)} if band.alone and identity.code is not None and not band.name else set()


def _readings(
    wanted: Sequence[NeededBand], present: Sequence[SceneBand], identities: Sequence[Identity], sensor: Sensor | None
) -> list[Reading]:
    """Return the bands as each sensor would have them that ambiguous codes may be of, if it has all of them."""
    found = []
    for candidate in dict.fromkeys(one for known in identities if len(known.sensors) > 1 for one in known.sensors):
        known = identify(present, sensor, only=candidate)
        matches = _matches(wanted, present, known)
        if None not in matches:
            found.append(Reading(candidate, _selection(wanted, present, known, matches)))
    return found


def _order_only(
    wanted: Sequence[NeededBand],
    present: Sequence[SceneBand],
    identities: Sequence[Identity],
    found: Sequence[int | None],
) -> bool:
    """Return True if the number of bands fits and nothing tells one from another, or there is a single one."""
    if len(present) != len(wanted) or any(match is not None for match in found):
        return False
    optical = any(need.kinds for need in wanted)
    known = optical and any(one.kinds or one.code for one in identities)
    return not known and (len(present) == 1 or not any(band.name for band in without_numbering(present)))


def _order_note(needed: Sequence[Band], present: Sequence[SceneBand]) -> tuple[str, ...]:
    if len(present) == 1:
        used = f"The scene's only band, {shown(present[0].name)!r}, was used as {needed[0].name}"
        return (f"{used}: its name says nothing about that.",) if present[0].name else ()
    note = (
        f"The scene's bands have no names that say what they are. They were used in their order as {_names(needed)}. "
        f"{_line(range(1, len(needed) + 1))} confirms this order, another one corrects it."
    )
    return (note,)


def _selection(
    wanted: Sequence[NeededBand],
    present: Sequence[SceneBand],
    identities: Sequence[Identity],
    found: Sequence[int | None],
) -> Selection:
    at = [match for match in found if match is not None]
    used = [(need, present[match], identities[match]) for need, match in zip(wanted, at, strict=True)]
    return Selection(tuple(_with_names(band, one) for _, band, one in used), tuple(_notes(used)))


def _with_names(band: SceneBand, identity: Identity) -> SceneBand:
    """Return a band without a name with those that were found, by which documents declare its radiometry."""
    if band.names or not identity.kinds:
        return band
    code = (identity.code.text,) if identity.code else ()
    return replace(band, aliases=(*code, identity.kinds[0]))


def _notes(used: Sequence[tuple[NeededBand, SceneBand, Identity]]) -> Iterable[str]:
    """Yield a note on each assumption that led to the bands."""
    unclear = [(need, one) for need, _, one in used if need.kinds and len(one.sensors) > 1 and not one.kinds]
    if unclear:
        bands = ", ".join(need.band.name for need, _ in unclear)
        yield (
            f"The codes {_codes([one for _, one in unclear])} mean different bands on different sensors. They were "
            f"used as the model's record names them: {bands}."
        )
    coloured = [(need, band) for need, band, one in used if one.origin == "colour interpretation"]
    if coloured:
        listed = ", ".join(f"{need.band.name} from band {band.number}" for need, band in coloured)
        yield f"The colour interpretation of the file, which programs often set by default, gave {listed}."
    for product in dict.fromkeys(one.product for _, _, one in used if one.product):
        yield f"The bands have no names. By the file's name, their order is that of {product}."
    for need, band, one in used:
        wanted = need.kinds[0] if need.kinds else ""
        broader = not {wanted, *need.coded} & set(one.kinds) and broad_kinds([wanted]) & set(one.kinds)
        if broader and one.origin != "name" and not _named(need, band, one):
            yield f"The band {wanted} is not in the scene; {_shown(band, one)} was used as {need.band.name}."


def _codes(identities: Iterable[Identity]) -> str:
    return ", ".join(one.code.text for one in identities if one.code is not None)


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
        matches = [band for band in present if canonical(wanted) in map(canonical, band.names)]
    if not matches:
        raise MissingBands(
            f"`bands` names {wanted!r}, which is not in the scene; the scene has {_listing(present)}.",
            errors=[Issue(f"/input/bands/{at}", f"is none of the scene's {bands_in_words(len(present))}")],
        )
    if len(matches) > 1:
        raise InvalidInput(f"`bands` names {wanted!r}, which the scene has {len(matches)} times; use the band number.")
    return matches[0]


def bands_in_words(count: int) -> str:
    """Return `1 band`, `2 bands`."""
    return f"{count} band{'' if count == 1 else 's'}"


def _sentence(
    needed: Sequence[Band],
    present: Sequence[SceneBand],
    identities: Sequence[Identity],
    matches: Sequence[int | None],
    readings: Sequence[Reading],
) -> str:
    if len(present) < len(needed):
        found = _listing(present, identities) if present else "none"
        count = bands_in_words(len(needed))
        return f"The model needs {count} ({_names(needed)}), but the scene has {len(present)}: {found}."
    unclear = [one for one in identities if one.code is not None and not one.kinds]
    sensors = dict.fromkeys(sensor.name for one in unclear for sensor in one.sensors)
    several = f" The codes {_codes(unclear)} mean different bands on {', '.join(sensors)}." if len(sensors) > 1 else ""
    renumbered = [band.names[0] for band, one in zip(present, identities, strict=True) if one.renumbered and band.names]
    if renumbered:
        several += f" Sensors number short-wave infrared differently, so {', '.join(renumbered)} do not say enough."
    missing = ", ".join(need.name for need, match in zip(needed, matches, strict=True) if match is None)
    lines = [f"if it is of {one.sensor.name}, {_line(b.number for b in one.selection.bands)}" for one in readings]
    advice = "; ".join(lines) or _advice(present, identities, matches, missing)
    return (
        f"The model needs {_names(needed)}; the scene has {_listing(present, identities)}. No band matches the name of "
        f"{missing}.{several} Give the bands in the model's order in `bands` (names or numbers from 1): "
        f"{advice}."
    )


def _advice(
    present: Sequence[SceneBand], identities: Sequence[Identity], matches: Sequence[int | None], missing: str
) -> str:
    """Return the line of a request with the bands that were found; with the mere order if nothing tells one band."""
    told = any(one.kinds or one.code for one in identities) or any(match is not None for match in matches)
    if told or any(mentions_band(text) for band in present for text in band.names):
        filled = _line("?" if match is None else present[match].number for match in matches)
        return f'{filled}, with the {"number" if missing.count(",") == 0 else "numbers"} of {missing} for each "?"'
    return f"such as {_line(range(1, len(matches) + 1))}"


def _line(numbers: Iterable[int | str]) -> str:
    """Return the line of a request that selects bands by number."""
    text = json.dumps(list(numbers))
    return f"\"bands\": {text} (on the command line: --param 'bands={text}')"


def _names(needed: Sequence[Band]) -> str:
    return ", ".join(band.name for band in needed)


def _listing(present: Sequence[SceneBand], identities: Sequence[Identity] = ()) -> str:
    known = identities or [Identity()] * len(present)
    listed = [_shown(band, one) for band, one in list(zip(present, known, strict=True))[:_MOST_LISTED]]
    return ", ".join(listed) + (f" and {len(present) - _MOST_LISTED} more" if len(present) > _MOST_LISTED else "")


def _shown(band: SceneBand, identity: Identity) -> str:
    told = f"{identity.kinds[0]} by its {identity.origin}" if identity.kinds and identity.origin != "name" else ""
    if band.names:
        return f"{band.number} {shown(band.names[0])!r}" + (f" ({told})" if told else "")
    return f"{band.number} (unnamed{', ' + told if told else ''})"
