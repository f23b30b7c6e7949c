"""Windows of a variable are those of the array, whatever the order of its dimensions and of its rows."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from rasterio.errors import RasterioIOError

from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.products.variable_raster import Axes, VariablePart
from penstock.processors.geo.read.products.variables import Variables
from tests.geo.test_cf import variable

CUBE = np.arange(3 * 7 * 5).reshape(3, 7, 5).astype(">u2")


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True), (True, True)])
def test_a_window_is_a_part_of_the_array(order: tuple[int, ...], flips: tuple[bool, bool]) -> None:
    stored = CUBE[:, :: -1 if flips[0] else 1, :: -1 if flips[1] else 1].transpose(order)
    every = Variables({"a": variable("a", stored, ("a", "b", "c"))})
    axes = Axes(order.index(1), order.index(2), order.index(0), *flips)
    with VariablePart(lambda _: every, "a", axes, "uint16").open(Path()) as raster:
        found = raster.read([3, 1], window=rasterio.windows.Window(1, 2, 3, 4))
    assert found.dtype == np.dtype("=u2")
    np.testing.assert_array_equal(found, CUBE[[2, 0], 2:6, 1:4])


def test_errors_of_a_library_are_those_of_a_raster() -> None:
    class Damaged:
        def __getitem__(self, key: object) -> object:
            raise OSError("Can't synchronously read data (wrong fletcher32 checksum)")

    made = variable("a", CUBE[0], ("y", "x"))
    broken = type(made)(made.path, made.dimensions, made.shape, made.dtype, made.chunks, {}, Damaged())
    every = Variables({"a": broken})
    raster = VariablePart(lambda _: every, "a", Axes(0, 1, None, False, False), "uint16").open(Path())
    with pytest.raises(RasterioIOError, match=r"^wrong fletcher32 checksum$"):
        raster.read([1], window=rasterio.windows.Window(0, 0, 2, 2))
