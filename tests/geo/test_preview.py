"""The preview is a small image of the map for every shape of scene."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.processors.geo.read.gdal import rasterio
from tests.support.geo.scenes import NORTH_UP, make_model, segment, write_scene

Affine = rasterio.Affine
BLUE, RED, CLEAR = (0, 0, 255, 255), (255, 0, 0, 255), (0, 0, 0, 0)


def picture(numbers: np.ndarray, folder: Path, **place: Any) -> Image.Image:
    """Return the preview of a scene whose numbers are class ids (0 is nodata)."""
    path = write_scene(folder / "s.tif", numbers, nodata=0, **place)
    sink, _ = segment(path, folder / "out", model=make_model(tile_px=512), outputs=("preview",))
    with Image.open(sink.artifacts["preview.png"]) as image:
        assert image.format == "PNG"
        return image.convert("RGBA")


def test_the_preview_is_at_most_1024_px_in_the_classes_colours_transparent_without_data(tmp_path: Path) -> None:
    numbers = np.full((1, 700, 2100), 6, np.uint8)
    numbers[:, :, 1050:] = 3
    numbers[:, :350, :1050] = 0
    colours = picture(numbers, tmp_path)
    assert colours.size == (1024, 341)
    assert colours.getpixel((900, 100)) == BLUE
    assert colours.getpixel((100, 300)) == RED
    assert colours.getpixel((100, 100))[3] == 0


@pytest.mark.parametrize(
    ("shape", "size"),
    [((1, 1), (1, 1)), ((3, 2), (2, 3)), ((1, 3000), (1024, 1)), ((3000, 1), (1, 1024)), ((1024, 1024), (1024, 1024))],
)
def test_tall_wide_and_tiny_scenes_have_their_shape_and_colour(
    shape: tuple[int, int], size: tuple[int, int], tmp_path: Path
) -> None:
    colours = picture(np.full((1, *shape), 6, np.uint8), tmp_path)
    assert colours.size == size
    assert colours.getcolors() == [(size[0] * size[1], RED)]


@pytest.mark.parametrize(
    ("transform", "corner"),
    [
        (NORTH_UP, (5, 5)),
        (Affine(30, 0, 500_000, 0, 30, 5_000_000), (5, 65)),
        (Affine(-30, 0, 500_000, 0, -30, 5_000_000), (45, 5)),
        (Affine(-30, 0, 500_000, 0, 30, 5_000_000), (45, 65)),
        (Affine(30, 5, 500_000, 5, 30, 5_000_000), (5, 5)),
        (None, (5, 5)),
    ],
    ids=["north up", "south up", "west right", "both", "rotated", "no place"],
)
def test_north_is_up_and_east_is_right(transform: Any, corner: tuple[int, int], tmp_path: Path) -> None:
    numbers = np.full((1, 70, 50), 6, np.uint8)
    numbers[0, :20, :20] = 3
    colours = picture(numbers, tmp_path, transform=transform)
    assert colours.getpixel(corner) == BLUE
    assert sum(count for count, colour in colours.getcolors() if colour == BLUE) == 400


def test_a_scene_without_data_is_a_clear_picture(tmp_path: Path) -> None:
    colours = picture(np.zeros((1, 70, 50), np.uint8), tmp_path)
    assert colours.getcolors() == [(3500, CLEAR)]
