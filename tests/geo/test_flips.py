"""Mirrored copies of a tile turn back to the tile, and leave out what has no rows and columns."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.processors.geo.tiling.flips import FLIPS, mirror, mirrored_inputs

TILE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_the_four_passes_are_the_tile_and_its_three_mirrored_copies() -> None:
    passes = [mirror(TILE, at) for at in range(len(FLIPS))]
    for got, expected in zip(passes, (TILE, TILE[:, :, ::-1], TILE[:, ::-1], TILE[:, ::-1, ::-1]), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("at", range(len(FLIPS)))
def test_mirroring_twice_gives_the_tile_again(at: int) -> None:
    np.testing.assert_array_equal(mirror(mirror(TILE, at), at), TILE)


def test_inputs_with_rows_are_mirrored_in_memory_of_their_own_and_others_stay() -> None:
    valid, place = TILE[0] > 4, np.array([48.0, 11.0], np.float32)
    got = mirrored_inputs({"pixels": TILE, "valid": valid, "place": place}, 3, ("pixels", "valid"))
    np.testing.assert_array_equal(got["pixels"], TILE[:, ::-1, ::-1])
    np.testing.assert_array_equal(got["valid"], valid[::-1, ::-1])
    assert got["place"] is place
    assert got["pixels"].flags.c_contiguous
    assert not np.shares_memory(got["pixels"], TILE)
