"""Identity of a scene's bands: their common names, by names, wavelengths, sensors, files and colours. Pure.

A band's texts are read in this order: the request's name or the description in the file, the names in the STAC item,
tags, the centre wavelength, the file's name, the colour interpretation. The first that is understood counts. A code
such as `B5` is near infrared on Landsat 8 and red edge on Sentinel-2: it counts if the sensor is named (by the STAC
item, tags or the file's name), or if all sensors that have all codes of the scene agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from penstock.processors.geo.read.band_names import (
    Code,
    broad_kinds,
    file_kinds,
    find_code,
    is_numbering,
    named_kinds,
    numbered_swir,
    swir_number,
    wavelength_kinds,
)
from penstock.processors.geo.read.sensors import LANDSAT, ONLY_NIR, PRODUCTS, SENTINEL_2, SWIR, Sensor

#: The text that tells what a band is.
Origin = Literal["name", "code", "wavelength", "file name", "product", "colour interpretation"]

#: Codes of Landsat's surface reflectance (`SR_B1`); the other bands of Landsat have none.
_LANDSAT_SR: Final = frozenset(f"b{number}" for number in range(1, 8))
#: Common names by colour interpretation, as in GDAL. The others are of several bands.
_COLOURS: Final[Mapping[str, tuple[str, ...]]] = {
    "red": ("red",),
    "green": ("green",),
    "blue": ("blue",),
    "coastal": ("coastal",),
    "pan": ("pan",),
    "nir": ONLY_NIR,
}


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
    #: Names in the file's tags.
    texts: tuple[str, ...] = ()
    #: Centre wavelength in nm in the file's tags.
    wavelength_nm: float | None = None
    #: Colour interpretation in the file, as GDAL names it.
    colour: str = ""
    #: Name of the band's file.
    file_name: str = ""
    #: Sensor that the file's tags or name state.
    sensor: Sensor | None = None
    #: True if the file has no other band, so that its name may be the band's.
    alone: bool = False

    @property
    def number(self) -> int:
        """Number of the band across all files, from 1, as in requests."""
        return self.before + self.index

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the band; the display name first."""
        return (*filter(None, (self.name,)), *self.aliases)


@dataclass(frozen=True, slots=True)
class Identity:
    """Common names of a band, the exact one first; none if they are not known."""

    kinds: tuple[str, ...] = ()
    origin: Origin | None = None
    #: The band's code, and the sensors that it may be of.
    code: Code | None = None
    sensors: tuple[Sensor, ...] = ()
    #: Product whose documented order of bands tells what the band is.
    product: str = ""
    #: True if the band is numbered like `SWIR 1`, and the number has another meaning in the scene or none.
    renumbered: bool = False


def identify(
    present: Sequence[SceneBand], sensor: Sensor | None = None, only: Sensor | None = None
) -> tuple[Identity, ...]:
    """Return the identity of each band.

    `sensor` is that of the scene, used for bands whose own file names none. `only` is the sensor of all codes that stay
    ambiguous.
    """
    present = without_numbering(present)
    named = next((band.sensor for band in present if band.sensor), None) or sensor
    codes = _of_one_provider([_code(band) for band in present], named)
    sensors = [_sensors(band, code, sensor) for band, code in zip(present, codes, strict=True)]
    every = [known for known in sensors if known]
    shared = tuple(one for one in (every[0] if every else ()) if all(one in known for known in every))
    keys = {code.key for code, known in zip(codes, sensors, strict=True) if code and len(known) > 1}
    shared = tuple(one for one in shared if keys <= one.bands.keys() and only in (None, one))
    counts = Counter(band.file for band in present)
    swir = numbered_swir((text for band in present for text in _all_texts(band)), named)
    found = []
    for band, code, known in zip(present, codes, sensors, strict=True):
        candidates = known if len(known) < 2 else (shared or known)
        renumbered = swir is not SWIR and any(map(swir_number, _all_texts(band)))
        found.append(replace(_identity(band, code, candidates, counts[band.file], swir), renumbered=renumbered))
    return tuple(found)


