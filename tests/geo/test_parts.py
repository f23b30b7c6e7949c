"""Several workers compute the strips of a scene; one joins them to the same bytes as one worker alone makes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.processors.base import Output, PartProcessor, Result, finding_name
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.regression import RasterRegression
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.geo.tiling.strips import strip_name
from tests.geo.test_ranges import HEAD_BYTES, PartialFiles, write
from tests.geo.test_resume import MODELS, TIME, Job, Killed, Mortal, blur, contents, holed, plan
from tests.support.geo.scenes import NORTH_UP, Files, answers, make_model, pattern, write_scene


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_scene(tmp_path / "scene.tif", holed(), nodata=0)


def run_part(job: Job, part: Sequence[int], lives: int = 10**9, media: Files | None = None) -> Any:
    """Compute a part of a job's strips, and keep what it saves; return what it prepared."""
    job.attempts += 1
    prepared = job.processor.pre_process_part(job.request, media or Files(job.saved), part[0], part[-1])
    name = "values" if isinstance(job.processor, RasterRegression) else "probability"
    outputs = (Output({name: next(iter(o.data.values()))}) for o in answers(prepared.prompts, blur, batch=3))
    sink = Mortal(job.folder / f"part-{job.attempts}", lives)
    try:
        assert job.processor.post_process(outputs, prepared.context, sink) == Result()
    finally:
        job.keep(sink)
    assert sink.artifacts == {}
    return prepared


def parts_of(job: Job, count: int) -> list[range]:
    """Return the strips of a job in ranges of about the same length."""
    strips = [number for number, _, _ in job.processor.pre_process(job.request, Files()).division.units]
    edges = [round(n * len(strips) / count) for n in range(count + 1)]
    return [range(strips[start], strips[end - 1] + 1) for start, end in pairwise(edges)]


@pytest.mark.breadth(but=("halo", "hann in panels"))
@pytest.mark.parametrize("name", MODELS)
def test_a_scene_in_parts_has_the_same_bytes(name: str, scene: Path, tmp_path: Path) -> None:
    wanted = ("classes", "probability_float32", "stats")
    whole = Job(scene, tmp_path / "whole", MODELS[name], outputs=wanted, datetime=TIME)
    expected = contents(whole.attempt())
    for count in (2, 3):
        job = Job(scene, tmp_path / str(count), MODELS[name], outputs=wanted, datetime=TIME)
        for part in reversed(parts_of(job, count)):
            run_part(job, part)
        assert {saved[33:] for saved in job.saved} == {strip_name("", at)[1:] for at in plan(job).wanted_strips}
        assert contents(job.attempt()) == expected
        assert (job.sent[-1], job.announced[-1][0]) == (0, 0)


@pytest.mark.parametrize("name", ["halo", "hann"])
def test_a_lost_part_is_computed_by_the_one_that_joins(name: str, scene: Path, tmp_path: Path) -> None:
    whole = Job(scene, tmp_path / "whole", MODELS[name])
    expected = contents(whole.attempt())
    job = Job(scene, tmp_path / "job", MODELS[name])
    first, _, third = parts_of(job, 3)
    run_part(job, first)
    with pytest.raises(Killed):
        run_part(job, third, lives=1)
    assert len(job.saved) == len(first) + 1
    assert contents(job.attempt()) == expected
    assert 0 < job.sent[-1] < sum(whole.sent)


def test_a_part_that_begins_again_saves_only_what_is_missing(scene: Path, tmp_path: Path) -> None:
    job = Job(scene, tmp_path / "job", MODELS["halo"])
    part = plan(job).wanted_strips
    with pytest.raises(Killed):
        run_part(job, part, lives=2)
    before = set(job.saved)
    prepared = run_part(job, part)
    assert prepared.done == 2 * 6
    assert len(set(job.saved) - before) == len(part) - 2


