"""Names and wavelengths of the bands of a variable, by its attributes and by the variables along its bands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy.typing as npt

from penstock.processors.geo.read.band_identity import SceneBand
from penstock.processors.geo.read.band_names import wavelength_nm
from penstock.processors.geo.read.products.variables import Variable, Variables
from penstock.processors.geo.read.sensors import Sensor

#: Attributes with texts that say what a band is, and with its wavelength.
_TEXTS: Final = ("long_name", "standard_name", "common_name")
_WAVELENGTHS: Final = ("radiation_wavelength", "wavelength", "central_wavelength")
#: Units of wavelengths, without a plural s.
_LENGTHS: Final = ("nm", "um", "µm", "micrometer", "micrometre", "nanometer", "nanometre", "micron")


def read_bands(
    variables: Variables, variable: Variable, dimension: int | None, sensor: Sensor | None
) -> tuple[SceneBand, ...]:
    """Return the bands of a variable: one, or those along a dimension."""
    if dimension is None:
        texts = tuple(filter(None, map(variable.text, _TEXTS)))
        length = next(filter(None, (_wavelength(variable, name) for name in _WAVELENGTHS)), None)
        return (SceneBand(1, variable.name, texts=texts, wavelength_nm=length, sensor=sensor),)
    size = variable.shape[dimension]
    names, lengths = list[str | None]([None] * size), list[float | None]([None] * size)
    for each in _along(variables, variable, variable.dimensions[dimension], size):
        if each.dtype.kind in "iuf":
            lengths = _lengths(each) or lengths
        elif len(texts_of := _labels(each)) == size:
            names = [text or None for text in texts_of]
    bands = zip(range(1, size + 1), names, lengths, strict=True)
    return tuple(SceneBand(at, name, wavelength_nm=length, sensor=sensor) for at, name, length in bands)


def _wavelength(variable: Variable, name: str) -> float | None:
    numbers = variable.numbers(name)
    unit = variable.text(f"{name}_unit") or variable.text(f"{name}_units") or variable.text("wavelength_unit")
    return wavelength_nm(f"{numbers[0]:g}", unit) if len(numbers) == 1 else None


def _along(variables: Variables, variable: Variable, name: str, size: int) -> Iterator[Variable]:
    """Yield the variables along a dimension of bands, in the variable's group and in those around it."""
    for each in variables.each.values():
        near = not each.group or f"{variable.group}/".startswith(f"{each.group}/")
        letters = len(each.shape) == 2 and each.dtype.kind == "S" and each.dtype.itemsize == 1
        along = each.dimensions[:1] == (name,) and each.shape[:1] == (size,)
        if name and near and along and (len(each.shape) == 1 or letters):
            yield each


def _lengths(variable: Variable) -> list[float | None]:
    """Return wavelengths in nm; empty for numbers of another unit."""
    unit = variable.text("units").lower().removesuffix("s")
    if unit not in _LENGTHS:
        return []
    return [wavelength_nm(f"{float(value):g}", unit) for value in variable.read().reshape(-1)]


def _labels(variable: Variable) -> list[str]:
    """Return a variable's texts. Characters along a second dimension are one text."""
    values: npt.NDArray[Any] = variable.read()
    if values.ndim == 2:
        return [b"".join(row.tolist()).decode("utf-8", "replace").strip("\0 ") for row in values]
    return [(v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v)).strip("\0 ") for v in values.tolist()]
