"""A scene of several files gives the same result as one file with all bands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from penstock.errors import InputError, InvalidInput, MediaTooLarge, MediaUnreadable, MissingBands
from penstock.models import Limits
from penstock.processors.geo.options import Band, DefaultRadiometry
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.inputs import Inputs, read_inputs
from penstock.processors.geo.read.scene_rows import open_rows
from penstock.processors.geo.request import SceneRequest
from penstock.processors.geo.tiling.plan import Box
from tests.support.geo.metadata import item, sentinel2
from tests.support.geo.scenes import Files, make_model, one_hot, read, segment, write_scene

NEEDED = [
    Band(name="red", synonyms=("B04",), mean=0, std=1),
    Band(name="nir", synonyms=("B8A", "B08"), mean=0, std=1),
    Band(name="swir16", synonyms=("B11",), mean=0, std=1),
]
DEFAULTS = [DefaultRadiometry(dtypes=("uint16", "int16"), scale=1e-4), DefaultRadiometry(dtypes=("float32",))]
TEN = rasterio.Affine(10, 0, 300_000, 0, -10, 5_000_040)


def numbers(seed: int, height: int = 96, width: int = 72) -> npt.NDArray[np.uint16]:
    return np.random.default_rng(seed).integers(1, 9999, (1, height, width)).astype(np.uint16)


def write(path: Path, values: npt.NDArray[Any], *, px: int = 1, **profile: Any) -> str:
    return str(write_scene(path, values, transform=TEN @ rasterio.Affine.scale(px), **profile))


def inputs(request: dict[str, Any], needed: Sequence[Band] = NEEDED, **options: Any) -> Inputs:
    return read_inputs(SceneRequest.model_validate(request), Files(), needed, **{"defaults": DEFAULTS, **options})


def pixels(found: Inputs) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the network's input in the model's unit, and the validity mask."""
    scene = found.scene
    with open_rows(found) as rows:
        chunks = list(rows.read(Box(0, 0, scene.height, scene.width)))
    held = np.concatenate([some for _, some, _ in chunks], axis=1).astype(np.float64)
    scale, offset = (np.array(values)[:, None, None] for values in (found.radiometry.scale, found.radiometry.offset))
    return held * scale + offset, np.concatenate([known for _, _, known in chunks])


