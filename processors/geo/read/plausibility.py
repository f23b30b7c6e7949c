"""Plausibility of decoded numbers, by the model's training data and by the limits of what surfaces reflect. Pure.

A scene's values are graded by rules on the percentiles of each band and on the colours of the pixels. A finding is
`impossible` if no scene on earth has such values, and `unusual` if few have. Reflectance limits are generous, so that
scenes all of cloud, snow, water, desert or sun glint are never impossible:

- fresh snow and thick clouds at a low sun exceed 1 in visible light, but nothing exceeds 0.75 at 2.2 µm over half a
  scene (thick water clouds reach 0.6, bright deserts 0.65, snow 0.2)
- vegetation and soil brighter than about 0.65 in near infrared do not exist; only snow, cloud and salt are so bright,
  and these are as bright in red
- in nearly every scene some pixel is dark in some band: water, shadow, vegetation in red, snow in short-wave infrared.
  An offset that was not applied (0.1 for Sentinel-2, 0.7 for Landsat) lifts this floor in all bands
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.options import Band
from penstock.processors.geo.read.band_names import canonical
from penstock.processors.geo.read.encodings import ENCODINGS, Encoding

Values = npt.NDArray[np.float64]
#: Common name of a band whose reflectance has known limits.
Colour = Literal["blue", "green", "red", "nir", "swir16", "swir22"]
Kind = Literal["level", "negative", "swir", "floor", "colour", "water", "dark", "stretch", "closer"]

_SYNONYMS: Final[Mapping[Colour, tuple[str, ...]]] = {
    "blue": ("blue",),
    "green": ("green",),
    "red": ("red",),
    "nir": ("nir", "nir08", "nir_narrow"),
    "swir16": ("swir16", "swir1", "swir_1"),
    "swir22": ("swir22", "swir2", "swir_2"),
}
#: Common name of a band by its canonical name in records.
_NAMES: Final = {canonical(name): colour for colour, names in _SYNONYMS.items() for name in names}

_PERCENTILES = (1, 5, 25, 50, 75, 99)
#: Fewer pixels are judged by their level only: a few pixels can have any colour.
_FEW = 64
#: Range of the training data in reflectance, if the record has none.
_RANGE = (0.0, 1.0)
#: Mean and standard deviation of top-of-atmosphere reflectance, if the record has none: those of all bands together in
#: the training data of ukis-csmask 1.0 (SPARCS and CloudSEN12+, `ukis_csmask/model_6b_l1c.json`).
_MEAN, _STD = 0.25, 0.21
#: A median may be outside the range by this share of its width.
_BEYOND = 0.5
#: A quarter of a band below the first is impossible, a twentieth below the second is unusual. Atmospheric correction
#: gives about -0.03 in shadows and water.
_NEGATIVE, _SLIGHTLY_NEGATIVE = -0.06, -0.05
#: Maximum median of the short-wave infrared bands.
_SWIR_MEDIANS: Final[Mapping[Colour, float]] = {"swir16": 0.9, "swir22": 0.75}
#: Highest first percentile of the darkest band in a usual scene, under a deck of thick cloud, and in any scene.
_USUAL_FLOOR, _CLOUD_FLOOR, _MOST_FLOOR = 0.085, 0.42, 0.62
#: Lowest reflectance of most scenes, and the weight of the distance to it; offsets move this floor most.
_MEAN_FLOOR, _FLOOR_WEIGHT = 0.015, 40.0
#: Reflectance that the brightest pixel of most scenes exceeds, and the weight of the distance to it.
_LEAST_TOP, _TOP_WEIGHT = 0.5, 7.0
#: Upper quartile at 2.2 µm of a deck of thick cloud.
_CLOUD_SWIR22 = 0.7
#: Share of pixels with colours that no surface has: unusual, impossible.
_ODD_SHARES = (0.02, 0.2)
#: Share of pixels that look like very bright water.
_WATER_SHARE = 0.1
#: Highest 99th percentile of all bands: impossible; impossible for land (lakes can be darker); unusual.
_NO_LIGHT, _DARKEST_LAND, _DARK = 0.002, 0.03, 0.12
#: Share of pixels that are brighter in near infrared than in green, which water is not.
_LAND_SHARE = 0.2
#: Numbers of a stretched 8-bit picture: first percentile of each band at most, 99th percentile at least, maximum.
_BLACK, _WHITE, _MOST_8_BIT = 5, 250, 255
#: Bands that are enough to expect a dark pixel in one of them.
_BANDS_FOR_FLOOR = 3
#: Difference of distances that is reported.
_CLOSER = 0.3


class Grade(IntEnum):
    """Grade of a scene's values."""

    USUAL = 0
    UNUSUAL = 1
    IMPOSSIBLE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """A property of the values that few scenes have, or none."""

    kind: Kind
    grade: Grade
    #: Clause for messages.
    text: str


