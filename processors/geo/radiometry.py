"""What a scene's numbers mean: declared by the request, a document, the file or the model, never guessed. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock.errors import InvalidInput
from penstock.processors.geo.options import DefaultRadiometry
from penstock.processors.geo.request import RadiometryRequest

#: Who declared it, in the order in which they are asked.
Source = Literal["request", "sidecar", "stac", "file", "model default", "none"]

#: What of a file says where there is data, numbers aside.
MaskName = Literal["internal mask", "alpha"]

_WHOSE = {"file": "scene's own tag of", "stac": "STAC item's", "sidecar": "sidecar's"}
_NOBODY: tuple[Source, None] = ("none", None)


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody says of one band: `number * scale + offset`; `nodata` is none. None = says nothing of it."""

    scale: float | None = None
    #: Counts only with a scale.
    offset: float = 0.0
    nodata: float | None = None


@dataclass(frozen=True, slots=True)
class BandRadiometry:
    """How a band's numbers become the model's unit, and who said so."""

    scale: float
    offset: float
    nodata: float | None
    source: Source
    nodata_source: Source
    #: All that says where the band has no data, with commas: the number `nodata`, the file's mask, and `not finite`.
    mask: str = "none"


@dataclass(frozen=True, slots=True)
class Radiometry:
    """How numbers become the model's unit, band by band: `number * scale + offset`; `nodata` is none."""

    bands: tuple[BandRadiometry, ...]

    @property
    def scale(self) -> tuple[float, ...]:
        """Of each band."""
        return tuple(band.scale for band in self.bands)

    @property
    def offset(self) -> tuple[float, ...]:
        """Of each band, added after scaling."""
        return tuple(band.offset for band in self.bands)

    @property
    def nodata(self) -> tuple[float | None, ...]:
        """The number of each band that is no data, NaN aside."""
        return tuple(band.nodata for band in self.bands)

    @property
    def source(self) -> str:
        """Who said what the numbers mean: one word, or several with commas where bands differ."""
        return ", ".join(dict.fromkeys(band.source for band in self.bands))

    def to_json(self) -> dict[str, Any]:
        """Return what is recorded in the statistics; a value that all bands share is given once."""
        return {
            "scale": _shared(self.scale),
            "offset": _shared(self.offset),
            "source": _shared([band.source for band in self.bands]),
            "nodata": _shared(["NaN" if _is_nan(value) else value for value in self.nodata]),
            "nodata_source": _shared([band.nodata_source for band in self.bands]),
            "mask": _shared([band.mask for band in self.bands]),
        }


def asked(request: RadiometryRequest) -> Said:
    """Return what the request says of every band."""
    return Said(request.scale, request.offset or 0.0, request.nodata)


def tagged(scales: Sequence[float], offsets: Sequence[float], nodata: Sequence[float | None]) -> tuple[Said, ...]:
    """Return what a file's tags say of the bands that are used. Tags that change nothing at all are nobody's word."""
    silent = all(scale == 1 for scale in scales) and all(offset == 0 for offset in offsets)
    bands = zip(scales, offsets, nodata, strict=True)
    return tuple(Said(None if silent else scale, offset, empty) for scale, offset, empty in bands)


def resolve_radiometry(
    words: Sequence[tuple[Source, Said]],
    dtype: str,
    defaults: Sequence[DefaultRadiometry],
    *,
    mask: MaskName | None = None,
) -> BandRadiometry:
    """Return what a band's numbers mean: the first of `words` that says so, else the model's default for the data type.

    Scale with offset, and nodata, are looked for separately; a band with a `mask` gets no nodata by default.
    Raises `InvalidInput` when nobody says what such numbers mean, or what is said makes the same of all of them.
    """
    default = next((d for d in defaults if dtype in d.dtypes), None)
    model = Said(default.scale, default.offset, None if mask else default.nodata) if default else Said()
    everyone: list[tuple[Source, Said]] = [*words, ("model default", model)]
    source, scale, offset = _scaling(everyone, dtype)
    nodata_source, nodata = next(((who, said.nodata) for who, said in everyone if said.nodata is not None), _NOBODY)
    return BandRadiometry(scale, offset, nodata, source, nodata_source, _masks(nodata, mask, dtype))


def _masks(nodata: float | None, mask: MaskName | None, dtype: str) -> str:
    """Return what `BandRadiometry.mask` says. NaN as nodata is one of the numbers that are not finite."""
    number = "nodata" if nodata is not None and not math.isnan(nodata) else None
    return ", ".join(filter(None, (number, mask, "not finite" if dtype.startswith("float") else None))) or "none"


def _scaling(words: Sequence[tuple[Source, Said]], dtype: str) -> tuple[Source, float, float]:
    for source, said in words:
        if said.scale is not None:
            _check(source, said.scale, said.offset, dtype)
            return source, said.scale, said.offset
    raise InvalidInput(
        f"Nothing says what the scene's {dtype} numbers mean: the file has no scale tags and the model "
        'has no default for this type. Give `radiometry`, e.g. {"scale": 0.0001, "offset": 0}.'
    )


def _check(source: Source, scale: float, offset: float, dtype: str) -> None:
    for name, value in (("scale", scale), ("offset", offset)):
        if not math.isfinite(value) or (name == "scale" and value == 0):
            raise InvalidInput(
                f"The {_WHOSE.get(source, source)} {name} is {value:g}, so the scene's numbers mean nothing. Give "
                '`radiometry` in the request, e.g. {"scale": 0.0001, "offset": 0}: it is used instead.'
            )
    if source == "sidecar" and dtype.startswith("float"):
        raise InvalidInput(
            f"The sidecar says what its product's whole numbers mean, but the scene holds {dtype}: it was scaled "
            'before. Leave the sidecar out, or give `radiometry`, e.g. {"scale": 1} for reflectance.'
        )


def _shared(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else list(values)


def _is_nan(value: float | None) -> bool:
    return value is not None and math.isnan(value)
