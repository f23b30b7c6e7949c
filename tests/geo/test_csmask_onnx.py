"""The shipped model by ONNX Runtime: the same record, and the same classes as by torch on every pixel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.catalogue.records import read_catalogue
from penstock.local.library import Engine
from penstock.models import Model
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.sample import write_sample
from tests.support.geo.scenes import read

CATALOGUE = Path("package:penstock/catalogue/csmask-onnx.toml")
DATA = Path(__file__).parents[3] / "shared" / "data" / "geo"
#: Probabilities may differ by this much, and classes where two are this close.
CLOSE = 1e-5
#: Share of pixels whose classes may differ where two are close. It was 0 on every scene and machine that was tried.
MOST_CLOSE = 1e-5
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    """Return engines with the model by torch and by ONNX Runtime."""
    with Engine() as torch, Engine(catalogue=[CATALOGUE]) as onnx:
        yield torch, onnx


def test_the_records_differ_in_the_runner_only() -> None:
    torch, onnx = read_catalogue()["csmask"], read_catalogue(CATALOGUE)["csmask"]
    assert (torch.runner, onnx.runner) == ("torch", "onnx")
    same = {"runner": "", "description": "", "max_batch": 1, "options": {}}
    assert torch.model_copy(update=same) == onnx.model_copy(update=same)
    assert onnx.description == torch.description.replace("unchanged.", "unchanged, by ONNX Runtime.")
    assert _without(torch, "network") == _without(onnx, "onnx")


def _without(model: Model, name: str) -> dict[str, Any]:
    return {key: value for key, value in model.options.items() if key != name}


def compared(engines: tuple[Engine, Engine], folder: Path, scene: Path, **request: Any) -> tuple[int, int]:
    """Return the number of valid pixels, and of those whose classes differ; check the probabilities."""
    made = []
    for name, engine in zip(("torch", "onnx"), engines, strict=True):
        out = folder / name
        engine.run("csmask", scene=str(scene), outputs=["classes", "probability_float32"], out=out, **request)
        made.append((read(out / "classes.tif")[0], read(out / "probability_float32.tif")))
    (classes, theirs), (others, ours) = made
    known = classes != 255
    assert (known == (others != 255)).all()
    assert np.abs(theirs - ours)[:, known].max() < CLOSE
    ordered = np.sort(theirs[:, known], axis=0)
    assert ((classes == others)[known] | (ordered[-1] - ordered[-2] < CLOSE)).all()
    return int(known.sum()), int((classes != others).sum())


@pytest.mark.parametrize("size_px", [256, pytest.param(1024, marks=pytest.mark.breadth)])
def test_the_synthetic_scene_has_the_same_classes(
    size_px: int, engines: tuple[Engine, Engine], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    write_sample(tmp_path / "scene.tif", size_px=size_px)
    pixels, differing = compared(engines, tmp_path, tmp_path / "scene.tif")
    record_property("figures", f"csmask, {size_px} px: {differing} of {pixels} classes differ between torch and ONNX")
    assert differing <= MOST_CLOSE * pixels


@pytest.mark.breadth
@pytest.mark.parametrize("number", [0, 1])
def test_pixels_beyond_the_halo_of_an_area_change_no_bit(
    number: int, engines: tuple[Engine, Engine], tmp_path: Path
) -> None:
    write_sample(tmp_path / "scene.tif", size_px=700)
    request: dict[str, Any] = {"scene": str(tmp_path / "scene.tif"), "outputs": ["probability_float32"]}
    with rasterio.open(tmp_path / "scene.tif") as scene:
        (west, north), (east, south) = scene.transform @ (301, 277), scene.transform @ (388, 402)
        area = {"bbox": [west, south, east, north], "crs": str(scene.crs)}
    engines[number].run("csmask", **request, out=tmp_path / "whole")
    engines[number].run("csmask", **request, area=area, out=tmp_path / "part")
    whole, part = (read(tmp_path / name / "probability_float32.tif") for name in ("whole", "part"))
    np.testing.assert_array_equal(part, whole[:, 277:402, 301:388])


@pytest.mark.breadth
@pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data beside the checkout, ../shared/data")
@pytest.mark.parametrize(
    ("name", "request_fields"),
    [
        ("s2_l2a_aquileia_20190416_6b", {}),
        ("l8_betsiboka_20170118_6b", {}),
        ("l8_betsiboka_20200127_6b", {}),
        ("hls_tx_10b_float32", {"bands": [2, 3, 4, 5, 6, 7], "radiometry": {"scale": 1e-4}}),
        ("l7_olinda_6b_uint8", {"radiometry": {"scale": 0.004}}),
    ],
)
def test_real_scenes_have_the_same_classes(
    name: str,
    request_fields: dict[str, Any],
    engines: tuple[Engine, Engine],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    pixels, differing = compared(engines, tmp_path, DATA / f"{name}.tif", **request_fields)
    record_property("figures", f"csmask, {name}: {differing} of {pixels} classes differ between torch and ONNX")
    assert differing <= MOST_CLOSE * pixels