#: Finding of a picture whose bands were stretched for display.
_STRETCH: Final = Finding("stretch", Grade.IMPOSSIBLE, "each band runs from 0 to 255, as in a picture for display")


#: Finding of usual values that another encoding makes still more usual.
_CLOSER_FINDING: Final = Finding(
    "closer", Grade.UNUSUAL, "with another encoding, the values are closer to the model's training data"
)


@dataclass(frozen=True, slots=True)
class Training:
    """Bands of a model as it was trained: `unit` is the model's number for reflectance 1, None for other quantities."""

    bands: tuple[Band, ...]
    unit: float | None

    def colours(self) -> dict[Colour, int]:
        """Return the index of each band whose common name is known."""
        found: dict[Colour, int] = {}
        for at, band in enumerate(self.bands):
            for name in (band.name, *band.synonyms):
                if (colour := _NAMES.get(canonical(name))) is not None:
                    found.setdefault(colour, at)
        return found

    def range(self, band: Band) -> tuple[float, float] | None:
        """Return the range of a band in the training data; for reflectance at least 0 to 1 is assumed."""
        if band.range is not None or self.unit is None:
            return band.range
        return _RANGE[0] * self.unit, _RANGE[1] * self.unit

    def distance(self, medians: Values) -> float:
        """Return the mean distance of medians from the training mean in standard deviations."""
        return float(np.mean([self._distance(one, band) for one, band in zip(medians, self.bands, strict=True)]))

    def _distance(self, median: float, band: Band) -> float:
        if (band.mean, band.std) == (0, 1) and self.unit is not None:  # a network that normalises by itself
            return abs(median / self.unit - _MEAN) / _STD
        return abs(median - band.mean) / band.std


@dataclass(frozen=True, slots=True)
class Graded:
    """Graded values of a scene under one encoding."""

    findings: tuple[Finding, ...]
    #: Smaller is closer to the training data and to a scene with dark pixels.
    distance: float

    @property
    def grade(self) -> Grade:
        """The worst grade of all findings."""
        return max((finding.grade for finding in self.findings), default=Grade.USUAL)

    @property
    def kinds(self) -> frozenset[Kind]:
        """Kinds of all findings."""
        return frozenset(finding.kind for finding in self.findings)