def test_the_division_names_the_tiles_that_are_not_saved(scene: Path, tmp_path: Path) -> None:
    job = Job(scene, tmp_path / "job", MODELS["halo"])
    prepared = job.processor.pre_process(job.request, Files())
    assert prepared.division.digest == prepared.context.digest
    assert sum(tiles for _, tiles, _ in prepared.division.units) == prepared.count
    run_part(job, range(1, 3))
    after = job.processor.pre_process(job.request, Files(job.saved)).division
    assert after.units == tuple(
        (number, tiles, 0 if number in (1, 2) else tiles) for number, tiles, _ in prepared.division.units
    )
    part = job.processor.pre_process_part(job.request, Files(), 1, 2).division
    assert part.digest == prepared.division.digest


@pytest.mark.breadth(but=("cut0",))
@pytest.mark.parametrize("cut", [{"halo_px": 8, "stride_px": 8, "tile_px": 96}, {"overlap": "hann", "tile_px": 128}])
def test_parts_fetch_their_rows_only(cut: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "scene.tif", compress="deflate", width=400)
    model = make_model(**cut, bands=[{"name": "one", "mean": 100.0, "std": 50.0}])
    request: dict[str, Any] = {"bands": [1], "radiometry": {"scale": 1}}
    expected = contents(Job(path, tmp_path / "whole", model, **request).attempt())
    job = Job(path, tmp_path / "job", model, **request)
    for number, part in enumerate(parts_of(job, 3)):
        media = PartialFiles(tmp_path / f"partial-{number}", head_bytes=8192)
        media.saved = dict(job.saved)
        run_part(job, part, media=media)
        assert media.filled_bytes < 0.7 * path.stat().st_size
    assert contents(job.attempt()) == expected
    assert job.sent[-1] == 0


#: Upper left corners of scenes of 330 rows, in blocks of 32 rows.
TOPS_LEFTS = [(0, 0), (40, 70), (280, 20)]


def overlapping(folder: Path, *, masked: bool) -> list[dict[str, Any]]:
    """Write three scenes of noise that overlap, each with holes and maybe a mask."""
    rng, scenes = np.random.default_rng(3), []
    tiles = {"compress": "deflate", "tiled": True, "blockxsize": 64, "blockysize": 32}
    for at, (top, left) in enumerate(TOPS_LEFTS):
        numbers = rng.integers(1, 250, (1, 330, 110)).astype(np.uint8)
        numbers[rng.random(numbers.shape) < 0.1] = 0
        place = NORTH_UP @ rasterio.Affine.translation(left, top)
        path = write_scene(folder / f"{at}.tif", numbers, transform=place, nodata=0, **tiles)
        scenes.append({"files": [{"media": str(path), "bands": ["one"]}]})
        if masked:
            classes = rng.choice([4, 4, 9], numbers.shape).astype(np.uint8)
            mask = write_scene(folder / f"mask-{at}.tif", classes, transform=place, **tiles)
            scenes[-1]["mask"] = {"media": str(mask), "kind": "scl"}  # type: ignore[assignment]
    return scenes


