"""Cells of vectors: the cells that a box of pixels touches, and the valid share of each."""

from __future__ import annotations

import numpy as np

from penstock.processors.geo.tiling.cells import Cells
from penstock.processors.geo.tiling.plan import Box

SCENE = Box(0, 0, 20, 30)


def test_a_box_touches_each_cell_that_has_one_of_its_pixels() -> None:
    assert Cells(8, SCENE).of(Box(7, 8, 9, 16)) == Box(0, 1, 2, 2)
    assert Cells(8, SCENE).box == Box(0, 0, 3, 4)


def test_the_share_of_a_cell_counts_its_pixels_beyond_the_box_as_invalid() -> None:
    shares = Cells(4, Box(0, 0, 6, 8)).shares(Box(0, 0, 6, 8), np.ones((6, 8), bool))
    assert shares.tolist() == [[1.0, 1.0], [0.5, 0.5]]


def test_invalid_pixels_lower_the_share_of_their_cell_alone() -> None:
    valid = np.ones((4, 8), bool)
    valid[0, 5:7] = False
    assert Cells(4, Box(0, 0, 4, 8)).shares(Box(0, 0, 4, 8), valid).tolist() == [[1.0, 0.875]]