#: Encodings with the values that they give.
_Graded = Sequence[tuple[Graded, Encoding]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judgement on the applied radiometry, and the likeliest known encodings, best first."""

    graded: Graded
    likely: tuple[Encoding, ...]

    @property
    def refused(self) -> bool:
        """True if the values are impossible."""
        return self.graded.grade is Grade.IMPOSSIBLE

    @property
    def doubtful(self) -> bool:
        """True if the values are unusual and another encoding explains the numbers better."""
        return self.graded.grade is Grade.UNUSUAL and bool(self.likely)


def judge(numbers: Values, scale: Sequence[float], offset: Sequence[float], training: Training) -> Verdict:
    """Judge `numbers` (bands, pixels) with one applied scale and offset per band, in the model's unit.

    For unusual values, another encoding is likely if it makes the scene usual, or leaves it unusual for another reason:
    a scene without dark pixels may be a dark scene, decoded without its offset. For usual values, another encoding is
    likely if its values are also usual and closer to the training data.
    """
    applied = grade(_decode(numbers, scale, offset), training)
    if training.unit is not None and _stretched(numbers):
        return Verdict(Graded((_STRETCH, *applied.findings), applied.distance), ())
    if training.unit is None or (numbers.shape[1] < _FEW and applied.grade is Grade.USUAL):
        return Verdict(applied, ())
    others = []
    for encoding in ENCODINGS:
        one, add = encoding.in_unit(training.unit)
        if not _same(one, add, scale, offset):
            others.append((grade(numbers * one + add, training), encoding))
    others.sort(key=lambda pair: pair[0].distance)
    if applied.grade is Grade.USUAL:
        found, closer = _with_closer(applied, others)
        return Verdict(found, tuple(encoding for _, encoding in closer))
    return Verdict(applied, tuple(encoding for _, encoding in _better(applied, others)))


def _with_closer(applied: Graded, others: _Graded) -> tuple[Graded, _Graded]:
    """Return usual values with a finding if other encodings are closer to the training data, and those encodings."""
    closer = [
        (graded, encoding)
        for graded, encoding in others
        if graded.grade is Grade.USUAL and graded.distance < applied.distance - _CLOSER
    ]
    return (Graded((_CLOSER_FINDING,), applied.distance) if closer else applied), closer


def _better(applied: Graded, others: _Graded) -> _Graded:
    """Return the encodings that explain the numbers better than values which are unusual or impossible."""
    usual = [pair for pair in others if pair[0].grade is Grade.USUAL]
    unusual = [pair for pair in others if pair[0].grade is Grade.UNUSUAL]
    kinds = ((graded.kinds, (graded, encoding)) for graded, encoding in unusual)
    other_reason = [pair for found, pair in kinds if found <= {"dark", "floor"} and not found & applied.kinds]
    return usual or other_reason or (unusual if applied.grade is Grade.IMPOSSIBLE else [])


def grade(values: Values, training: Training) -> Graded:
    """Grade decoded values (bands, pixels) in the model's unit. Values without pixels have no findings."""
    if not values.shape[1]:
        return Graded((), 0.0)
    medians = np.median(values, axis=1)
    distance = training.distance(medians)
    findings = list(_level(medians, training))
    if training.unit is None or values.shape[1] < _FEW:
        return Graded(tuple(findings), distance)
    reflectance = values / training.unit
    spread = dict(zip(_PERCENTILES, np.percentile(reflectance, _PERCENTILES, axis=1), strict=True))
    names, colours = [band.name for band in training.bands], training.colours()
    pixels = {colour: reflectance[at] for colour, at in colours.items()}
    rules = (_negative(spread, names), _swir(pixels), _floor(spread, colours), _colour(pixels), _water(pixels))
    findings += [finding for finding in (*rules, _dark(spread, pixels)) if finding is not None]
    floor, top = float(spread[1].min()), float(reflectance.max())
    distance += _FLOOR_WEIGHT * abs(floor - _MEAN_FLOOR) + _TOP_WEIGHT * max(0.0, _LEAST_TOP - top)
    return Graded(tuple(findings), distance)


def _stretched(numbers: Values) -> bool:
    """Return True if each of several bands fills the range of 8-bit numbers, as no scene's reflectance does."""
    if numbers.shape[0] < _BANDS_FOR_FLOOR or numbers.shape[1] < _FEW or numbers.max() > _MOST_8_BIT:
        return False
    low, high = np.percentile(numbers, (1, 99), axis=1)
    return bool((low <= _BLACK).all() and (high >= _WHITE).all() and (numbers == np.rint(numbers)).all())


def _decode(numbers: Values, scale: Sequence[float], offset: Sequence[float]) -> Values:
    values: Values = numbers * np.array(scale)[:, None] + np.array(offset)[:, None]
    return values


def _same(scale: float, offset: float, scales: Sequence[float], offsets: Sequence[float]) -> bool:
    """Return True if every band has this scale and offset, up to rounding in tags such as 1.526e-05."""
    near_scale = all(abs(one - scale) <= 1e-3 * abs(scale) for one in scales)
    return near_scale and all(abs(one - offset) <= 1e-3 * max(abs(offset), abs(one)) for one in offsets)


def _level(medians: Values, training: Training) -> list[Finding]:
    """Find the band whose median is farthest outside its training range."""
    found: list[tuple[float, str]] = []
    for band, median in zip(training.bands, medians.tolist(), strict=True):
        if (trained := training.range(band)) is not None:
            low, high = trained
            excess = max(median - high, low - median) / (high - low)
            if not excess <= _BEYOND:
                found.append(
                    (excess, f"band {band.name} has a median of {median:.4g}, but was {low:g} to {high:g} in training")
                )
    return [Finding("level", Grade.IMPOSSIBLE, max(found)[1])] if found else []


def _negative(spread: Mapping[int, Values], names: Sequence[str]) -> Finding | None:
    at = int(spread[25].argmin())
    if (value := float(spread[25][at])) < _NEGATIVE:
        return Finding("negative", Grade.IMPOSSIBLE, f"a quarter of band {names[at]} is below {value:.3f}")
    at = int(spread[5].argmin())
    if (value := float(spread[5][at])) < _SLIGHTLY_NEGATIVE:
        return Finding("negative", Grade.UNUSUAL, f"5 % of band {names[at]} is below {value:.3f}")
    return None


def _swir(pixels: Mapping[Colour, Values]) -> Finding | None:
    for colour, most in _SWIR_MEDIANS.items():
        if colour in pixels and (median := float(np.median(pixels[colour]))) > most:
            return Finding(
                "swir", Grade.IMPOSSIBLE, f"the short-wave infrared has a median reflectance of {median:.2f}"
            )
    return None


def _floor(spread: Mapping[int, Values], colours: Mapping[Colour, int]) -> Finding | None:
    """Grade the darkest band's first percentile. Without short-wave infrared, snow and cloud have no dark band."""
    if len(spread[1]) < _BANDS_FOR_FLOOR:
        return None
    floor = float(spread[1].min())
    text = f"no pixel is dark in any band: the lowest reflectance is {floor:.2f}"
    swir22 = colours.get("swir22")
    bright = swir22 is not None and float(spread[75][swir22]) > _CLOUD_SWIR22
    if ("swir16" in colours or swir22 is not None) and floor > (_CLOUD_FLOOR if bright else _MOST_FLOOR):
        return Finding("floor", Grade.IMPOSSIBLE, text)
    return Finding("floor", Grade.UNUSUAL, text) if floor > _USUAL_FLOOR else None


def _colour(pixels: Mapping[Colour, Values]) -> Finding | None:
    """Grade the share of pixels that no mixture of water, plants, soil, snow and cloud gives."""
    odd = np.zeros(len(next(iter(pixels.values()), np.empty(0))), dtype=bool)
    if {"nir", "red"} <= pixels.keys():
        odd |= pixels["nir"] > 0.65 + 0.6 * pixels["red"]
    if {"blue", "red"} <= pixels.keys():
        odd |= pixels["blue"] > 0.35 + pixels["red"]
    for colour, most in (("swir16", 1.0), ("swir22", 0.85)):
        if colour in pixels:
            odd |= pixels[colour] > most  # type: ignore[index]  # the names are colours
    share = float(odd.mean()) if odd.size else 0.0
    if share <= _ODD_SHARES[0]:
        return None
    worst = Grade.IMPOSSIBLE if share > _ODD_SHARES[1] else Grade.UNUSUAL
    return Finding("colour", worst, f"{100 * share:.0f} % of the pixels have colours that no surface has")


def _water(pixels: Mapping[Colour, Values]) -> Finding | None:
    """Grade the share of pixels that have the colour of water and the brightness of sand."""
    if not {"green", "nir"} <= pixels.keys():
        return None
    share = float((pixels["green"] > 0.25 + 1.2 * pixels["nir"]).mean())
    text = f"{100 * share:.0f} % of the pixels look like water, but are brighter"
    return Finding("water", Grade.UNUSUAL, text) if share > _WATER_SHARE else None


def _dark(spread: Mapping[int, Values], pixels: Mapping[Colour, Values]) -> Finding | None:
    highest = float(spread[99].max())
    text = f"99 % of the values are below {highest:.2g} in every band"
    land = {"green", "nir"} <= pixels.keys() and (pixels["nir"] > 1.2 * pixels["green"]).mean() > _LAND_SHARE
    if highest < _NO_LIGHT or (land and highest < _DARKEST_LAND):
        return Finding("dark", Grade.IMPOSSIBLE, text)
    return Finding("dark", Grade.UNUSUAL, text) if highest < _DARK else None
