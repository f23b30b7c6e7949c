"""Names of bands: what a text says about a band, by words, wavelength or a sensor's code. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.processors.geo.read.sensors import (
    DEA_SWIR,
    LANDSAT,
    MODIS,
    NO_BAND,
    OF_FILES,
    OLI,
    SENSORS,
    SENTINEL_2,
    SWIR,
    USUAL,
    WAVELENGTHS,
    WORDS,
    Sensor,
)

_CODE: Final = re.compile(
    r"(?<![a-z0-9])(?:(?P<landsat>s[rt][ _-]?)|(?P<modis>(?:nadir_reflectance|sur_refl)_?))?"
    r"(?:band|bande|banda|kanal|canal|b)[ _-]?(?P<number>\d{1,2}a?)(?![a-z0-9])",
    re.IGNORECASE,
)
#: Arithmetic with a band, which is not the band: `blue^2`, `B8 / B4`, `(nir-red)`, `sqrt(red)`.
_ARITHMETIC: Final = re.compile(
    r"\^|\*|\b(?:sqrt|log|log10|ln|exp|abs|square)\b|(?<![a-z0-9])b\d{1,2}a?[\s)]*[-+/][\s(]*b\d{1,2}a?(?![a-z0-9])",
    re.IGNORECASE,
)
_UNIT: Final = r"\s*(?P<unit>nm|nanomet\w*|[µμu]m|micromet\w*|microns?)\b"
_WAVELENGTH: Final = re.compile(
    r"(?<![\w.])(?P<low>\d+(?:\.\d+)?)(?:\s*(?:-|\u2013|to)\s*(?P<high>\d+(?:\.\d+)?))?" + _UNIT, re.IGNORECASE
)
#: Phrases of words, longest first.
_PHRASES: Final = sorted(
    ((tuple(phrase.split()), kind) for kind, phrases in WORDS.items() for phrase in phrases), key=lambda p: -len(p[0])
)
#: Words for short-wave infrared that a number follows: `SWIR 1`, and not `SWIR 1.6` or `SWIR16`.
_SWIR_WORDS: Final = sorted(
    {
        found[1]
        for kind in SWIR.values()
        for phrase in WORDS[kind]
        if (found := re.fullmatch("([a-z ]*[a-z]) ?[12]", phrase))
    }
)
_SWIR: Final = re.compile(rf"(?<![a-z])(?:{'|'.join(_SWIR_WORDS)}) ?(\d)(?!\d| \d(?!\w))")
#: Names of Digital Earth Australia, and those that only its Sentinel-2 has or only its Landsat has.
_DEA: Final = re.compile(r"\b(?:nbart?|s2be) swir \d")
_DEA_SENTINEL_2: Final = re.compile(r"\b(?:nbart?|s2be) (?:nir [12]|red edge)\b|\bs2be\b")
_DEA_LANDSAT: Final = re.compile(r"\bnbart? nir(?! \d)")
#: Last words of a file's name that say nothing about its band.
_ENDINGS: Final = re.compile(r"\d+m|raw|clip|clipped|sr|toa|boa|harmonized|reflectance|cog|band")
#: Common names that differ by their width only: a text's word may be broader than its wavelength.
_BROADER: Final = {
    "nir08": "nir",
    "rededge071": "rededge",
    "rededge075": "rededge",
    "rededge078": "rededge",
    "lwir11": "lwir",
    "lwir12": "lwir",
}
#: Wavelengths without a unit are in nanometres from here on, and in micrometres below.
_LEAST_NM: Final = 100


@dataclass(frozen=True, slots=True)
class Code:
    """A band's code such as `B04`, `SR_B4` or `Nadir_Reflectance_Band1`."""

    #: The code as it was written.
    text: str
    #: The key in `Sensor.bands`.
    key: str
    #: Sensors that it may be of, as far as the code alone says.
    sensors: tuple[Sensor, ...]
    #: True if the code does not name its sensor: any sensor may have it.
    bare: bool = True


