"""The change between two dates: exactly the difference of the two class maps, with its areas and polygons."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from penstock.errors import InvalidInput
from penstock.processors.geo.read.gdal import pyogrio, rasterio
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.geo.write.change_outputs import ABSENT, GAINED, KEPT, LOST, change_of
from penstock.processors.geo.write.stac import multihash
from tests.support.geo.scenes import (
    GREY,
    NORTH_UP,
    Files,
    Folder,
    answers,
    by_value,
    make_model,
    one_hot,
    read,
    segment,
    write_scene,
)

UTM = "EPSG:32633"
IDS = arrays(np.uint8, (4, 5), elements=st.sampled_from([0, 1, 2, 3, 4, 255]))


@given(before=IDS, after=IDS)
def test_each_pixel_is_lost_gained_kept_absent_or_unknown(before: Any, after: Any) -> None:
    found = change_of(before, after, of={1, 2}, ignored={4})
    for was, became, change in zip(before.flat, after.flat, found.flat, strict=True):
        if {was, became} & {4, 255}:
            assert change == 255
        else:
            there = (was in (1, 2), became in (1, 2))
            assert (
                change
                == {(False, False): ABSENT, (True, False): LOST, (False, True): GAINED, (True, True): KEPT}[there]
            )


def two_scenes(folder: Path, **profile: Any) -> tuple[Path, Path]:
    """Write two scenes of random blobs, each with nodata of its own."""
    rng = np.random.default_rng(3)
    paths = []
    for name in ("before.tif", "after.tif"):
        blobs = np.kron(rng.integers(1, 11, (30, 25)), np.ones((7, 8), int))[:200, :190].astype(np.uint8)
        blobs[rng.random(blobs.shape) < 0.02] = 0
        paths.append(write_scene(folder / name, blobs[None], nodata=0, **profile))
    return paths[0], paths[1]


CHANGE = {"of": ["class 1", "class 3"], "ignore": ["class 4"]}
ALL = ("classes", "polygons", "preview", "stats", "item")


def with_sides(stem: str) -> set[str]:
    """Return the names of a class map and its two files of names and colours."""
    return {f"{stem}.tif", f"{stem}.tif.aux.xml", f"{stem}.qml"}


POLYGONS = {f"{stem}.{end}" for stem in ("polygons", "change") for end in ("fgb", "geojson")}


@pytest.mark.parametrize(
    ("outputs", "files"),
    [
        (("stats",), {"stats.json"}),
        (("change",), with_sides("change")),
        (("classes",), with_sides("change") | with_sides("classes") | with_sides("before-classes")),
        (("preview",), {"preview.png", "change.png"}),
        (("polygons",), POLYGONS),
    ],
)
def test_a_change_has_the_files_of_the_outputs_and_no_others(
    outputs: tuple[str, ...], files: set[str], tmp_path: Path
) -> None:
    before, after = two_scenes(tmp_path)
    sink, result = segment(
        after, tmp_path / "out", outputs=outputs, change={**CHANGE, "before": {"scene": str(before)}}
    )
    assert set(sink.artifacts) == files
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    assert result.data is not None
    assert result.data["change"]["transitions"]


@pytest.mark.parametrize("asked", [True, False])
def test_the_stac_item_lists_every_file_of_both_dates(asked: bool, tmp_path: Path) -> None:
    before, after = two_scenes(tmp_path)
    change = {**CHANGE, "before": {"scene": str(before), "datetime": "2017-01-18T07:00:00Z"}}
    outputs = ALL if asked else ("change", "item")
    sink, _ = segment(after, tmp_path / "out", outputs=outputs, change=change, datetime="2020-01-27T07:00:00Z")
    item = json.loads(sink.artifacts["item.json"].read_text())
    assert set(item["assets"]) == set(sink.artifacts) - {"item.json", "model.json"}
    assert (with_sides("before-classes") <= set(item["assets"])) is asked
    for name, asset in item["assets"].items():
        assert asset["file:checksum"] == multihash(hashlib.sha256(sink.artifacts[name].read_bytes()).hexdigest())
    if asked:
        earlier = item["assets"]["before-classes.tif"]
        assert (earlier["title"], earlier["roles"]) == ("before: classes", ["data"])
        assert earlier["classification:classes"] == item["assets"]["classes.tif"]["classification:classes"]


def test_classes_that_nobody_decided_on_are_named_in_a_note(tmp_path: Path) -> None:
    before, after = two_scenes(tmp_path)
    maps, notes = [], []
    for at, ignore in enumerate(({}, {"ignore": []}, {"ignore": ["class 4"]})):
        change = {"of": ["class 1", "class 3"], "name": "water", "before": {"scene": str(before)}, **ignore}
        sink, result = segment(after, tmp_path / str(at), outputs=("change",), change=change)
        assert result.data is not None
        maps.append(read(sink.artifacts["change.tif"]))
        notes.append(result.data["notes"])
    np.testing.assert_array_equal(maps[0], maps[1])
    assert notes[1:] == [[], []]
    (note,) = notes[0]
    assert note.startswith("The change counts these classes as 'no water': class 0, class 2, class 4.")
    assert "`change.ignore`" in note


def test_a_change_without_georeferencing_has_notes_on_its_polygons(tmp_path: Path) -> None:
    before, after = two_scenes(tmp_path, crs=None, transform=None)
    change = {**CHANGE, "before": {"scene": str(before)}}
    sink, result = segment(after, tmp_path / "out", outputs=("polygons",), change=change)
    assert result.data is not None
    assert set(sink.artifacts) == set()
    assert result.data["notes"] == [
        f"{stem}.fgb and {stem}.geojson were not created. The scene has no geotransform."
        for stem in ("polygons", "change")
    ]


def test_the_lineage_and_the_layer_speak_of_the_change(tmp_path: Path) -> None:
    before, after = two_scenes(tmp_path)
    area = {"bbox": [*(NORTH_UP @ (50, 150)), *(NORTH_UP @ (140, 60))], "crs": UTM}
    change = {**CHANGE, "before": {"mosaic": {"scenes": [{"scene": str(before)}]}, "datetime": "2017-01-18T07:00:00Z"}}
    outputs, time = ("polygons", "item"), "2020-01-27T07:00:00Z"
    sink, _ = segment(after, tmp_path / "out", outputs=outputs, change=change, area=area, datetime=time)
    said = json.loads(sink.artifacts["item.json"].read_text())["properties"]["processing:lineage"]
    assert said.endswith(
        " applied to 2 files, a mosaic of 1 scene, cut to an area, with the change since an earlier scene"
    )
    layers = {name: pyogrio.list_layers(sink.artifacts[name])[0][0] for name in ("polygons.fgb", "change.fgb")}
    assert layers == {"polygons.fgb": "polygons", "change.fgb": "change"}
    plain, _ = segment(after, tmp_path / "plain", outputs=("item",), datetime=time)
    said = json.loads(plain.artifacts["item.json"].read_text())["properties"]["processing:lineage"]
    assert said.endswith(" applied to 1 file")


def test_the_change_is_the_difference_of_two_separate_runs(tmp_path: Path) -> None:
    before, after = two_scenes(tmp_path)
    model = make_model(tile_px=48, halo_px=8)
    request = {"model": model, "outputs": ALL, "datetime": "2020-01-27T07:00:00Z"}
    first, _ = segment(before, tmp_path / "first", **request)
    second, _ = segment(after, tmp_path / "second", **request)
    change = {**CHANGE, "before": {"scene": str(before), "datetime": "2017-01-18T07:00:00Z"}}
    sink, result = segment(after, tmp_path / "both", change=change, **request)
    was, became = (read(run.artifacts["classes.tif"])[0] for run in (first, second))
    assert sink.artifacts["classes.tif"].read_bytes() == second.artifacts["classes.tif"].read_bytes()
    np.testing.assert_array_equal(read(sink.artifacts["before-classes.tif"])[0], was)
    expected = change_of(was, became, {1, 3}, {4})
    found = read(sink.artifacts["change.tif"])[0]
    np.testing.assert_array_equal(found, expected)
    assert {"change.fgb", "change.geojson", "change.png", "change.tif.aux.xml"} <= sink.artifacts.keys()
    with rasterio.open(sink.artifacts["change.tif"]) as file, rasterio.open(after) as scene:
        assert (file.transform, file.crs, file.nodata) == (scene.transform, scene.crs, 255)
        assert file.colormap(1)[GAINED] == (0x21, 0x66, 0xAC, 255)
        assert file.tags(1)["CLASS_2"] == "class 1 or class 3 gained"
    data = result.data
    assert data is not None
    counts = np.bincount(expected.ravel(), minlength=256)
    assert [label["pixels"] for label in data["change"]["classes"]] == counts[:4].tolist()
    assert data["change"]["nodata_pixels"] == counts[255] > 0
    pairs = {(pair["before"], pair["after"]): pair["pixels"] for pair in data["change"]["transitions"]}
    for (one, other), pixels in pairs.items():
        assert pixels == ((was == int(one[-1])) & (became == int(other[-1]))).sum()
    assert sum(pairs.values()) == ((was != 255) & (became != 255)).sum()
    properties = json.loads(sink.artifacts["item.json"].read_text())["properties"]
    assert (properties["start_datetime"][:4], properties["end_datetime"][:4]) == ("2017", "2020")
    assert len(data["scene"]["etags"]) == 2
    assert data["before"]["bands"] == data["bands"]


def test_the_polygons_are_those_of_the_changed_pixels(tmp_path: Path) -> None:
    before, after = two_scenes(tmp_path)
    change = {**CHANGE, "before": {"scene": str(before)}}
    sink, result = segment(after, tmp_path / "both", outputs=("change", "polygons", "stats"), change=change)
    assert "classes.tif" not in sink.artifacts
    data = result.data
    assert data is not None
    pixels = read(sink.artifacts["change.tif"])[0]
    _, _, shapes, fields = pyogrio.raw.read(sink.artifacts["change.fgb"])
    by_class = dict.fromkeys((LOST, GAINED, KEPT), 0.0)
    for shape, kind in zip(shapely.from_wkb(shapes), fields[0], strict=True):
        by_class[int(kind)] += shape.area / 900
    assert by_class == {kind: pytest.approx((pixels == kind).sum()) for kind in by_class}
    assert data["change"]["polygons"]["count"] == len(shapes)
    gained = next(label for label in data["change"]["classes"] if label["id"] == GAINED)
    assert gained["area_m2"] == pytest.approx(900 * gained["pixels"], rel=2e-3)


def test_scenes_of_other_extents_have_a_change_within_an_area_of_both(tmp_path: Path) -> None:
    before, after = two_scenes(tmp_path)
    with rasterio.open(before) as file:
        part = file.read(window=((20, 180), (30, 190)))
    moved = NORTH_UP @ rasterio.Affine.translation(30, 20)
    shifted = write_scene(tmp_path / "shifted.tif", part, nodata=0, transform=moved)
    said = r"^The scene of `change.before` has another extent than the scene,.* an `area` inside both.* is (.*})[.]"
    with pytest.raises(InvalidInput, match=said) as caught:
        segment(after, tmp_path / "no", change={**CHANGE, "before": {"scene": str(shifted)}})
    assert [issue.pointer for issue in caught.value.errors] == ["/input/change/before/scene"]
    [line] = re.findall(said, caught.value.detail)
    shared = json.loads("{" + line + "}")["area"]
    assert shared == {"bbox": [*(NORTH_UP @ (30, 180)), *(NORTH_UP @ (190, 20))], "crs": UTM}
    change = {**CHANGE, "before": {"scene": str(shifted)}}
    sink, _ = segment(after, tmp_path / "shared", change=change, area=shared)
    assert read(sink.artifacts["change.tif"]).shape == (1, 160, 160)
    away = write_scene(tmp_path / "away.tif", part, nodata=0, transform=NORTH_UP @ rasterio.Affine.translation(0, 200))
    with pytest.raises(InvalidInput, match=r"^The scene of `change.before` does not overlap the scene[.]"):
        segment(after, tmp_path / "away", change={**CHANGE, "before": {"scene": str(away)}})
    area = {"bbox": [*(NORTH_UP @ (50, 150)), *(NORTH_UP @ (140, 60))], "crs": UTM}
    found = []
    for path in (before, shifted):
        change = {**CHANGE, "before": {"scene": str(path)}}
        sink, _ = segment(after, tmp_path / f"of-{path.stem}", change=change, area=area)
        found.append(read(sink.artifacts["change.tif"]))
    np.testing.assert_array_equal(*found)
    assert found[0].shape == (1, 90, 90)


def by_place_in_blocks(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return classes that depend on the pixel's place in blocks of 16 px of the tile, as in a net of stride 16."""
    rows, columns = np.mgrid[0 : pixels.shape[1], 0 : pixels.shape[2]]
    return one_hot((np.rint(pixels[0]).astype(np.int64) + rows % 16 + 3 * (columns % 16)) % 5)


