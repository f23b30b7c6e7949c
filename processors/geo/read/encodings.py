"""Known encodings of reflectance as numbers, and the request that decodes each of them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

#: Number of reflectance 0 in Landsat level 1.
_LEVEL_1_ZERO = 5000
#: Sun elevation of the example for Landsat level 1, in degrees; between the extremes this decodes any scene roughly.
_SUN = 45.0


@dataclass(frozen=True, slots=True)
class Encoding:
    """A usual way to store reflectance: reflectance = number * scale + offset."""

    #: Noun phrase for messages.
    name: str
    scale: float
    offset: float = 0.0
    #: Advice for an encoding whose scale is not the same for all scenes; `{example}` stands for a request.
    advice: str | None = None

    def in_unit(self, unit: float) -> tuple[float, float]:
        """Return scale and offset for a model that has the number `unit` for reflectance 1."""
        return self.scale * unit, self.offset * unit

    def remedy(self, unit: float) -> str:
        """Return the imperative clause that leads a user to the right radiometry."""
        given = request_text(*self.in_unit(unit))
        return self.advice.format(example=given) if self.advice else f"give {given}"

    def command(self, unit: float) -> str:
        """Return the remedy as an argument of `penstock run` and `penstock submit`."""
        if self.advice:
            return "--param sidecar=<product>_MTL.json"
        return f"--param 'radiometry={_object(*self.in_unit(unit))}'"


def request_text(scale: float, offset: float) -> str:
    """Return the request's `radiometry` as JSON."""
    return f'"radiometry": {_object(scale, offset)}'


def _object(scale: float, offset: float) -> str:
    return f'{{"scale": {decimal(scale)}, "offset": {decimal(offset)}}}'


def level_1_sun(scale: float, offset: float, unit: float) -> float | None:
    """Return the sun's elevation in degrees for which this is the radiometry of Landsat level 1; None if for none."""
    sine = 2e-5 * unit / scale
    if not sine <= 1.001 or abs(offset / scale + _LEVEL_1_ZERO) > 1:
        return None
    return math.degrees(math.asin(min(1.0, sine)))


def decimal(value: float) -> str:
    """Return a number with at most 7 digits and no exponent."""
    return np.format_float_positional(float(f"{value:.7g}"), trim="-")


_LEVEL_1_SCALE, _LEVEL_1_OFFSET = 2e-5 / math.sin(math.radians(_SUN)), -0.1 / math.sin(math.radians(_SUN))

#: Sources: Sentinel-2 Products Specification Document 14 (RADIO_ADD_OFFSET since processing baseline 04.00); Landsat
#: 8-9 Collection 2 Level 2 Science Product Guide (0.0000275, -0.2) and Level 1 Data Format Control Book (0.00002, -0.1,
#: both divided by the sine of the sun's elevation); HLS User Guide 2.0; UINT16 outputs of Sentinel Hub (x 65535).
ENCODINGS: Final = (
    Encoding(
        "reflectance x 10000 (Sentinel-2 before processing baseline 04.00, HLS, Landsat Collection 1 level 2)", 1e-4
    ),
    Encoding("Sentinel-2 since processing baseline 04.00", 1e-4, -0.1),
    Encoding("Landsat Collection 2 level 2", 2.75e-5, -0.2),
    Encoding(
        "Landsat level 1",
        _LEVEL_1_SCALE,
        _LEVEL_1_OFFSET,
        "give the product's *_MTL.json as `sidecar`, or divide 0.00002 and -0.1 by the sine of the sun's elevation, "
        f"which for {_SUN:g} degrees is {{example}}",
    ),
    Encoding("reflectance x 65535", 1 / 65535),
    Encoding("reflectance from 0 to 1", 1.0),
    Encoding("reflectance x 255", 1 / 255),
    Encoding("reflectance in percent", 0.01),
)