def test_one_file_per_band_in_any_order_equals_one_file_with_all(tmp_path: Path) -> None:
    bands = [numbers(seed) for seed in range(3)]
    bands[1][0, 10:20, 5:9] = 0
    stack = write(tmp_path / "stack.tif", np.concatenate(bands), descriptions=["red", "nir", "swir16"], nodata=0)
    files = [
        {"media": write(tmp_path / f"{name}.tif", values, nodata=0), "bands": [name]}
        for name, values in zip(("B04", "B08", "B11"), bands, strict=True)
    ]
    for given in (files, files[::-1]):
        found = inputs({"files": given})
        for ours, theirs in zip(pixels(found), pixels(inputs({"scene": stack})), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        order = [1, 2, 3] if given is files else [3, 2, 1]
        assert [band["file"] for band in found.bands_json()] == order
        assert [file.etag for file in found.files] == [f"etag of {Path(one['media']).name}" for one in given]


def test_unnamed_files_are_taken_in_the_models_order(tmp_path: Path) -> None:
    bands = [numbers(seed) for seed in range(3)]
    files = [{"media": write(tmp_path / f"{i}.tif", values)} for i, values in enumerate(bands)]
    values, _ = pixels(inputs({"files": files}))
    np.testing.assert_allclose(values, np.concatenate(bands) * 1e-4)
    chosen, _ = pixels(inputs({"files": files, "bands": [3, 1, 2]}))
    np.testing.assert_array_equal(chosen, values[[2, 0, 1]])


def test_a_pixel_needs_data_in_every_file_whatever_its_way_to_say_so(tmp_path: Path) -> None:
    red, nir, swir = numbers(1), numbers(2).astype(np.float32), numbers(3).astype(np.int16)
    red[0, :5], nir[0, :, :7], swir[0, 90:] = 0, np.nan, -9999
    files = [
        {"media": write(tmp_path / "a.tif", red, nodata=0)},
        {"media": write(tmp_path / "b.tif", nir)},
        {"media": write(tmp_path / "c.tif", swir, nodata=-9999)},
    ]
    _, valid = pixels(inputs({"files": files}))
    expected = np.zeros((96, 72), bool)
    expected[5:90, 7:] = True
    np.testing.assert_array_equal(valid, expected)


def test_coarser_bands_come_onto_the_finest_grid_wherever_the_finest_stands(tmp_path: Path) -> None:
    red, nir, swir = numbers(1), numbers(2, 48, 36), numbers(3, 16, 12)
    nir[0, 3, 4] = 0
    files = [
        {"media": write(tmp_path / "B8A.tif", nir, px=2, nodata=0), "bands": ["B8A"]},
        {"media": write(tmp_path / "B11.tif", swir, px=6), "bands": ["B11"]},
        {"media": write(tmp_path / "B04.tif", red), "bands": ["B04"]},
    ]
    found = inputs({"files": files})
    assert (found.scene.height, found.scene.width, found.scene.transform) == (96, 72, TEN)
    assert [(factor.rows, factor.columns) for factor in found.factors] == [(1, 1), (2, 2), (6, 6)]
    assert found.pixel_bytes == 13  # three floats and the validity flag
    values, valid = pixels(found)
    np.testing.assert_allclose(values[0], red[0] * 1e-4)
    np.testing.assert_allclose(values[1, 40:42, 40:42], nir_at(nir, 20, 20), rtol=1e-6)
    np.testing.assert_array_equal(np.argwhere(~valid), [(6, 8), (6, 9), (7, 8), (7, 9)])
    np.testing.assert_allclose(values[2].mean(), swir.mean() * 1e-4, rtol=0.1)


def nir_at(nir: npt.NDArray[Any], row: int, column: int) -> npt.NDArray[np.float64]:
    """Return the four fine pixels in a coarse one: weights 9/16, 3/16 for direct, 1/16 for diagonal neighbours."""
    n = nir[0].astype(float) * 1e-4
    return np.array(
        [
            [
                9 / 16 * n[row, column]
                + 3 / 16 * (n[row + down, column] + n[row, column + across])
                + 1 / 16 * n[row + down, column + across]
                for across in (-1, 1)
            ]
            for down in (-1, 1)
        ]
    )


def test_only_files_that_are_used_make_the_grid(tmp_path: Path) -> None:
    fine = {"media": write(tmp_path / "B01.tif", numbers(9)), "bands": ["visual"]}
    coarse = [
        {"media": write(tmp_path / f"{n}.tif", numbers(i, 48, 36), px=2), "bands": [n]}
        for i, n in enumerate(("red", "nir", "swir16"))
    ]
    found = inputs({"files": [fine, *coarse]})
    assert (found.scene.height, found.scene.width) == (48, 36)
    assert found.pixel_bytes == 7


def test_a_sidecar_explains_each_band_and_its_files_equal_their_harmonised_twins(tmp_path: Path) -> None:
    offsets = {**dict.fromkeys(range(13), -1000), 11: -500}
    (tmp_path / "MTD_MSIL2A.xml").write_text(sentinel2(offsets=offsets))
    old, new = [], []
    for i, (name, offset) in enumerate((("B04", 1000), ("B08", 1000), ("B11", 500))):
        harmonised = numbers(i)
        harmonised[0, i : i + 3, :4] = 0
        shifted = np.where(harmonised == 0, 0, harmonised + offset).astype(np.uint16)
        old.append({"media": write(tmp_path / f"old{name}.tif", harmonised, nodata=0), "bands": [name]})
        new.append({"media": write(tmp_path / f"new{name}.tif", shifted), "bands": [name]})
    found = inputs({"files": new, "sidecar": str(tmp_path / "MTD_MSIL2A.xml")})
    used = found.radiometry.to_json()
    assert (used["source"], used["nodata"], used["nodata_source"]) == ("sidecar", 0, "sidecar")
    assert used["offset"] == [-0.1, -0.1, -0.05]
    (values, valid), (truth, known) = pixels(found), pixels(inputs({"files": old}))
    np.testing.assert_array_equal(valid, known)
    np.testing.assert_allclose(values[:, valid], truth[:, valid], atol=1e-12)
    assert not valid[:3, :4].any()


def test_the_map_of_a_scene_with_an_offset_is_that_of_its_harmonised_twin(tmp_path: Path) -> None:
    (tmp_path / "m.xml").write_text(sentinel2("1C"))
    harmonised = np.random.default_rng(5).integers(1, 9000, (1, 80, 90)).astype(np.uint16)
    harmonised[0, 20:30] = 0
    shifted = np.where(harmonised == 0, 0, harmonised + 1000).astype(np.uint16)
    model = make_model(default_radiometry=[{"dtypes": ["uint16"], "scale": 1e-4, "nodata": 0}])
    maps = []
    for name, values, more in (("a", harmonised, {}), ("b", shifted, {"sidecar": str(tmp_path / "m.xml")})):
        path = write_scene(tmp_path / f"{name}.tif", values)
        sink, result = segment(
            path, tmp_path / name, model=model, network=lambda p: one_hot((p[0] > 0.31).astype(int)), **more
        )
        maps.append(read(sink.artifacts["classes.tif"]))
    np.testing.assert_array_equal(*maps)
    assert set(np.unique(maps[0])) == {0, 1, 255}
    assert result.data is not None
    assert result.data["radiometry"]["source"] == "sidecar"


def test_a_stac_item_names_bands_and_explains_numbers_file_by_file(tmp_path: Path) -> None:
    said = {
        "s1": {"href": "https://x/a/s1.tif", "bands": [{"name": "B11", "raster:scale": 0.5, "raster:offset": 2}]},
        "s2": {"href": "https://x/a/s2.tif", "eo:bands": [{"name": "x", "common_name": "nir"}, {"name": "B04"}],
               "raster:bands": [{"scale": 0.25, "nodata": 7}, {"scale": 1e-4}]},
    }  # fmt: skip
    (tmp_path / "item.json").write_text(json.dumps(item(said)))
    swir, both = numbers(1), np.concatenate([numbers(2), numbers(3)])
    both[0, 0, 0] = 7
    files = [{"media": write(tmp_path / "s1.tif", swir)}, {"media": write(tmp_path / "s2.tif", both)}]
    found = inputs({"files": files, "stac": str(tmp_path / "item.json")})
    assert [band["index"] for band in found.bands_json()] == [2, 1, 1]
    assert found.radiometry.to_json()["source"] == "stac"
    values, valid = pixels(found)
    np.testing.assert_allclose(values, np.stack([both[1] * 1e-4, both[0] * 0.25, swir[0] * 0.5 + 2]))
    np.testing.assert_array_equal(np.argwhere(~valid), [(0, 0)])


def test_the_request_explains_a_file_before_a_scene_before_documents(tmp_path: Path) -> None:
    (tmp_path / "m.xml").write_text(sentinel2())
    files: list[dict[str, Any]] = [{"media": write(tmp_path / f"{i}.tif", numbers(i))} for i in range(3)]
    files[0]["radiometry"] = {"scale": 3, "offset": 1}
    files[1]["radiometry"] = {"nodata": 5}
    request = {"files": files, "sidecar": str(tmp_path / "m.xml")}
    found = inputs(request).radiometry
    assert (found.scale, found.offset, found.nodata) == ((3, 1e-4, 1e-4), (1, -0.1, -0.1), (0, 5, 0))
    found = inputs({**request, "radiometry": {"scale": 9, "nodata": 8}}).radiometry
    assert (found.scale, found.nodata) == ((3, 9, 9), (8, 5, 8))


def test_dates_are_stacked_in_their_order_each_with_its_own_sidecar(tmp_path: Path) -> None:
    (tmp_path / "old.xml").write_text(sentinel2(baseline="02.14", offsets={}))
    (tmp_path / "new.xml").write_text(sentinel2())
    names = ["red", "nir", "swir16"]
    first = np.concatenate([numbers(i) for i in range(3)])
    second = np.concatenate([numbers(i) for i in range(3, 6)])
    second[0, 9, 9] = 0
    dates = [
        {"scene": write(tmp_path / "1.tif", first, descriptions=names), "sidecar": str(tmp_path / "old.xml")},
        {
            "scene": write(tmp_path / "2.tif", second[::-1], descriptions=names[::-1]),
            "sidecar": str(tmp_path / "new.xml"),
        },
    ]
    found = inputs({"dates": dates}, dates=2)
    assert [band.name for band in found.needed] == names * 2
    assert [(band["index"], band["date"]) for band in found.bands_json()] == [
        (1, 1),
        (2, 1),
        (3, 1),
        (3, 2),
        (2, 2),
        (1, 2),
    ]
    values, valid = pixels(found)
    np.testing.assert_allclose(values, np.concatenate([first * 1e-4, second * 1e-4 - 0.1]))
    np.testing.assert_array_equal(np.argwhere(~valid), [(9, 9)])
    backwards, _ = pixels(inputs({"dates": dates[::-1]}, dates=2))
    np.testing.assert_array_equal(backwards, values[[3, 4, 5, 0, 1, 2]])


def test_a_model_of_several_dates_maps_what_changed(tmp_path: Path) -> None:
    before, after = np.full((1, 70, 80), 5, np.uint8), np.full((1, 70, 80), 5, np.uint8)
    after[0, 30:40, 20:60] = 9
    dates = [{"scene": str(write_scene(tmp_path / f"{i}.tif", v))} for i, v in enumerate((before, after))]
    changed = lambda p: one_hot((p[0] != p[1]).astype(int))  # noqa: E731
    sink, result = segment(None, tmp_path / "out", network=changed, model=make_model(dates=2), dates=dates)
    np.testing.assert_array_equal(read(sink.artifacts["classes.tif"])[0] == 1, after[0] == 9)
    assert result.data is not None
    assert [band["date"] for band in result.data["bands"]] == [1, 2]


def three(tmp_path: Path, **last: Any) -> list[dict[str, Any]]:
    """Return three files, of which the last differs from the others."""
    values = last.pop("values", numbers(3))
    profile = {"transform": TEN, **last}
    good = [{"media": write(tmp_path / f"{name}.tif", numbers(i))} for i, name in ((1, "B04"), (2, "B8A"))]
    return [*good, {"media": str(write_scene(tmp_path / "B11.tif", values, **profile))}]


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        ({"crs": "EPSG:32634"}, r"File 3 \(B11.tif\) has EPSG:32634, but the finest file has EPSG:32633"),
        ({"transform": TEN @ rasterio.Affine.scale(2.5)}, r"^File 3 \(B11.tif\) has pixels that do not nest"),
        ({"values": numbers(3, 90, 72)}, r"File 3 \(B11.tif\) has a different extent"),
        ({"values": numbers(3).astype(np.uint8)}, r"radiometry of the scene's uint8 numbers is unknown"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(last: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        inputs({"files": three(tmp_path, **last)})


def test_errors_name_the_file_or_the_date(tmp_path: Path) -> None:
    files = three(tmp_path)
    Path(files[1]["media"]).write_text("lat,lon")
    with pytest.raises(MediaUnreadable, match=r"^File 2 \(B8A.tif\): The scene is neither"):
        inputs({"files": files})
    good = write(tmp_path / "good.tif", np.concatenate([numbers(i) for i in range(3)]))
    with pytest.raises(MissingBands, match=r"^Date 2: The model needs 3 bands"):
        inputs({"dates": [{"scene": good}, {"scene": files[0]["media"]}]}, dates=2)


def test_a_file_that_is_cut_short_is_named_while_it_is_read(tmp_path: Path) -> None:
    files = three(tmp_path, values=numbers(3, 96, 72), tiled=True, blockxsize=16, blockysize=16, compress="deflate")
    path = Path(files[2]["media"])
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(MediaUnreadable, match=r"^File 3 \(B11.tif\)'s rows \d+ to \d+ cannot be read"):
        pixels(inputs({"files": files}))


def test_every_file_is_held_to_the_limit(tmp_path: Path) -> None:
    with pytest.raises(MediaTooLarge, match=r"^File 1 .* pixels; the model takes 100"):
        inputs({"files": three(tmp_path)}, limits=Limits(max_pixels=100))


@pytest.mark.parametrize(
    ("request_", "error", "sentence"),
    [
        ({"bands": ["a", "b"]}, InvalidInput, r"^File 1 .*: `bands` names 2 bands, but the file has 1"),
        ({"bands": ["nir"]}, InvalidInput, "2 bands named 'nir'"),
    ],
)
def test_names_that_do_not_fit_the_files_are_refused(
    request_: dict[str, Any], error: type[InputError], sentence: str, tmp_path: Path
) -> None:
    files = three(tmp_path)
    files[0] |= request_
    files[1]["bands"] = ["nir"]
    with pytest.raises(error, match=sentence):
        inputs({"files": files})


def test_dates_must_be_as_many_as_the_model_takes(tmp_path: Path) -> None:
    scene = write(tmp_path / "s.tif", np.concatenate([numbers(i) for i in range(3)]))
    with pytest.raises(InvalidInput, match="needs a scene at 3 dates, in `dates`; the request gives 1") as refused:
        inputs({"scene": scene}, dates=3)
    assert [issue.pointer for issue in refused.value.errors] == ["/input/dates"]
    with pytest.raises(InvalidInput, match="needs a scene at 3 dates, in `dates`; the request gives 4"):
        inputs({"dates": [{"scene": scene}] * 4}, dates=3)
    with pytest.raises(InvalidInput, match="needs a scene at one date; the request gives 2"):
        inputs({"dates": [{"scene": scene}] * 2})


def test_a_single_date_may_stand_in_dates(tmp_path: Path) -> None:
    scene = write(tmp_path / "s.tif", np.concatenate([numbers(i) for i in range(3)]))
    np.testing.assert_array_equal(pixels(inputs({"dates": [{"scene": scene}]}))[0], pixels(inputs({"scene": scene}))[0])
