"""Kinds of providers' masks: their values, and the classes that hide the ground. Pure.

SCL is the scene classification of Sentinel-2 L2A; each value is one class (Sentinel-2 Products Specification Document).
Its cloud probability is 0 to 100 (CLD or MSK_CLDPRB there; also that of s2cloudless, x 100). Fmask comes with HLS v2.0;
each bit is a class, and 255 is fill (HLS User Guide v2.0, table 9). QA_PIXEL comes with Landsat Collection 2; each of
the lower bits is a class (Landsat 8-9 Collection 2 Level 2 Science Product Guide, table 5-2). Other masks are described
by their STAC items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

MaskKindName = Literal["scl", "fmask", "qa_pixel", "cloud_probability", "classification"]


@dataclass(frozen=True, slots=True)
class MaskClass:
    """The values of a class: those whose `length` bits from bit `offset` on are one of `values`, without `never`."""

    values: tuple[int, ...]
    offset: int = 0
    length: int = 16
    never: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MaskKind:
    """Classes of one kind of mask."""

    classes: Mapping[str, MaskClass]
    #: Classes without an observation, which are always masked.
    empty: tuple[str, ...]
    #: Classes that are masked by default, beside the empty ones; None if the request must name them.
    hidden: tuple[str, ...] | None
    #: Highest value of an observation.
    highest: int
    #: Data types of its files.
    dtypes: tuple[str, ...] = ("uint8",)


def _bit(number: int, never: tuple[int, ...] = ()) -> MaskClass:
    return MaskClass((1,), number, 1, never)


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
_FMASK = ("cirrus", "cloud", "adjacent to cloud or shadow", "cloud shadow", "snow or ice", "water")
_FMASK_FILL = 255
_QA_PIXEL = ("no data", "dilated cloud", "cirrus", "cloud", "cloud shadow", "snow", "clear", "water")
#: Highest probability of clouds, in percent, and the lowest value that is none.
_CERTAIN, _NO_PROBABILITY = 100, 101

#: Kinds whose classes are known. `cloud_probability` and `classification` depend on the request and the STAC item.
MASK_KINDS: Final[Mapping[MaskKindName, MaskKind]] = MappingProxyType(
    {
        "scl": MaskKind(
            {name: MaskClass((value,)) for value, name in enumerate(_SCL)},
            ("no data", "saturated or defective"),
            ("cloud shadow", "cloud medium probability", "cloud high probability", "thin cirrus"),
            len(_SCL) - 1,
        ),
        "fmask": MaskKind(
            {
                "no data": MaskClass((_FMASK_FILL,)),
                **{name: _bit(bit, (_FMASK_FILL,)) for bit, name in enumerate(_FMASK)},
            },
            ("no data",),
            ("cloud", "cloud shadow"),
            255,
        ),
        "qa_pixel": MaskKind(
            {name: _bit(bit) for bit, name in enumerate(_QA_PIXEL)},
            ("no data",),
            ("cirrus", "cloud", "cloud shadow"),
            65_535,
            ("uint16",),
        ),
    }
)


def cloud_probability(threshold: float) -> MaskKind:
    """Return the kind of a cloud probability in percent: a pixel is cloud above the threshold."""
    every = range(_CERTAIN + 1)
    classes = {
        "no data": MaskClass(tuple(range(_NO_PROBABILITY, 256))),
        "clear": MaskClass(tuple(value for value in every if value <= threshold)),
        "cloud": MaskClass(tuple(value for value in every if value > threshold)),
    }
    return MaskKind(classes, ("no data",), ("cloud",), _CERTAIN)