@pytest.mark.parametrize("overlap", ["halo", "hann"])
@pytest.mark.parametrize("cut_px", [1, 3, 8, 16])
def test_a_scene_has_no_change_since_itself_however_the_earlier_copy_is_cut(
    cut_px: int, overlap: str, tmp_path: Path
) -> None:
    cut: dict[str, Any] = {"overlap": "hann", "overlap_px": 24} if overlap == "hann" else {"halo_px": 16}
    model = make_model(tile_px=48, stride_px=16 if overlap == "halo" else 1, **cut)
    _, after = two_scenes(tmp_path)
    with rasterio.open(after) as file:
        part = file.read()[:, cut_px:-cut_px, cut_px:]
    place = NORTH_UP @ rasterio.Affine.translation(cut_px, cut_px)
    before = write_scene(tmp_path / "cut.tif", part, nodata=0, transform=place)
    area = {"bbox": [*(NORTH_UP @ (50, 150)), *(NORTH_UP @ (140, 60))], "crs": UTM}
    request = {"model": model, "network": by_place_in_blocks, "area": area, "outputs": ("classes", "change", "stats")}
    change = {"of": ["class 1", "class 3"], "before": {"scene": str(before)}}
    sink, result = segment(after, tmp_path / "both", change=change, **request)
    alone, _ = segment(after, tmp_path / "alone", **request | {"outputs": ("classes",)})
    now = read(sink.artifacts["classes.tif"])
    assert sink.artifacts["classes.tif"].read_bytes() == alone.artifacts["classes.tif"].read_bytes()
    np.testing.assert_array_equal(read(sink.artifacts["before-classes.tif"]), now)
    assert set(np.unique(read(sink.artifacts["change.tif"]))) == {ABSENT, KEPT, 255}
    assert result.data is not None
    assert "mosaics" not in result.data["before"]
    with (
        rasterio.open(sink.artifacts["before-classes.tif"]) as was,
        rasterio.open(alone.artifacts["classes.tif"]) as is_,
    ):
        assert (was.transform, was.crs) == (is_.transform, is_.crs)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"of": ["water"]}, "no class 'water'; its classes are class 0, class 1"),
        ({"of": ["class 1"], "ignore": ["Class 1"]}, "name the same class"),
        ({"of": ["class 1"], "datetime": "2021-01-01T00:00:00Z"}, "after the scene of 2020"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    before, after = two_scenes(tmp_path)
    earlier = {"scene": str(before)} | {name: change.pop(name) for name in ("datetime",) if name in change}
    with pytest.raises(InvalidInput, match=said):
        segment(after, tmp_path / "out", change={**change, "before": earlier}, datetime="2020-01-01T00:00:00Z")


def test_errors_name_the_earlier_scene(tmp_path: Path) -> None:
    _, after = two_scenes(tmp_path)
    (tmp_path / "text.tif").write_text("no scene")
    with pytest.raises(Exception, match="Before: The scene is neither a GeoTIFF"):
        segment(after, tmp_path / "out", change={**CHANGE, "before": {"scene": str(tmp_path / "text.tif")}})


@pytest.mark.parametrize("empty", ["before", "after"])
def test_a_date_without_data_changes_nothing(empty: str, tmp_path: Path) -> None:
    paths = dict(zip(("before", "after"), two_scenes(tmp_path), strict=True))
    write_scene(paths[empty], np.zeros((1, 200, 190), np.uint8), nodata=0)
    change = {**CHANGE, "before": {"scene": str(paths["before"])}}
    sink, _ = segment(paths["after"], tmp_path / "out", change=change)
    assert (read(sink.artifacts["change.tif"]) == 255).all()


def test_an_interrupted_change_is_resumed_with_the_same_bytes(tmp_path: Path) -> None:
    before, after = two_scenes(tmp_path)
    processor = RasterSegmentation(make_model(tile_px=48))
    request = processor.request(scene=str(after), outputs=ALL, change={**CHANGE, "before": {"scene": str(before)}})

    def run(files: Files, folder: Path) -> tuple[Folder, int, int | None]:
        prepared, sink = processor.pre_process(request, files), Folder(folder)
        processor.post_process(answers(prepared.prompts, by_value), prepared.context, sink)
        return sink, prepared.done, prepared.count

    whole, done, count = run(Files(), tmp_path / "whole")
    assert (done, count, len(whole.saved)) == (0, 2 * 20, 2 * 4)
    saved = {}
    for name, content in list(whole.saved.items())[2:6]:  # the last two of the earlier run, the first two of the later
        saved[name] = tmp_path / name.replace("/", "-")
        saved[name].write_bytes(content)
    resumed, done, count = run(Files(saved), tmp_path / "resumed")
    assert (done, count) == (16, 24)
    for name in whole.artifacts:
        assert resumed.artifacts[name].read_bytes() == whole.artifacts[name].read_bytes()


def by_neighbours(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return classes by the sum of all bands within 8 pixels, as a network sees the pixels around each one."""
    total = np.rint(pixels.sum(axis=0) * 256).astype(np.int64)
    for axis in (0, 1):
        total = sum((np.roll(total, shift, axis) for shift in range(-8, 9)), np.zeros_like(total))
    return one_hot(total % 5)


def cut_of(path: Path, box: tuple[int, int, int, int], factor: int = 1) -> Path:
    """Write the part of a scene in a box, in pixels of which `factor` a side make one of the file's."""
    top, left, bottom, right = (edge // factor for edge in box)
    with rasterio.open(path) as file:
        part = file.read()[:, top:bottom, left:right]
        place = file.transform @ rasterio.Affine.translation(left, top)
    return write_scene(path.with_name(f"{path.stem}-{top}-{left}.tif"), part, nodata=0, transform=place)


#: The part of each date that its scene has: top, left, bottom, right of 200 rows and 192 columns.
EXTENTS = {
    "the earlier one cut by 1": ((1, 1, 199, 191), None),
    "the earlier one cut by 3 and 2": ((3, 2, 200, 192), None),
    "the earlier one cut by 33 and 17": ((33, 17, 160, 170), None),
    "the earlier one cut above": ((48, 0, 200, 192), None),
    "the later one cut": (None, (33, 17, 160, 170)),
    "both cut": ((32, 0, 160, 170), (0, 18, 180, 192)),
    "both cut at odd pixels": ((33, 0, 161, 171), (0, 17, 180, 192)),
}


CASES = [(name, coarse) for name in EXTENTS for coarse in (False, name in ("the earlier one cut above", "both cut"))]


@pytest.mark.parametrize(("name", "coarse"), dict.fromkeys(CASES))
def test_both_dates_are_seen_with_the_same_edges(name: str, coarse: bool, tmp_path: Path) -> None:
    extents: Any = EXTENTS[name]
    rng = np.random.default_rng(5)
    fine = write_scene(tmp_path / "fine.tif", rng.integers(1, 200, (1, 200, 192)).astype(np.uint8), nodata=0)
    files, bands = [(fine, 1)], [*GREY]
    if coarse:
        wide = NORTH_UP @ rasterio.Affine.scale(2)
        broad = rng.integers(1, 200, (1, 100, 96)).astype(np.uint8)
        files.append((write_scene(tmp_path / "broad.tif", broad, nodata=0, transform=wide), 2))
        bands.append({**GREY[0], "name": "red"})

    def date(extent: tuple[int, int, int, int] | None) -> dict[str, Any]:
        paths = [path if extent is None else cut_of(path, extent, factor) for path, factor in files]
        each = zip(paths, bands, strict=True)
        return {"files": [{"media": str(path), "bands": [band["name"]]} for path, band in each]}

    model = make_model(bands=bands, tile_px=48, halo_px=8)
    (top, left, bottom, right) = (50, 20, 150, 160)
    area = {"bbox": [*(NORTH_UP @ (left, bottom)), *(NORTH_UP @ (right, top))], "crs": UTM}
    change = {"of": ["class 1", "class 3"], "before": date(extents[0])}
    request = {"model": model, "network": by_neighbours, "area": area, "outputs": ("classes", "change", "stats")}
    sink, result = segment(None, tmp_path / "out", change=change, **request, **date(extents[1]))
    now = read(sink.artifacts["classes.tif"])
    np.testing.assert_array_equal(read(sink.artifacts["before-classes.tif"]), now)
    assert set(np.unique(read(sink.artifacts["change.tif"]))) == {ABSENT, KEPT}
    assert result.data is not None
    assert all(pair["before"] == pair["after"] for pair in result.data["change"]["transitions"])
    noted = [note for note in result.data["notes"] if "edge of the other date's scene" in note]
    assert len(noted) == sum(extent is not None for extent in EXTENTS[name])