def canonical(name: str) -> str:
    """Return a normalised band name: `B02`, `b2` and `B-2` are equal, and so are `NIR narrow` and `nir_narrow`."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", re.sub(r"[\s_-]", "", name.lower()))


def named_kinds(text: str, swir: Mapping[int, str] = SWIR) -> tuple[str, ...]:
    """Return the common names that a text gives a band by its words or wavelength, the exact one first.

    `swir` has the common names of numbered bands (`numbered_swir`). Returns none for a text without such words, for one
    that contradicts itself, and for one about another product.
    """
    words = _words(text)
    if _ARITHMETIC.search(text) or (NO_BAND & set(words) and not _phrase(words)):
        return ()
    found = _renumbered(_phrases_in(words), text, swir)
    at = _wavelength(text)
    exact = () if at is None else wavelength_kinds(at)
    if at is not None and not exact and set(found) & set(SWIR.values()):
        return ()  # such as `SWIR1 (1240 nm)` of MODIS
    if len(found) > 1 or not (found and exact):
        return exact or (found if len(found) == 1 else ())
    if found == exact:
        return exact
    return (*exact, *found) if _BROADER.get(exact[0]) == found[0] else ()


def swir_number(text: str) -> int | None:
    """Return the number of a band that a text calls short-wave infrared, such as `SWIR 1`; None for none."""
    found = _SWIR.search(" ".join(_words(text)))
    return None if found is None else int(found[1])


def numbered_swir(texts: Iterable[str], sensor: Sensor | None = None) -> Mapping[int, str]:
    """Return the common names of the numbered short-wave infrared bands among all texts of a scene, by number.

    `SWIR 1` and `SWIR 2` are at 1.6 and 2.2 um where no others are numbered. MODIS and VIIRS begin at 1240 nm,
    WorldView has eight, and Sentinel-2 of Digital Earth Australia has 2 and 3: other numbers stay without a meaning.
    """
    texts = [" ".join(_words(text)) for text in texts]
    numbers = {int(found[1]) for text in texts if (found := _SWIR.search(text))}
    if not any(map(_DEA.search, texts)):
        return SWIR if numbers <= SWIR.keys() else {}
    of_landsat = sensor in LANDSAT or 1 in numbers or any(map(_DEA_LANDSAT.search, texts))
    of_sentinel_2 = sensor is SENTINEL_2 or 3 in numbers or any(map(_DEA_SENTINEL_2.search, texts))
    if of_landsat == of_sentinel_2:
        return {}
    return DEA_SWIR if of_sentinel_2 else SWIR


def _renumbered(kinds: tuple[str, ...], text: str, swir: Mapping[int, str]) -> tuple[str, ...]:
    number = None if swir is SWIR else swir_number(text)
    if number is None:
        return kinds
    return (*(kind for kind in kinds if kind not in SWIR.values()), *filter(None, [swir.get(number)]))


def mentions_band(text: str) -> bool:
    """Return True for a text with a word for a band, also if the text is about something else, such as `blue^2`."""
    return bool(_phrases_in(_words(text)))


def broad_kinds(kinds: Iterable[str]) -> set[str]:
    """Return common names without what tells a narrow band from a broad one: `nir` for `nir08`."""
    return {_BROADER.get(kind, kind) for kind in kinds}


def wavelength_kinds(centre_nm: float) -> tuple[str, ...]:
    """Return the common name of the bands with a centre wavelength in nm; none outside the table."""
    return tuple(kind for kind, (low, high) in WAVELENGTHS.items() if low <= centre_nm < high)


def wavelength_nm(number: str, unit: str = "") -> float | None:
    """Return a wavelength in nm from its number and unit in metadata; None for no number."""
    try:
        value = float(number)
    except ValueError:
        return _wavelength(number)
    micrometres = unit.lower()[:1] in ("µ", "μ", "u", "m") or (not unit and value < _LEAST_NM)
    return value * 1000 if micrometres else value


def find_code(text: str) -> Code | None:
    """Return the last code of a band in a text; None if there is none, and for arithmetic with bands."""
    if _ARITHMETIC.search(text):
        return None
    found = None
    for found in _CODE.finditer(text):  # noqa: B007  (the last match)
        pass
    if found is None:
        return None
    number = found["number"].lower()
    key = f"b{number.lstrip('0')}"
    if found["modis"]:
        return Code(found[0], key, (MODIS,), bare=False)
    if found["landsat"]:  # surface reflectance of Landsat 4 to 7 has no band 6, which is thermal
        sr_6 = key == "b6" and found["landsat"].lower().startswith("sr")
        return Code(found[0], key, (OLI,) if sr_6 else LANDSAT, bare=False)
    return Code(found[0], key, (SENTINEL_2, OLI) if number[0] == "0" else USUAL)


def file_kinds(name: str, swir: Mapping[int, str] = SWIR) -> tuple[str, ...]:
    """Return the common name in the last words of a file's name, such as `scene_red_10m.tif`; `swir`: `named_kinds`."""
    words = _words(name.rpartition(".")[0] or name)
    while len(words) > 1 and _ENDINGS.fullmatch(words[-1]):
        words.pop()
    if (NO_BAND - OF_FILES) & set(words):
        return ()
    kinds = next(((kind,) for phrase, kind in _PHRASES if tuple(words[-len(phrase) :]) == phrase), ())
    return _renumbered(kinds, " ".join(words[-5:]), swir)


