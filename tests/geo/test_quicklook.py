"""The quicklook: the scene's colours on the grid of the results, nodata transparent, north up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.write.quicklook import COLOURLESS
from tests.support.geo.scenes import NORTH_UP, make_model, segment, write_scene

BANDS = tuple({"name": name, "mean": 0.0, "std": 1.0} for name in ("blue", "green", "red", "nir"))


def colours(height: int = 60, width: int = 40) -> Any:
    """Return a scene that is red above and blue below, darker to the right, with a corner without data."""
    scene = np.full((4, height, width), 10, np.uint8)
    ramp = np.linspace(250, 100, width).astype(np.uint8)
    scene[2, : height // 2], scene[0, height // 2 :] = ramp, ramp
    scene[:, :5, :5] = 0
    return scene


@pytest.mark.parametrize("flipped", [False, True])
def test_it_shows_the_scene_as_it_lies(flipped: bool, tmp_path: Path) -> None:
    scene, place = colours(), NORTH_UP
    if flipped:
        scene, place = scene[:, ::-1], NORTH_UP @ rasterio.Affine(1, 0, 0, 0, -1, 60)
    path = write_scene(tmp_path / "s.tif", scene, descriptions=[b["name"] for b in BANDS], nodata=0, transform=place)
    sink, _ = segment(path, tmp_path / "out", model=make_model(bands=BANDS, tile_px=16), outputs=("quicklook", "stats"))
    image = np.array(Image.open(sink.artifacts["quicklook.png"]))
    assert image.shape == (60, 40, 4)
    assert (image[..., 3] == np.where((colours() == 0).all(axis=0), 0, 255)).all()
    assert image[10, 10, 0] > 200 > 50 > image[10, 10, 2]
    assert image[50, 10, 2] > 200 > 50 > image[50, 10, 0]
    assert image[10, 10, 0] > image[10, 38, 0]


def test_a_large_scene_and_an_area_are_thinned_and_cut(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", colours(2500, 1300), descriptions=[b["name"] for b in BANDS], nodata=0)
    model = make_model(bands=BANDS, tile_px=512)
    sink, _ = segment(path, tmp_path / "out", model=model, outputs=("quicklook",))
    image = np.array(Image.open(sink.artifacts["quicklook.png"]))
    assert image.shape == (834, 434, 4)
    assert image[416, 5, 0] > 200 > image[417, 5, 0]
    bbox = [*(NORTH_UP @ (100, 1400)), *(NORTH_UP @ (160, 1200))]
    sink, _ = segment(
        path, tmp_path / "cut", model=model, outputs=("quicklook",), area={"bbox": bbox, "crs": "EPSG:32633"}
    )
    cut = np.array(Image.open(sink.artifacts["quicklook.png"]))
    assert cut.shape == (200, 60, 4)
    assert cut[49, 5, 0] > cut[50, 5, 0]


def test_a_scene_without_colours_has_a_note(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", colours()[:1])
    sink, result = segment(path, tmp_path / "out", outputs=("quicklook", "stats"))
    assert "quicklook.png" not in sink.artifacts
    assert result.data is not None
    assert COLOURLESS in result.data["notes"]
