"""Providers' masks: masked pixels have no data in the results, and the others are those without a mask."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import ValidationError

from penstock.errors import InvalidInput
from penstock.processors.geo.mask_kinds import MASK_KINDS
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.geo.segmentation import RasterSegmentation
from tests.geo.test_ranges import PartialFiles
from tests.support.geo.metadata import item
from tests.support.geo.scenes import (
    NORTH_UP,
    Files,
    Folder,
    answers,
    by_value,
    make_model,
    pattern,
    read,
    segment,
    write_scene,
)

Numbers = npt.NDArray[Any]
#: Values of SCL, and those that hide the ground by default.
SCL = {
    0: True,
    1: True,
    2: False,
    3: True,
    4: False,
    5: False,
    6: False,
    7: False,
    8: True,
    9: True,
    10: True,
    11: False,
}


def network(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return classes that depend on a pixel's surroundings."""
    padded = np.pad(pixels[0], 3, mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, (7, 7)).sum(axis=(2, 3))
    return by_value(around[None])


def blocks(values: Sequence[int], height: int, width: int, *, seed: int = 1) -> Numbers:
    """Return (1, height, width) random blocks of the values."""
    chosen = np.random.default_rng(seed).choice(values, (height // 5 + 1, width // 7 + 1))
    return np.kron(chosen, np.ones((5, 7)))[None, :height, :width].astype(np.uint8)


def classes(sink: Folder) -> Numbers:
    return read(sink.artifacts["classes.tif"])[0]


def test_masked_pixels_have_no_data_and_all_others_are_unchanged(tmp_path: Path) -> None:
    path, values = write_scene(tmp_path / "scene.tif", pattern(150, 140)), blocks(list(SCL), 150, 140)
    mask = {"media": str(write_scene(tmp_path / "scl.tif", values, nodata=0)), "kind": "scl"}
    model = make_model(tile_px=48, halo_px=16)
    outputs = ("classes", "polygons", "stats", "confidence")
    plain, _ = segment(path, tmp_path / "plain", model=model, network=network, outputs=outputs)
    found, result = segment(path, tmp_path / "masked", model=model, network=network, outputs=outputs, mask=mask)
    hidden = np.isin(values[0], [value for value, masked in SCL.items() if masked])
    np.testing.assert_array_equal(classes(found), np.where(hidden, 255, classes(plain)))
    np.testing.assert_array_equal(read(found.artifacts["confidence.tif"])[0] == 255, hidden)
    assert result.data is not None
    assert result.data["nodata_pixels"] == hidden.sum()
    [masked] = result.data["masked"]
    assert (masked["kind"], masked["pixels"]) == ("scl", hidden.sum())
    names = list(MASK_KINDS["scl"].classes)
    counted = {entry["name"]: entry["pixels"] for entry in masked["classes"]}
    assert counted == {names[value]: (values == value).sum() for value, is_hidden in SCL.items() if is_hidden}
    assert result.data["scene"]["etags"][-1] == "etag of scl.tif"


@pytest.mark.parametrize(
    ("classes_", "hidden"),
    [
        (None, {0b10, 0b1000, 0b11000010, 255}),
        (["snow or ice"], {0b10000, 0b110000, 255}),
        ([], {255}),
    ],
)
def test_each_bit_of_fmask_is_a_class_and_255_is_fill(
    tmp_path: Path, classes_: list[str] | None, hidden: set[int]
) -> None:
    used = [0, 0b1, 0b10, 0b100, 0b1000, 0b10000, 0b100000, 0b110000, 0b11000000, 0b11000010, 255]
    path, values = write_scene(tmp_path / "scene.tif", pattern(60, 77)), blocks(used, 60, 77)
    mask = {"media": str(write_scene(tmp_path / "fmask.tif", values)), "kind": "fmask"}
    mask |= {} if classes_ is None else {"classes": classes_}
    found, _ = segment(path, tmp_path / "out", mask=mask, outputs=("classes",))
    np.testing.assert_array_equal(classes(found) == 255, np.isin(values[0], list(hidden)))


def test_a_coarser_mask_hides_the_pixels_inside_its_own_in_an_area_too(tmp_path: Path) -> None:
    numbers = np.random.default_rng(3).integers(1, 250, (1, 900, 1000), np.uint8)
    layout = {"tiled": True, "blockxsize": 128, "blockysize": 128}
    path = write_scene(tmp_path / "scene.tif", numbers, **layout)
    values = np.random.default_rng(4).choice([4, 9], (1, 450, 500)).astype(np.uint8)
    coarse = NORTH_UP @ rasterio.Affine.scale(2)
    scl = write_scene(tmp_path / "scl.tif", values, transform=coarse, **layout)
    (west, north), (east, south) = NORTH_UP @ (301, 401), NORTH_UP @ (377, 450)
    area = {"bbox": [west, south, east, north], "crs": "EPSG:32633"}
    request = {
        "scene": str(path),
        "mask": {"media": str(scl), "kind": "scl"},
        "outputs": ("classes", "stats"),
        "area": area,
    }
    media = PartialFiles(tmp_path / "sparse")
    processor = RasterSegmentation(make_model(tile_px=64))
    prepared = processor.pre_process(SegmentationRequest.model_validate(request), media)
    result = processor.post_process(
        answers(prepared.prompts, by_value), prepared.context, sink := Folder(tmp_path / "o")
    )
    hidden = (np.kron(values[0], np.ones((2, 2))) == 9)[401:450, 301:377]
    np.testing.assert_array_equal(classes(sink) == 255, hidden)
    assert result.data is not None
    assert result.data["masked"][0]["pixels"] == hidden.sum()
    assert media.filled_bytes < path.stat().st_size / 3


def test_a_stac_items_mask_is_found_by_its_name(tmp_path: Path) -> None:
    values = blocks([4, 9], 40, 50)
    files = {
        "https://example.com/grey.tif": write_scene(tmp_path / "grey.tif", pattern(40, 50)),
        "https://example.com/x/T33_SCL_20m.tif": write_scene(tmp_path / "scl.tif", values),
    }
    document = item({
        "grey": {"href": "https://example.com/grey.tif", "eo:bands": [{"name": "grey"}]},
        "scl": {"href": "https://example.com/x/T33_SCL_20m.tif", "title": "Scene classification map"},
    })  # fmt: skip
    fetched = []

    class Web(Files):
        def path(self, reference: str) -> Path:
            return files[reference]

        def fetch(self, reference: str, *, by_range: bool = False) -> None:  # noqa: ARG002  (the protocol names it)
            fetched.append(reference)

    request = SegmentationRequest.model_validate({"stac": document, "mask": {}, "outputs": ["classes"]})
    processor = RasterSegmentation(make_model())
    prepared = processor.pre_process(request, Web())
    processor.post_process(answers(prepared.prompts, by_value), prepared.context, sink := Folder(tmp_path / "out"))
    np.testing.assert_array_equal(classes(sink) == 255, values[0] == 9)
    assert fetched == list(files)
    del document["assets"]["scl"]
    with pytest.raises(InvalidInput, match="no asset scl or fmask or qa_pixel; it has grey"):
        processor.pre_process(request, Web())


@pytest.mark.parametrize("merge", ["first", "median"])
def test_a_mosaic_prefers_what_no_mask_hides(tmp_path: Path, merge: str) -> None:
    numbers, values = (
        [pattern(60, 70), pattern(60, 70)[:, ::-1].copy()],
        [blocks([4, 9], 60, 70, seed=seed) for seed in (1, 2)],
    )
    numbers[1][:, :10] = 0
    scenes = [
        {
            "scene": str(write_scene(tmp_path / f"{at}.tif", numbers[at], nodata=0)),
            "mask": {"media": str(write_scene(tmp_path / f"{at}-scl.tif", values[at])), "kind": "scl"},
        }
        for at in range(2)
    ]
    found, result = segment(
        None, tmp_path / "out", mosaic={"scenes": scenes, "merge": merge}, outputs=("classes", "stats")
    )
    clear = [(value == 4)[0] & (number[0] > 0) for value, number in zip(values, numbers, strict=True)]
    ids = [number[0] % 5 for number in numbers]
    expected = np.where(clear[0], ids[0], np.where(clear[1], ids[1], 255))
    if merge == "median":
        both = clear[0] & clear[1]
        means = np.rint((numbers[0][0].astype(np.float32) + numbers[1][0]) / 2).astype(int) % 5
        expected = np.where(both, means, expected)
    np.testing.assert_array_equal(classes(found), expected)
    assert result.data is not None
    assert result.data["masked"][0]["pixels"] == (~((values[0] == 4) | (values[1] == 4))).sum()


def test_a_mosaic_of_one_masked_scene_is_that_scene(tmp_path: Path) -> None:
    scene: dict[str, Any] = {
        "scene": str(write_scene(tmp_path / "scene.tif", pattern(90, 70), nodata=9)),
        "mask": {"media": str(write_scene(tmp_path / "scl.tif", blocks([4, 9], 90, 70))), "kind": "scl"},
    }
    model = make_model(tile_px=32, halo_px=16)
    how: dict[str, Any] = {"model": model, "network": network, "outputs": ("classes",)}
    one, _ = segment(Path(scene["scene"]), tmp_path / "one", mask=scene["mask"], **how)
    two, _ = segment(None, tmp_path / "two", mosaic={"scenes": [scene]}, **how)
    np.testing.assert_array_equal(classes(one), classes(two))


def test_a_mask_makes_a_change_unknown(tmp_path: Path) -> None:
    before, after = write_scene(tmp_path / "a.tif", pattern(40, 50)), write_scene(tmp_path / "b.tif", pattern(40, 50))
    values = blocks([0, 0b10], 40, 50)
    masked = {"scene": str(before), "mask": {"media": str(write_scene(tmp_path / "m.tif", values)), "kind": "fmask"}}
    found, result = segment(after, tmp_path / "out", change={"of": ["class 1"], "before": masked}, outputs=("classes",))
    np.testing.assert_array_equal(read(found.artifacts["change.tif"])[0] == 255, values[0] > 0)
    assert result.data is not None
    assert result.data["before"]["masked"][0]["pixels"] == (values > 0).sum()


def test_masks_that_do_not_fit_are_rejected_with_a_reason(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(40, 50))

    def masked(name: str, numbers: Numbers, **mask: Any) -> None:
        profile = mask.pop("profile", {})
        media = str(write_scene(tmp_path / name, numbers, **profile))
        segment(path, tmp_path / f"of-{name}", mask={"media": media, "kind": "scl", **mask})

    good = blocks([4], 40, 50)
    with pytest.raises(InvalidInput, match="has a different extent"):
        masked("small.tif", good[:, :30])
    with pytest.raises(InvalidInput, match="one band of uint8, not 1 of uint16"):
        masked("wide.tif", good.astype(np.uint16))
    with pytest.raises(InvalidInput, match="scl has no class 'cloud'; it has no data"):
        masked("unknown.tif", good, classes=["cloud"])
    with pytest.raises(InvalidInput, match="needs `media` and `kind`, or the scene's STAC item"):
        segment(path, tmp_path / "none", mask={})
    other = str(write_scene(tmp_path / "right.tif", pattern(40, 50)))
    scenes = [{"scene": other, "mask": {"media": str(write_scene(tmp_path / "m.tif", good)), "kind": "scl"}}]
    with pytest.raises(InvalidInput, match="Some scenes of the mosaic have a mask"):
        segment(None, tmp_path / "some", mosaic={"scenes": [*scenes, {"scene": str(path)}]})
    with pytest.raises(ValidationError, match="media requires kind"):
        segment(path, tmp_path / "kindless", mask={"media": other})


def test_the_masks_of_a_mosaic_are_of_one_kind(tmp_path: Path) -> None:
    media = str(write_scene(tmp_path / "scene.tif", pattern(40, 50)))
    mask = str(write_scene(tmp_path / "mask.tif", blocks([4], 40, 50)))
    scenes = [{"scene": media, "mask": {"media": mask, "kind": kind}} for kind in ("scl", "fmask")]
    with pytest.raises(InvalidInput, match=r"The masks of a mosaic must be of one kind\."):
        segment(None, tmp_path / "out", mosaic={"scenes": scenes})


def test_an_area_of_a_masked_mosaic_of_two_resolutions_is_its_result_cut(tmp_path: Path) -> None:
    rng, scenes = np.random.default_rng(8), []
    layout: dict[str, Any] = {"tiled": True, "blockxsize": 128, "blockysize": 128}
    for at in range(2):
        place = NORTH_UP @ rasterio.Affine.translation(600 * at, 0)
        coarse = place @ rasterio.Affine.scale(2)
        red = write_scene(
            tmp_path / f"r{at}.tif", rng.integers(1, 250, (1, 600, 600), np.uint8), transform=place, **layout
        )
        swir = write_scene(
            tmp_path / f"s{at}.tif", rng.integers(1, 250, (1, 300, 300), np.uint8), transform=coarse, **layout
        )
        scl = write_scene(
            tmp_path / f"m{at}.tif", rng.choice([4, 9], (1, 300, 300)).astype(np.uint8), transform=coarse, **layout
        )
        files = [{"media": str(red), "bands": ["red"]}, {"media": str(swir), "bands": ["swir"]}]
        scenes.append({"files": files, "mask": {"media": str(scl), "kind": "scl"}})
    bands = [{"name": name, "mean": 0.0, "std": 1.0} for name in ("swir", "red")]
    processor = RasterSegmentation(make_model(bands=bands, tile_px=64, halo_px=0))
    (west, north), (east, south) = NORTH_UP @ (520, 256), NORTH_UP @ (600, 320)
    request: dict[str, Any] = {"mosaic": {"scenes": scenes}, "outputs": ("classes", "stats")}
    request["area"] = {"bbox": [west, south, east, north], "crs": "EPSG:32633"}
    found = []
    for name, media in (("whole", Files()), ("partial", PartialFiles(tmp_path / "sparse"))):
        prepared = processor.pre_process(SegmentationRequest.model_validate(request), media)
        sink = Folder(tmp_path / name)
        result = processor.post_process(answers(prepared.prompts, by_value), prepared.context, sink)
        assert result.data is not None
        found.append((classes(sink), result.data["masked"]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def refusal(tmp_path: Path, scene: str | None = None, **request: Any) -> InvalidInput:
    path, folder = None if scene is None else Path(scene), tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
    with pytest.raises(InvalidInput) as caught:
        segment(path, folder, outputs=("classes",), **request)
    return caught.value


def masked(tmp_path: Path, values: Numbers, kind: str = "scl", **profile: Any) -> dict[str, Any]:
    return {
        "scene": str(write_scene(tmp_path / "scene.tif", pattern(60, 70))),
        "mask": {"media": str(write_scene(tmp_path / "mask.tif", values, **profile)), "kind": kind},
    }


def test_a_nodata_number_that_the_kind_lacks_is_no_data(tmp_path: Path) -> None:
    values = blocks([4, 255], 60, 70)
    found = []
    for given, profile in ((values, {"nodata": 255}), (np.where(values == 255, np.uint8(0), values), {})):
        wanted = masked(tmp_path, given, **profile)
        folder = tmp_path / f"out-{len(found)}"
        sink, result = segment(Path(wanted["scene"]), folder, outputs=("classes", "stats"), mask=wanted["mask"])
        assert result.data is not None
        found.append((classes(sink), result.data["masked"], result.data["nodata_pixels"]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]
    assert found[0][2] == (values == 255).sum() > 0


def test_a_mask_with_a_value_that_its_kind_lacks_is_refused_at_its_place(tmp_path: Path) -> None:
    wrong = masked(tmp_path, blocks([100, 109], 60, 70))
    error = refusal(tmp_path, **wrong)
    assert error.detail == (
        "The mask has the value 109, but scl has only 0 to 11. Give the mask's `kind`: scl or fmask or qa_pixel."
    )
    assert [issue.pointer for issue in error.errors] == ["/input/mask"]
    error = refusal(tmp_path, mosaic={"scenes": [wrong]})
    assert [issue.pointer for issue in error.errors] == ["/input/mosaic/scenes/0/mask"]
    names = [label["name"] for label in make_model().options["classes"]]
    error = refusal(tmp_path, scene=wrong["scene"], change={"before": wrong, "of": names[:1]})
    assert error.detail.startswith("Before: The mask has the value 109")
    assert [issue.pointer for issue in error.errors] == ["/input/change/before/mask"]


@pytest.mark.parametrize(
    ("size", "profile", "said"),
    [
        ((30, 35), {}, "The mask has a different extent from the scene: 35 x 30 pixels instead of 70 x 60."),
        ((60, 70), {"crs": "EPSG:32634"}, "The mask has EPSG:32634, but the scene has EPSG:32633."),
        (
            (60, 70), {"transform": NORTH_UP @ rasterio.Affine.translation(0.5, 0)},
            "The mask has pixels that do not nest in those of the scene: each covers 1 x 1 of them",
        ),
    ],
)  # fmt: skip
def test_a_mask_on_another_grid_is_refused_at_its_place(
    tmp_path: Path, size: tuple[int, int], profile: dict[str, Any], said: str
) -> None:
    error = refusal(tmp_path, **masked(tmp_path, blocks([4, 9], *size), **profile))
    assert error.detail.startswith(said)
    assert [(issue.pointer, issue.detail) for issue in error.errors] == [("/input/mask", "is on another grid")]


@pytest.mark.parametrize(("clear", "noted"), [(3, True), (4, False)])
def test_a_mask_that_hides_nearly_everything_has_a_note(tmp_path: Path, clear: int, noted: bool) -> None:
    values = np.full((1, 60, 70), 9, np.uint8)
    values[0, :, :clear] = 4
    values[0, :, 66:] = 0  # no data, which counts neither as hidden nor as clear
    request = masked(tmp_path, values)
    _, result = segment(Path(request.pop("scene")), tmp_path / "out", outputs=("classes", "stats"), **request)
    assert result.data is not None
    share = 100 * (66 - clear) / 66
    said = f"The mask (scl) hides {share:.1f} % of the {60 * 66:,} pixels with data."
    assert any(note.startswith(said) for note in result.data["notes"]) == noted
