"""Names and wavelengths of bands: of variables, and along a dimension of bands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.processors.geo.read.products.cf_bands import read_bands
from penstock.processors.geo.read.products.variables import Variable, Variables
from tests.geo.test_cf import variable

CUBE = variable("cube/data", np.ones((3, 4, 5)), ("band", "y", "x"))


def bands(*along: Variable, data: Variable = CUBE, dimension: int | None = 0) -> list[tuple[str | None, float | None]]:
    every = Variables({each.path: each for each in (data, *along)})
    return [(band.name, band.wavelength_nm) for band in read_bands(every, data, dimension, None)]


@pytest.mark.parametrize(
    "values",
    [
        np.array(["B02", "B03", "B04"], dtype=object),
        np.array([b"B02", b"B03", b"B04"], dtype=object),
        np.array(["B02", "B03", "B04"]),
        np.array([b"B02", b"B03", b"B04"]),
    ],
    ids=["text", "bytes", "fixed text", "fixed bytes"],
)
@pytest.mark.parametrize("path", ["band", "cube/names"])
def test_texts_along_the_bands_are_their_names(values: Any, path: str) -> None:
    assert bands(variable(path, values, ("band",))) == [("B02", None), ("B03", None), ("B04", None)]


def test_letters_along_a_second_dimension_are_names() -> None:
    letters = np.array([list("B02\0"), list("B03\0"), list("B8A ")], dtype="S1")
    assert [name for name, _ in bands(variable("names", letters, ("band", "letters")))] == ["B02", "B03", "B8A"]


@pytest.mark.parametrize(("units", "factor"), [("nm", 1), ("um", 1e-3), ("micrometers", 1e-3), ("nanometer", 1)])
def test_numbers_of_a_length_along_the_bands_are_wavelengths(units: str, factor: float) -> None:
    found = bands(variable("wavelength", np.array([490, 560, 665]) * factor, ("band",), units=units))
    assert [length for _, length in found] == pytest.approx([490, 560, 665])


def test_numbers_of_another_unit_say_nothing_and_neither_does_another_group() -> None:
    assert bands(variable("width", np.array([1.0, 2, 3]), ("band",), units="px")) == [(None, None)] * 3
    assert bands(variable("other/names", np.array(["a", "b", "c"]), ("band",))) == [(None, None)] * 3


def test_a_variable_is_named_by_itself_and_by_its_wavelength() -> None:
    own = {"long_name": "surface reflectance", "radiation_wavelength": 0.865, "radiation_wavelength_unit": "um"}
    data = variable("B8A", np.ones((4, 5)), ("y", "x"), **own)
    assert bands(data=data, dimension=None) == [("B8A", pytest.approx(865))]