def contradicted(present: Sequence[SceneBand], sensor: Sensor | None) -> tuple[SceneBand, str, str] | None:
    """Return a band of a file that the STAC item calls like another band of it, its own common name and the item's.

    Returns None if item and file agree about the order of bands, or one of them says nothing.
    """
    of_file = identify([replace(band, aliases=(), colour="") for band in present], sensor)
    of_item = identify([SceneBand(band.index, None, band.aliases) for band in present], sensor)
    held = broad_kinds(kind for one in of_file for kind in one.kinds)
    for band, own, given in zip(present, of_file, of_item, strict=True):
        said = broad_kinds(given.kinds)
        if own.kinds and said and not said & broad_kinds(own.kinds) and said <= held:
            return band, own.kinds[0], given.kinds[0]
    return None


def without_numbering(present: Sequence[SceneBand]) -> list[SceneBand]:
    """Return the bands without the names that only number the bands of their file."""
    names = dict[int, list[str]]()
    for band in present:
        names.setdefault(band.file, []).append(band.name or "")
    numbered = {file for file, of_file in names.items() if is_numbering(of_file)}
    return [replace(band, name=None) if band.name and band.file in numbered else band for band in present]


def _texts(band: SceneBand) -> Iterator[str]:
    yield from band.names
    yield from band.texts


def _all_texts(band: SceneBand) -> Iterator[str]:
    yield from _texts(band)
    if band.alone:
        yield band.file_name.rpartition(".")[0]


def _code(band: SceneBand) -> Code | None:
    found = (find_code(text) for text in _texts(band))
    own = next((code for code in found if code is not None), None)
    return own or (find_code(band.file_name) if band.alone else None)


def _of_one_provider(codes: Sequence[Code | None], sensor: Sensor | None) -> list[Code | None]:
    """Return the codes; `sr_B2` is of Sentinel-2 if the scene is, or if another such as `sr_B8A` is not Landsat's."""
    prefixed = [code for code in codes if code and not code.bare and code.text.lower().startswith("sr")]
    if sensor in LANDSAT or (sensor is not SENTINEL_2 and all(code.key in _LANDSAT_SR for code in prefixed)):
        return list(codes)
    return [replace(code, sensors=(SENTINEL_2,)) if code in prefixed else code for code in codes]


def _sensors(band: SceneBand, code: Code | None, scene: Sensor | None) -> tuple[Sensor, ...]:
    """Return the sensors that a band's code may be of; none without a code."""
    if code is None:
        return ()
    named = band.sensor or scene
    if named is not None and code.key in named.bands and (code.bare or named in code.sensors):
        return (named,)
    return tuple(sensor for sensor in code.sensors if code.key in sensor.bands)


def _identity(
    band: SceneBand, code: Code | None, sensors: tuple[Sensor, ...], count: int, swir: Mapping[int, str]
) -> Identity:
    by_code = _agreed(code, sensors)
    for text in _texts(band):
        own = find_code(text)
        if kinds := named_kinds(text, swir):
            return Identity(kinds, "name", code, sensors)
        if own is not None and own == code and by_code:
            return Identity(by_code, "code", code, sensors)
    if band.wavelength_nm is not None and (kinds := wavelength_kinds(band.wavelength_nm)):
        return Identity(kinds, "wavelength", code, sensors)
    if by_code:
        return Identity(by_code, "file name", code, sensors)
    if band.alone and code is None and (kinds := file_kinds(band.file_name, swir)):
        return Identity(kinds, "file name")
    return (None if band.name else _unnamed(band, count)) or Identity(code=code, sensors=sensors)


def _unnamed(band: SceneBand, count: int) -> Identity | None:
    """Return the identity of a band by the product of its file, or by its colour."""
    for name, pattern, order in PRODUCTS:
        if len(order) == count and pattern.search(band.file_name):
            return Identity((order[band.index - 1],), "product", product=name)
    return Identity(_COLOURS[band.colour], "colour interpretation") if band.colour in _COLOURS else None


def _agreed(code: Code | None, sensors: Sequence[Sensor]) -> tuple[str, ...]:
    """Return the common names on which all sensors agree for a code."""
    if code is None or not sensors:
        return ()
    first, *others = (sensor.bands[code.key].kinds for sensor in sensors)
    return tuple(kind for kind in first if all(kind in other for other in others))
