"""Kinds of providers' masks: their values, and the classes that hide the ground. Pure.

SCL is the scene classification of Sentinel-2 L2A; each value is one class (Sentinel-2 Products Specification Document).
Fmask comes with HLS v2.0; each bit is a class, and 255 is fill (HLS User Guide v2.0, table 9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

MaskKindName = Literal["scl", "fmask"]
_FMASK = ("cirrus", "cloud", "adjacent to cloud or shadow", "cloud shadow", "snow or ice", "water")


@dataclass(frozen=True, slots=True)
class MaskKind:
    """Classes of one kind of mask."""

    #: Values that have each class, of the 256 of uint8.
    values: Mapping[str, tuple[int, ...]]
    #: Classes without an observation, which are always masked.
    empty: tuple[str, ...]
    #: Classes that are masked by default, beside the empty ones.
    hidden: tuple[str, ...]


def _bit(number: int) -> tuple[int, ...]:
    return tuple(value for value in range(255) if value >> number & 1)


_SCL = (
    "no data",
    "saturated or defective",
    "dark area",
    "cloud shadow",
    "vegetation",
    "not vegetated",
    "water",
    "unclassified",
    "cloud medium probability",
    "cloud high probability",
    "thin cirrus",
    "snow or ice",
)

MASK_KINDS: Final[Mapping[MaskKindName, MaskKind]] = MappingProxyType(
    {
        "scl": MaskKind(
            {name: (value,) for value, name in enumerate(_SCL)},
            ("no data", "saturated or defective"),
            ("cloud shadow", "cloud medium probability", "cloud high probability", "thin cirrus"),
        ),
        "fmask": MaskKind(
            {"no data": (255,), **{name: _bit(bit) for bit, name in enumerate(_FMASK)}},
            ("no data",),
            ("cloud", "cloud shadow"),
        ),
    }
)