def named_sensor(texts: Iterable[str]) -> Sensor | None:
    """Return the sensor that texts name (platforms, products, files); None for none and for several."""
    found = {sensor.name: sensor for text in texts for sensor in SENSORS if sensor.names.search(text)}
    return found.popitem()[1] if len(found) == 1 else None


def is_numbering(names: Sequence[str]) -> bool:
    """Return True if names only number the bands of a file: `Band 1`, `Band 2`; `stack_1`, `stack_2`.

    Such numbers are places in the file and no codes: the ninth of thirteen bands of Sentinel-2 is B8A. Names with a
    word for a band, such as `SWIR1` and `SWIR2`, are no numbering.
    """
    if any(named_kinds(name) for name in names):
        return False
    parts = [re.fullmatch(r"(.*?)[ _.-]?0*(\d+)", name.strip()) for name in names]
    prefixes = {part[1].lower() if part else None for part in parts}
    numbers = [int(part[2]) for part in parts if part]
    codes = [code for name in names if (code := find_code(name))]
    coded = any(not code.bare or re.match(r"b\W*\d", code.text, re.IGNORECASE) for code in codes)
    return len(prefixes) == 1 and not coded and numbers == list(range(1, len(names) + 1))


def _words(text: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    plain = unicodedata.normalize("NFKD", spaced.lower()).encode("ascii", "ignore").decode()
    return re.findall(r"[a-z0-9]+", plain)


def _phrase(words: Sequence[str]) -> str | None:
    return next((kind for phrase, kind in _PHRASES if phrase == tuple(words)), None)


def _phrases_in(words: Sequence[str]) -> tuple[str, ...]:
    """Return the common names of all phrases in the words; of overlapping ones, the longest counts."""
    found, at = list[str](), 0
    while at < len(words):
        hit = next(((p, kind) for p, kind in _PHRASES if tuple(words[at : at + len(p)]) == p), None)
        if hit is not None:
            found.append(hit[1])
        at += len(hit[0]) if hit else 1
    return tuple(dict.fromkeys(found))


def _wavelength(text: str) -> float | None:
    found = _WAVELENGTH.search(text.replace(",", "."))
    if found is None:
        return None
    low, high = float(found["low"]), float(found["high"] or found["low"])
    return (low + high) / 2 * (1 if found["unit"].lower().startswith("n") else 1000)
