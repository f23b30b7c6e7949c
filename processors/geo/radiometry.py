"""What a scene's numbers mean: declared by the request, the file or the model, never guessed from the numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock.errors import InvalidInput
from penstock.processors.geo.options import DefaultRadiometry
from penstock.processors.geo.request import RadiometryRequest

Source = Literal["request", "file", "model default", "none"]


@dataclass(frozen=True, slots=True)
class Declared:
    """What the file itself says of the selected bands, in the model's order."""

    dtype: str
    scales: tuple[float, ...]
    offsets: tuple[float, ...]
    nodata: tuple[float | None, ...]
    #: Whether an alpha or mask band says where there is data.
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Radiometry:
    """How numbers become the model's unit, band by band: `number * scale + offset`; `nodata` is none."""

    scale: tuple[float, ...]
    offset: tuple[float, ...]
    nodata: tuple[float | None, ...]
    source: Source
    nodata_source: Source

    def to_json(self) -> dict[str, Any]:
        """Return what is recorded in the statistics; a value that all bands share is given once."""
        return {
            "scale": _shared(self.scale),
            "offset": _shared(self.offset),
            "source": self.source,
            "nodata": _shared(["NaN" if _is_nan(value) else value for value in self.nodata]),
            "nodata_source": self.nodata_source,
        }


def resolve_radiometry(
    request: RadiometryRequest | None, declared: Declared, defaults: Sequence[DefaultRadiometry]
) -> Radiometry:
    """Return the radiometry to use: the request's, else the file's tags where they say anything, else the model's.

    Scale with offset, and nodata, are looked for separately. Raises `InvalidInput` when nobody says what numbers of
    this data type mean, or the file's tags make the same of all of them.
    """
    bands = len(declared.scales)
    default = next((d for d in defaults if declared.dtype in d.dtypes), None)
    source: Source
    if request is not None and request.scale is not None:
        scale, offset, source = (request.scale,) * bands, (request.offset or 0.0,) * bands, "request"
    elif any(s != 1 for s in declared.scales) or any(o != 0 for o in declared.offsets):
        _check_tags(declared)
        scale, offset, source = declared.scales, declared.offsets, "file"
    elif default is not None:
        scale, offset, source = (default.scale,) * bands, (default.offset,) * bands, "model default"
    else:
        raise InvalidInput(
            f"Nothing says what the scene's {declared.dtype} numbers mean: the file has no scale tags and the model "
            'has no default for this type. Give `radiometry`, e.g. {"scale": 0.0001, "offset": 0}.'
        )
    nodata, nodata_source = _nodata(request, declared, default)
    return Radiometry(scale, offset, nodata, source, nodata_source)


def _check_tags(declared: Declared) -> None:
    tags = {"scale": declared.scales, "offset": declared.offsets}
    for name, values in tags.items():
        for value in values:
            if not math.isfinite(value) or (name == "scale" and value == 0):
                raise InvalidInput(
                    f"The scene's own {name} tag is {value:g}, so its numbers mean nothing. Give `radiometry` in the "
                    'request, e.g. {"scale": 0.0001, "offset": 0}: it is used in place of the tags.'
                )


def _nodata(
    request: RadiometryRequest | None, declared: Declared, default: DefaultRadiometry | None
) -> tuple[tuple[float | None, ...], Source]:
    bands = len(declared.nodata)
    if request is not None and request.nodata is not None:
        return (request.nodata,) * bands, "request"
    if any(value is not None for value in declared.nodata):
        return declared.nodata, "file"
    if default is not None and default.nodata is not None and not declared.masked:
        return (default.nodata,) * bands, "model default"
    return (None,) * bands, "none"


def _shared(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else list(values)


def _is_nan(value: float | None) -> bool:
    return value is not None and math.isnan(value)
