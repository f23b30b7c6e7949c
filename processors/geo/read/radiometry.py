"""Radiometry of a scene (scale, offset, nodata): declared by request, metadata, file or model, never guessed. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from penstock.errors import InvalidInput
from penstock.processors.geo.options import DefaultRadiometry
from penstock.processors.geo.read.encodings import request_text
from penstock.processors.geo.scene_request import RadiometryRequest

#: Source of a declaration, in order of precedence.
Source = Literal["request", "sidecar", "stac", "file", "model default", "none"]

#: Kind of validity mask in a file, besides nodata numbers.
MaskName = Literal["internal mask", "alpha", "external mask", "valid range"]

#: Advice for a picture that was stretched for display.
PICTURE: Final = (
    "Reflectance cannot be computed from a picture that was stretched for display. Give the original bands: in QGIS, "
    "export the layer as `Raw data` instead of `Rendered image`; with gdal_translate, leave out -scale and -ot Byte."
)
#: Sources that declare physical values, which for optical scenes are reflectance.
_PHYSICAL: Final = frozenset[Source]({"sidecar", "stac", "file"})

_WHOSE = {"file": "scene's own tag of", "stac": "STAC item's", "sidecar": "sidecar's"}
_UNDECLARED: tuple[Source, None] = ("none", None)


@dataclass(frozen=True, slots=True)
class Declaration:
    """Declared radiometry of one band: value = number * scale + offset. None means undeclared."""

    scale: float | None = None
    #: Used only together with a scale.
    offset: float = 0.0
    nodata: float | None = None


@dataclass(frozen=True, slots=True)
class BandRadiometry:
    """Conversion of one band's numbers to the model's unit, and the sources of the declaration."""

    scale: float
    offset: float
    nodata: float | None
    source: Source
    nodata_source: Source
    #: Everything that marks missing data, separated by commas: `nodata`, the file's mask, `not finite`.
    mask: str = "none"
    #: True if the request asks to use this radiometry for any numbers.
    trusted: bool = False
    #: Scale and offset from numbers to linear power, whose decibels are read in place of the numbers; else None.
    power: tuple[float, float] | None = None

    def in_decibels(self) -> BandRadiometry:
        """Return the radiometry of a band whose values are linear power, for a model of decibels."""
        return replace(self, scale=1.0, offset=0.0, power=(self.scale, self.offset))


@dataclass(frozen=True, slots=True)
class Radiometry:
    """Conversion of numbers to the model's unit, band by band: value = number * scale + offset."""

    bands: tuple[BandRadiometry, ...]

    @property
    def scale(self) -> tuple[float, ...]:
        """Scale of each band."""
        return tuple(band.scale for band in self.bands)

    @property
    def offset(self) -> tuple[float, ...]:
        """Offset of each band, added after scaling."""
        return tuple(band.offset for band in self.bands)

    @property
    def nodata(self) -> tuple[float | None, ...]:
        """Nodata number of each band; NaN is always nodata."""
        return tuple(band.nodata for band in self.bands)

    @property
    def source(self) -> str:
        """Source of the scaling: one word, or several separated by commas if bands differ."""
        return ", ".join(dict.fromkeys(band.source for band in self.bands))

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the statistics; a value that all bands share appears once."""
        return {
            "scale": _shared(self.scale),
            "offset": _shared(self.offset),
            "source": _shared([band.source for band in self.bands]),
            "nodata": _shared([_json_number(value) for value in self.nodata]),
            "nodata_source": _shared([band.nodata_source for band in self.bands]),
            "mask": _shared([band.mask for band in self.bands]),
            **({"power": [band.power for band in self.bands]} if any(band.power for band in self.bands) else {}),
        }


def eight_bit_advice(unit: float) -> str:
    """Return the advice for scenes of 8-bit numbers, for a model that has the number `unit` for reflectance 1."""
    return (
        f"8-bit files are usually pictures. {PICTURE} For Landsat 4 to 7 level 1, give the product's *_MTL.json as "
        f"`sidecar`. Only if the numbers are percent of reflectance, give {request_text(0.01 * unit, 0)}; only if "
        f"they are reflectance x 255, give {request_text(unit / 255, 0)}."
    )


def from_request(request: RadiometryRequest) -> Declaration:
    """Return the request's declaration, which applies to every band."""
    return Declaration(request.scale, request.offset or 0.0, request.nodata)