def bytes_of_rows(folder: Path, at: int, start: float, stop: float, *, masked: bool) -> float:
    """Return the bytes of the blocks of a scene and its mask that meet rows of all scenes, and of the headers."""
    top = TOPS_LEFTS[at][0]
    rows = min(330, (stop - top) // 32 * 32 + 32) - max(0, (start - top) // 32 * 32)
    paths = [folder / f"{at}.tif", *([folder / f"mask-{at}.tif"] if masked else [])]
    return sum(2048 + 1.02 * path.stat().st_size * max(0, rows) / 330 for path in paths)


GRIDS: dict[str, dict[str, Any]] = {"own": {}, "stated": {"grid": {"crs": "EPSG:32633", "resolution": 45}}}
CUTS: dict[str, dict[str, Any]] = {
    "halo": {"halo_px": 8, "stride_px": 8, "tile_px": 96}, "hann": {"overlap": "hann", "tile_px": 64},
}  # fmt: skip


@pytest.mark.breadth(but=("own-True-halo-first", "own-False-hann-median", "stated-False-halo-first"))
@pytest.mark.parametrize("merge", ["first", "median"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("grid", "masked"), [("own", False), ("own", True), ("stated", False)])
def test_a_mosaic_in_parts_has_the_same_bytes_and_parts_fetch_their_rows_only(
    merge: str, cut: str, grid: str, masked: bool, tmp_path: Path
) -> None:
    scenes = overlapping(tmp_path, masked=masked)
    model = make_model(**CUTS[cut], bands=[{"name": "one", "mean": 100.0, "std": 50.0}])
    request: dict[str, Any] = {
        "mosaic": {"scenes": scenes, "merge": merge} | GRIDS[grid],
        "radiometry": {"scale": 1},
        "outputs": ("classes", "probability_float32", "stats"),
    }
    expected = contents(Job(None, tmp_path / "whole", model, **request).attempt())
    job = Job(None, tmp_path / "job", model, **request)
    for number, part in enumerate(parts_of(job, 3)):
        media = PartialFiles(tmp_path / f"partial-{number}", head_bytes=2048)
        media.saved = dict(job.saved)
        filled = run_part(job, part, media=media).context.inputs.filled
        start, stop = (filled.top, filled.bottom) if grid == "own" else (filled.top * 1.5 - 2, filled.bottom * 1.5 + 2)
        assert stop - start < 0.7 * 610
        most = [bytes_of_rows(tmp_path, at, start, stop, masked=masked) for at in range(len(TOPS_LEFTS))]
        assert 0 < media.filled_bytes <= sum(most)
    assert contents(job.attempt()) == expected
    assert job.sent[-1] == 0


CHECKED = [{"name": "one", "mean": 0.1, "std": 0.05}]


def checked(**cut: Any) -> Any:
    """Return a model of reflectances: the radiometry of its scenes is checked."""
    return make_model(**CUTS["halo"], reflectance=1.0, bands=CHECKED, **cut)


def joining(job: Job, media: Files) -> tuple[Any, dict[str, bytes]]:
    """Join the parts of a job with these media; return what was prepared, and the results."""
    prepared = job.processor.pre_process(job.request, media)
    outputs = (Output({"probability": next(iter(o.data.values()))}) for o in answers(prepared.prompts, blur))
    sink = Mortal(job.folder / "joined", 10**9)
    job.processor.post_process(outputs, prepared.context, sink)
    return prepared, contents(sink)


def keep_finding(job: Job, digest: str, text: str) -> None:
    """Save what the first attempt found, as the worker does."""
    job.saved[finding_name(digest)] = path = job.folder / f"finding-{digest}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def shared(
    path: Path | None, folder: Path, model: Any, *, lost: int = 0, **request: Any
) -> tuple[Job, dict[str, bytes]]:
    """Return a job whose parts have ended, but for the last `lost` strips, and the results of the whole."""
    expected = contents(Job(path, folder / "whole", model, **request).attempt())
    job = Job(path, folder / "job", model, **request)
    division = job.processor.pre_process(job.request, Files()).division
    for digest, text in division.findings.items():
        keep_finding(job, digest, text)
    for part in parts_of(job, 3):
        run_part(job, part)
    for index in plan(job).wanted_strips[len(plan(job).wanted_strips) - lost :]:
        del job.saved[strip_name(division.digest, index)]
    return job, expected


@pytest.mark.breadth(but=("2",))
@pytest.mark.parametrize("lost", [0, 2])
def test_the_attempt_that_joins_fetches_only_what_is_missing(lost: int, tmp_path: Path) -> None:
    path = write(tmp_path / "scene.tif", compress="deflate", width=400)
    request: dict[str, Any] = {"bands": [1], "radiometry": {"scale": 0.002}, "outputs": ("classes", "stats")}
    job, expected = shared(path, tmp_path, checked(), lost=lost, **request)
    media = PartialFiles(tmp_path / "partial")
    media.saved = dict(job.saved)
    _, found = joining(job, media)
    assert found == expected
    assert media.filled_bytes <= HEAD_BYTES if lost == 0 else media.filled_bytes < 0.5 * path.stat().st_size


UNDECIDED: dict[str, dict[str, Any]] = {
    "blocks": {"compress": "deflate"},
    "strips": {"tiled": False, "blockysize": 7, "compress": "deflate"},
    "planes": {"count": 3, "interleave": "band"},
    "a mask": {"mask": True, "compress": "deflate"},
}


@pytest.mark.breadth(but=("strips", "a mask"))
@pytest.mark.parametrize("layout", UNDECIDED)
def test_an_attempt_that_may_share_its_scene_fetches_first_what_its_check_reads(layout: str, tmp_path: Path) -> None:
    path = write(tmp_path / "scene.tif", width=400, **UNDECIDED[layout])
    request: dict[str, Any] = {"bands": [1], "radiometry": {"scale": 0.002}, "outputs": ("classes", "stats")}
    whole = Job(path, tmp_path / "whole", checked(), **request)
    expected, known = contents(whole.attempt()), whole.processor.pre_process(whole.request, Files())
    media = PartialFiles(tmp_path / "partial", undecided=True)
    job = Job(path, tmp_path / "job", checked(), **request)
    prepared = job.processor.pre_process(job.request, media)
    assert (prepared.context.doubts, prepared.division) == (known.context.doubts, known.division)
    assert known.context.doubts
    first_bytes = media.filled_bytes
    media.complete()
    outputs = (Output({"probability": next(iter(o.data.values()))}) for o in answers(prepared.prompts, blur))
    sink = Mortal(job.folder / "made", 10**9)
    job.processor.post_process(outputs, prepared.context, sink)
    assert contents(sink) == expected
    assert first_bytes < 0.8 * media.filled_bytes


def test_a_mosaic_that_may_be_shared_is_checked_as_a_whole_one(tmp_path: Path) -> None:
    request = {"mosaic": {"scenes": overlapping(tmp_path, masked=True), "merge": "first"}}
    request |= {"radiometry": {"scale": 0.002}, "outputs": ("classes", "stats")}
    job = Job(None, tmp_path / "job", checked(), **request)
    known = job.processor.pre_process(job.request, Files())
    media = PartialFiles(tmp_path / "partial", head_bytes=2048, undecided=True)
    prepared = job.processor.pre_process(job.request, media)
    assert (prepared.context.doubts, prepared.division) == (known.context.doubts, known.division)
    assert known.context.doubts


def test_notes_of_the_first_attempt_are_those_of_the_result(tmp_path: Path) -> None:
    path = write(tmp_path / "scene.tif", compress="deflate", width=400)
    job, expected = shared(path, tmp_path, checked(), bands=[1], radiometry={"scale": 0.002}, outputs=("stats",))
    first = job.processor.pre_process(job.request, Files()).context
    assert first.doubts
    found, results = joining(job, Files(job.saved))
    assert found.context.doubts == first.doubts
    assert results == expected


@pytest.mark.breadth(every=2)
@pytest.mark.parametrize(
    "finding", [None, "", "[]", '{"file": "notes on a scene", "plan": "other", "doubts": []}', "[" * 70_000]
)
def test_without_the_notes_of_this_plan_the_radiometry_is_checked_again(finding: str | None, tmp_path: Path) -> None:
    path = write(tmp_path / "scene.tif", compress="deflate", height=400, width=500)
    job, expected = shared(path, tmp_path, checked(), bands=[1], radiometry={"scale": 0.002}, outputs=("stats",))
    digest = plan_digest(job)
    if finding is None:
        del job.saved[finding_name(digest)]
    else:
        keep_finding(job, digest, finding)
    media = PartialFiles(tmp_path / "partial")
    media.saved = dict(job.saved)
    found, results = joining(job, media)
    assert results == expected
    assert found.context.doubts
    assert media.filled_bytes > 0.9 * path.stat().st_size


def plan_digest(job: Job) -> str:
    return str(job.processor.pre_process(job.request, Files()).context.digest)


@pytest.mark.breadth(but=("first",))
@pytest.mark.parametrize("merge", ["first", "median"])
def test_the_masks_that_are_counted_are_fetched_where_parts_are_joined(merge: str, tmp_path: Path) -> None:
    scenes = overlapping(tmp_path, masked=True)
    request = {"mosaic": {"scenes": scenes, "merge": merge}, "radiometry": {"scale": 0.002}}
    job, expected = shared(None, tmp_path, checked(), outputs=("classes", "stats"), **request)
    media = PartialFiles(tmp_path / "partial", head_bytes=2048)
    media.saved = dict(job.saved)
    _, found = joining(job, media)
    masks, files = (sum(p.stat().st_size for p in tmp_path.glob(name)) for name in ("mask-*.tif", "?.tif"))
    assert found == expected
    assert masks * 0.9 < media.filled_bytes < masks + 0.2 * files


def test_the_quicklook_is_made_where_parts_are_joined(tmp_path: Path) -> None:
    path = write(tmp_path / "scene.tif", count=3, compress="deflate", height=400, width=500)
    bands = [{"name": name, "mean": 0.1, "std": 0.05} for name in ("red", "green", "blue")]
    model = make_model(**CUTS["halo"], reflectance=1.0, bands=bands)
    request: dict[str, Any] = {"bands": [1, 2, 3], "radiometry": {"scale": 0.002}, "outputs": ("classes", "quicklook")}
    job, expected = shared(path, tmp_path, model, **request)
    media = PartialFiles(tmp_path / "partial")
    media.saved = dict(job.saved)
    _, found = joining(job, media)
    assert found == expected
    assert "quicklook.png" in found


def two_dates(folder: Path, **profile: Any) -> tuple[Path, dict[str, Any]]:
    """Write scenes of two dates; return the later one, and the request of the change."""
    folder.mkdir()
    earlier = write_scene(folder / "earlier.tif", holed()[:, :, ::-1], nodata=0, **profile)
    later = write_scene(folder / "later.tif", holed(), nodata=0, **profile)
    return later, {"change": {"of": ["class 1", "class 3"], "before": {"scene": str(earlier)}}}


@pytest.mark.breadth(but=("halo-2",))
@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("name", MODELS)
def test_a_change_in_parts_has_the_same_bytes(name: str, count: int, tmp_path: Path) -> None:
    later, change = two_dates(tmp_path / "scenes")
    wanted = ("classes", "change", "polygons", "preview", "stats")
    whole = Job(later, tmp_path / "whole", MODELS[name], outputs=wanted, **change)
    expected = contents(whole.attempt())
    assert {"change.tif", "before-classes.tif", "change.fgb"} <= expected.keys()
    job = Job(later, tmp_path / "job", MODELS[name], outputs=wanted, **change)
    parts = parts_of(job, count)
    for part in reversed(parts):
        assert run_part(job, part).count < whole.announced[0][0]  # type: ignore[operator]
    contexts = both_contexts(job)
    assert job.saved.keys() == {strip_name(date.digest, at) for date in contexts for at in date.plan.wanted_strips}
    assert len({date.digest for date in contexts}) == 2
    assert contents(job.attempt()) == expected
    assert (job.sent[-1], job.announced[-1]) == (0, (0, whole.announced[0][0]))


def both_contexts(job: Job) -> tuple[Any, Any]:
    """Return the contexts of the earlier and the later scene."""
    after = job.processor.pre_process(job.request, Files()).context
    return after.before, after


@pytest.mark.breadth(but=("halo",))
@pytest.mark.parametrize("name", ["halo", "hann"])
def test_lost_strips_of_both_dates_are_computed_by_the_one_that_joins(name: str, tmp_path: Path) -> None:
    later, change = two_dates(tmp_path / "scenes")
    whole = Job(later, tmp_path / "whole", MODELS[name], **change)
    expected = contents(whole.attempt())
    job = Job(later, tmp_path / "job", MODELS[name], **change)
    first, middle, third = parts_of(job, 3)
    assert first[-1] < both_contexts(job)[0].plan.strip_count - 1 <= middle[-1], "the middle part has both dates"
    run_part(job, third)
    with pytest.raises(Killed):
        run_part(job, middle, lives=1)
    assert len(job.saved) == len(third) + 1
    run_part(job, middle)
    assert len(job.saved) == len(third) + len(middle)
    assert contents(job.attempt()) == expected
    assert 0 < job.sent[-1] < sum(whole.sent)


def test_the_division_of_a_change_names_the_tiles_of_both_dates(tmp_path: Path) -> None:
    later, change = two_dates(tmp_path / "scenes")
    job = Job(later, tmp_path / "job", MODELS["halo"], **change)
    prepared = job.processor.pre_process(job.request, Files())
    before, after = both_contexts(job)
    numbers = [number for number, _, _ in prepared.division.units]
    assert numbers == list(range(len(before.plan.wanted_strips) + len(after.plan.wanted_strips)))
    assert sum(tiles for _, tiles, _ in prepared.division.units) == prepared.count
    assert prepared.division.digest not in (before.digest, after.digest)
    assert prepared.division.findings.keys() == {before.digest, after.digest}
    part = range(len(before.plan.wanted_strips) - 1, len(before.plan.wanted_strips) + 1)
    assert run_part(job, part).division.digest == prepared.division.digest
    left = [tiles - left for _, tiles, left in job.processor.pre_process(job.request, Files(job.saved)).division.units]
    assert [number for number, saved in enumerate(left) if saved] == list(part)


def test_a_change_with_another_date_is_another_division(tmp_path: Path) -> None:
    later, change = two_dates(tmp_path / "scenes")
    other = write_scene(tmp_path / "other.tif", holed(), nodata=0)
    digests = set()
    for before in (change["change"]["before"], {"scene": str(other)}):
        job = Job(later, tmp_path / "job", MODELS["halo"], change={**change["change"], "before": before})
        digests.add(job.processor.pre_process(job.request, Files()).division.digest)
    assert len(digests) == 2


@pytest.mark.breadth
def test_parts_of_a_change_fetch_their_rows_of_their_dates_only(tmp_path: Path) -> None:
    earlier, later = tmp_path / "earlier.tif", tmp_path / "later.tif"
    write(earlier, compress="deflate")
    write(later, compress="deflate", predictor=2)
    request: dict[str, Any] = {
        "bands": [1], "radiometry": {"scale": 0.002}, "outputs": ("classes", "change", "stats"),
        "change": {"of": ["class 1"], "before": {"scene": str(earlier)}},
    }  # fmt: skip
    expected = contents(Job(later, tmp_path / "whole", checked(), **request).attempt())
    job = Job(later, tmp_path / "job", checked(), **request)
    for digest, text in job.processor.pre_process(job.request, Files()).division.findings.items():
        keep_finding(job, digest, text)
    sizes = earlier.stat().st_size + later.stat().st_size
    for number, part in enumerate(parts_of(job, 4)):
        media = PartialFiles(tmp_path / f"partial-{number}")
        media.saved = dict(job.saved)
        run_part(job, part, media=media)
        assert media.filled_bytes < 0.4 * sizes
    media = PartialFiles(tmp_path / "partial")
    media.saved = dict(job.saved)
    prepared, found = joining(job, media)
    assert found == expected
    assert media.filled_bytes <= 2 * HEAD_BYTES  # neither date's radiometry is checked again
    assert [bool(date.doubts) for date in (prepared.context.before, prepared.context)] == [True, True]


def test_a_scene_of_one_strip_is_not_shared(tmp_path: Path) -> None:
    small = write_scene(tmp_path / "small.tif", pattern(20, 20))
    job = Job(small, tmp_path / "job", MODELS["halo"])
    assert job.processor.pre_process(job.request, Files()).division is None
    change = {"change": {"of": ["class 1"], "before": {"scene": str(small)}}}
    job = Job(small, tmp_path / "change", MODELS["halo"], **change)
    assert job.processor.pre_process(job.request, Files()).division is None


def test_processors_of_scenes_compute_parts() -> None:
    assert issubclass(RasterSegmentation, PartProcessor)
    assert issubclass(RasterRegression, PartProcessor)