def from_tags(
    scales: Sequence[float], offsets: Sequence[float], nodata: Sequence[float | None], *, physical: bool = False
) -> tuple[Declaration, ...]:
    """Return the declarations in a file's tags for the used bands.

    Scale 1 and offset 0 everywhere declare nothing, unless the file declares its numbers as `physical` ones.
    """
    identity = not physical and all(scale == 1 for scale in scales) and all(offset == 0 for offset in offsets)
    bands = zip(scales, offsets, nodata, strict=True)
    return tuple(Declaration(None if identity else scale, offset, empty) for scale, offset, empty in bands)


def resolve_radiometry(
    declarations: Sequence[tuple[Source, Declaration]],
    dtype: str,
    defaults: Sequence[DefaultRadiometry],
    *,
    mask: MaskName | None = None,
    unit: float = 1.0,
) -> BandRadiometry:
    """Return the radiometry of a band: the first declaration wins, the model's default for the data type is last.

    Scaling (scale with offset) and nodata are resolved separately. The default nodata is not used for a band with a
    `mask`. Metadata and tags declare reflectance, of which the model has the number `unit` for 1: their scale and
    offset are multiplied by it. The request and the model's default are in the model's unit already. Raises
    `InvalidInput` if the scaling is undeclared or not usable.
    """
    default = next((d for d in defaults if dtype in d.dtypes), None)
    model = Declaration(default.scale, default.offset, None if mask else default.nodata) if default else Declaration()
    candidates: list[tuple[Source, Declaration]] = [*declarations, ("model default", model)]
    source, scale, offset = _scaling(candidates, dtype, unit)
    with_nodata = ((who, each.nodata) for who, each in candidates if each.nodata is not None)
    nodata_source, nodata = next(with_nodata, _UNDECLARED)
    return BandRadiometry(scale, offset, nodata, source, nodata_source, _masks(nodata, mask, dtype))


def _masks(nodata: float | None, mask: MaskName | None, dtype: str) -> str:
    """Return the text of `BandRadiometry.mask`. NaN as nodata counts as `not finite`."""
    number = "nodata" if nodata is not None and not math.isnan(nodata) else None
    return ", ".join(filter(None, (number, mask, "not finite" if dtype.startswith("float") else None))) or "none"


def _scaling(
    declarations: Sequence[tuple[Source, Declaration]], dtype: str, unit: float
) -> tuple[Source, float, float]:
    for source, declared in declarations:
        if declared.scale is not None:
            _check(source, declared.scale, declared.offset, dtype, unit)
            factor = unit if source in _PHYSICAL else 1.0
            return source, declared.scale * factor, declared.offset * factor
    advice = (
        eight_bit_advice(unit)
        if dtype in ("uint8", "int8")
        else f"Give {request_text(unit, 0)} for reflectance from 0 to 1, {request_text(1e-4 * unit, 0)} for "
        "reflectance x 10000."
    )
    raise InvalidInput(
        f"The radiometry of the scene's {dtype} numbers is unknown: the file has no scale tags and the model "
        f"has no default for this type. {advice}"
    )


def _check(source: Source, scale: float, offset: float, dtype: str, unit: float) -> None:
    for name, value in (("scale", scale), ("offset", offset)):
        if not math.isfinite(value) or (name == "scale" and value == 0):
            raise InvalidInput(
                f"The {_WHOSE.get(source, source)} {name} is {value:g}, which is not usable. Override it with "
                f"`radiometry` in the request, e.g. {request_text(1e-4 * unit, 0)}."
            )
    if source == "sidecar" and dtype.startswith("float"):
        raise InvalidInput(
            f"The sidecar declares the scaling of integers, but the scene is {dtype} and was already scaled. Remove "
            f"the sidecar, or give `radiometry`, e.g. {request_text(unit, 0)} for reflectance."
        )


def _shared(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else list(values)


def _json_number(value: float | None) -> float | str | None:
    """Return a number as JSON has it: NaN and the infinities, which JSON lacks, as text."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
