"""A killed job continues from its checkpoints and ends with the same bytes."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from penstock.models import Model
from penstock.processors.base import Output
from penstock.processors.geo.regression import RasterRegression
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.geo.tiling.strips import found_strips, is_whole, strip_name
from tests.support.geo.scenes import Files, Folder, answers, by_value, make_model, pattern, write_scene

SHAPE = (211, 199)
TIME = "2020-01-27T10:00:00Z"
EVERYTHING = ("classes", "probability", "probability_float32", "confidence", "polygons", "preview", "stats", "item")


class Killed(Exception):
    """A simulated power failure."""


class Mortal(Folder):
    """A sink whose process dies after a number of checkpoints."""

    def __init__(self, folder: Path, lives: int) -> None:
        super().__init__(folder)
        self.lives = lives

    def checkpoint(self, name: str, path: Path) -> None:
        if not self.lives:
            raise Killed
        super().checkpoint(name, path)
        self.lives -= 1


def blur(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return probabilities of five classes that depend on neighbours and on the position within the tile."""
    _, height, width = pixels.shape
    ramp = np.linspace(0.1, 1, height)[:, None] + np.linspace(0, 1, width)
    logits = np.stack([np.roll(pixels[0], i, axis=i % 2) % (7 + i) * ramp for i in range(5)])
    powers = np.exp(logits - logits.max(axis=0))
    return (powers / powers.sum(axis=0)).astype(np.float32)


def holed() -> npt.NDArray[np.uint8]:
    """Return a scene in which whole strips and whole tiles are empty."""
    height, width = SHAPE
    scene = np.kron(pattern(53, 50), np.ones((4, 4), np.uint8))[:, :height, :width]  # patches: few polygons
    scene[:, 60:140, :] = 0
    scene[:, :, 90:110] = 0
    scene[:, 70:76, 20:30] = 9
    return scene


HALO = {"halo_px": 8, "stride_px": 4, "tile_px": 32}
HANN = {"overlap": "hann", "halo_px": 0, "tile_px": 48}
MODELS = {
    "halo": make_model(**HALO),
    "halo in panels": make_model(**HALO, strip_bytes=9000),
    "hann": make_model(**HANN),
    "hann in panels": make_model(**HANN, strip_bytes=300_000),
    "hann with much overlap": make_model(**HANN, overlap_px=36),
}


class Job:
    """A job of several attempts."""

    def __init__(self, scene: Path | None, folder: Path, model: Model, **request: Any) -> None:
        """`scene` is None if the request names its files itself."""
        self.folder = folder
        self.processor: Any = RasterSegmentation(model)
        self.request = self.processor.request(**({} if scene is None else {"scene": str(scene)}), **request)
        self.saved: dict[str, Path] = {}
        self.attempts = 0
        self.sent: list[int] = []
        self.announced: list[tuple[int | None, int]] = []

    def attempt(self, lives: int = 10**9) -> Folder:
        """Run the job until it has saved a number of further checkpoints."""
        self.attempts += 1
        prepared = self.processor.pre_process(self.request, Files(self.saved))
        self.announced.append((prepared.count, prepared.done))
        self.sent.append(0)
        sink = Mortal(self.folder / str(self.attempts), lives)

        def network(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            self.sent[-1] += 1
            return blur(pixels)

        try:
            name = "values" if isinstance(self.processor, RasterRegression) else "probability"
            outputs = (Output({name: next(iter(o.data.values()))}) for o in answers(prepared.prompts, network, batch=3))
            self.processor.post_process(outputs, prepared.context, sink)
        finally:
            self.keep(sink)
        return sink

    def keep(self, sink: Folder) -> None:
        for number, (name, data) in enumerate(sink.saved.items()):
            self.saved[name] = self.folder / f"saved-{self.attempts}-{number}"
            self.saved[name].write_bytes(data)


def contents(sink: Folder) -> dict[str, bytes]:
    """Return the artifacts' bytes without the times in FlatGeobuf files and items."""
    return {name: re.sub(rb"\d{4}-\d\d-\d\dT[\d:.]+Z?", b"now", p.read_bytes()) for name, p in sink.artifacts.items()}


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_scene(tmp_path / "scene.tif", holed(), nodata=0)


@pytest.mark.breadth(but=("hann-outputs2",))
@pytest.mark.parametrize(
    ("name", "outputs"),
    [(name, EVERYTHING if name == "halo" else ("classes", "probability_float32", "stats")) for name in MODELS],
)
def test_killed_at_every_strip_it_ends_with_the_same_bytes(
    name: str, outputs: tuple[str, ...], scene: Path, tmp_path: Path
) -> None:
    whole = Job(scene, tmp_path / "whole", MODELS[name], outputs=outputs, datetime=TIME)
    expected = contents(whole.attempt())
    strips = len(whole.saved)
    assert strips > 2
    for lives in range(strips):
        job = Job(scene, tmp_path / f"{lives}", MODELS[name], outputs=outputs, datetime=TIME)
        with pytest.raises(Killed):
            job.attempt(lives)
        assert len(job.saved) == lives
        assert contents(job.attempt()) == expected
        assert job.saved.keys() == whole.saved.keys()
    again = job.attempt()
    assert contents(again) == expected
    assert again.saved == {}


def test_what_saved_strips_know_of_fill_is_in_the_result(tmp_path: Path) -> None:
    numbers = np.repeat(pattern(*SHAPE), 2, axis=0)
    numbers[:, :30, :96] = 255  # in the first strip only
    path = write_scene(tmp_path / "s.tif", numbers, descriptions="ab")
    grey = [{"name": name, "mean": 0.0, "std": 1.0} for name in "ab"]
    job = Job(path, tmp_path / "job", make_model(**HALO, bands=grey), outputs=("classes", "stats"))
    with pytest.raises(Killed):
        job.attempt(2)
    notes = json.loads(job.attempt().artifacts["stats.json"].read_text())["notes"]
    assert job.announced[-1][1] > 0
    assert ["number 255" in note for note in notes] == [True]


@pytest.mark.breadth(but=("halo",))
@pytest.mark.parametrize("name", ["halo", "halo in panels"])
def test_no_tile_of_a_kept_strip_is_inferred_again(name: str, scene: Path, tmp_path: Path) -> None:
    whole = Job(scene, tmp_path / "whole", MODELS[name])
    whole.attempt()
    job = Job(scene, tmp_path / "job", MODELS[name])
    while job.attempts < len(whole.saved) - 1:
        with pytest.raises(Killed):
            job.attempt(1)
    job.attempt()
    # Every attempt except the last had started the next strip when it died; batches of three run ahead.
    strip = max(len(s.tiles) for s in plan(job).strips())
    assert sum(job.sent) <= sum(whole.sent) + (job.attempts - 1) * (strip + 3)
    assert job.sent[-1] <= 2 * strip


def plan(job: Job) -> Any:
    return job.processor.pre_process(job.request, Files()).context.plan


def test_progress_begins_where_the_last_attempt_was(scene: Path, tmp_path: Path) -> None:
    job = Job(scene, tmp_path / "job", MODELS["halo"])
    with pytest.raises(Killed):
        job.attempt(2)
    job.attempt()
    (all_tiles, nothing), (left, done) = job.announced
    assert nothing == 0
    assert all_tiles is not None
    assert left is not None
    assert left + done == all_tiles
    assert done == 2 * 6


def test_nothing_is_saved_of_a_scene_of_one_strip_and_nothing_of_the_last_strip(tmp_path: Path) -> None:
    small = write_scene(tmp_path / "small.tif", pattern(32, 199))
    assert Job(small, tmp_path / "one", MODELS["halo"]).attempt().saved == {}
    two = write_scene(tmp_path / "two.tif", pattern(64, 199))
    [name] = Job(two, tmp_path / "two", MODELS["halo"]).attempt().saved
    assert name.endswith("/strip-00000")


def test_a_draft_is_left_neither_by_success_nor_in_the_store(scene: Path, tmp_path: Path) -> None:
    sink = Job(scene, tmp_path / "job", MODELS["halo"]).attempt()
    assert {path.name for path in (tmp_path / "job" / "1").iterdir()} == set(sink.artifacts)


def cut_off(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    return data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]


def edited(data: bytes) -> bytes:
    """Change a pixel together with the checksum of gzip."""
    header, _, pieces = data.partition(b"\n")
    text = bytearray(gzip.decompress(pieces))
    text[text.index(b"\n", text.index(b"rasters")) + 5] ^= 1
    return header + b"\n" + gzip.compress(bytes(text))


def longer(data: bytes) -> bytes:
    return data + b"more"


def unfinished(data: bytes) -> bytes:
    """Return what was written before the checksum."""
    header, _, pieces = data.partition(b"\n")
    return json.dumps({**json.loads(header), "sha256": "0" * 64}).encode() + b"\n" + pieces


def bomb(_: bytes) -> bytes:
    line = json.dumps({"box": [0, 0, 2**30, 2**30], "rasters": {"classes": ["|u1", 1]}})
    return gzip.compress(line.encode() + b"\n")


def of_another_plan(data: bytes) -> bytes:
    return data.replace(b'"plan": "', b'"plan": "0', 1)


SPOILS: list[Callable[[bytes], bytes]] = [
    cut_off, flip, edited, longer, unfinished, bomb, of_another_plan, lambda _: b"", lambda _: b"no gzip",
    lambda _: b"null\n", lambda _: b"[]\n", lambda _: b'{"box": 1}\n',
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_damaged_checkpoint_is_made_anew(spoil: Callable[[bytes], bytes], scene: Path, tmp_path: Path) -> None:
    job = Job(scene, tmp_path / "job", MODELS["halo"])
    expected = contents(job.attempt())
    victim = sorted(job.saved)[1]
    path = job.saved[victim]
    path.write_bytes(spoil(path.read_bytes()))
    assert contents(job.attempt()) == expected
    assert job.announced[-1][0] == 3 * 6  # of the damaged strip, the last strip, and the strip without data
    assert is_whole(job.saved[victim], victim[:32], 1)


def test_strips_that_changed_places_are_made_anew(scene: Path, tmp_path: Path) -> None:
    job = Job(scene, tmp_path / "job", MODELS["halo"])
    expected = contents(job.attempt())
    first, second = sorted(job.saved)[:2]
    job.saved[first], job.saved[second] = job.saved[second], job.saved[first]
    assert contents(job.attempt()) == expected
    assert job.announced[-1][0] == 4 * 6


def variants(scene: Path, tmp_path: Path) -> Mapping[str, Job]:
    model = MODELS["halo"]
    other = write_scene(tmp_path / "other.tif", holed(), nodata=0)
    changes: dict[str, dict[str, Any]] = {
        "revision": {"revision": "2"},
        "dtype": {"dtype": "bfloat16"},
        "weights": {"sha256": "0" * 64},
        "tiles": {"options": {**model.options, "tile_px": 64}},
        "classes": {"options": {**model.options, "plausible_mean": 1000.0}},
    }
    jobs = {name: Job(scene, tmp_path / name, model.model_copy(update=change)) for name, change in changes.items()}
    return jobs | {
        "etag": Job(other, tmp_path / "etag", model),
        "outputs": Job(scene, tmp_path / "outputs", model, outputs=("classes",)),
        "radiometry": Job(scene, tmp_path / "radiometry", model, radiometry={"scale": 2}),
        "nodata": Job(scene, tmp_path / "nodata", model, radiometry={"nodata": 3}),
    }


def test_strips_of_another_plan_are_not_taken(scene: Path, tmp_path: Path) -> None:
    job = Job(scene, tmp_path / "job", MODELS["halo"])
    job.attempt()
    digests = {name[:32] for name in job.saved}
    for name, variant in variants(scene, tmp_path).items():
        variant.saved = dict(job.saved)
        variant.attempt()
        assert variant.announced[-1][1] == 0, name
        digests |= {saved[:32] for saved in variant.saved}
    assert len(digests) == 1 + len(variants(scene, tmp_path))


def test_where_the_weights_lie_and_where_the_job_runs_do_not_matter(scene: Path, tmp_path: Path) -> None:
    job = Job(scene, tmp_path / "job", MODELS["halo"])
    job.attempt()
    moved = Job(scene, tmp_path / "moved", MODELS["halo"].model_copy(update={"source": "/elsewhere", "title": "New"}))
    moved.saved = dict(job.saved)
    moved.attempt()
    assert moved.announced[-1][1] > 0


def test_a_source_without_an_etag_is_known_by_its_bytes(scene: Path, tmp_path: Path) -> None:
    class Anonymous(Files):
        def etag(self, _: str) -> None:  # type: ignore[override]
            return None

    def digest(path: Path) -> str:
        processor = RasterSegmentation(MODELS["halo"])
        return processor.pre_process(processor.request(scene=str(path)), Anonymous()).context.digest

    changed = holed()
    changed[0, 0, 0] += 1
    same = write_scene(tmp_path / "same.tif", holed(), nodata=0)
    other = write_scene(tmp_path / "changed.tif", changed, nodata=0)
    assert digest(scene) == digest(same) != digest(other)


def test_quantities_go_on_where_they_were_too(scene: Path, tmp_path: Path) -> None:
    options = {key: value for key, value in MODELS["hann"].options.items() if key != "classes"}
    quantities = [{"name": f"q{i}", "unit": "m"} for i in range(5)]
    model = MODELS["hann"].model_copy(update={"options": {**options, "quantities": quantities}})

    def job(name: str) -> Job:
        job = Job(scene, tmp_path / name, MODELS["hann"])
        job.processor = RasterRegression(model)
        job.request = job.processor.request(scene=str(scene))
        return job

    expected = contents(job("whole").attempt())
    for lives in range(3):
        resumed = job(str(lives))
        with pytest.raises(Killed):
            resumed.attempt(lives)
        assert contents(resumed.attempt()) == expected


def test_names_that_are_no_strips_are_passed_over(tmp_path: Path) -> None:
    digest = "0" * 32
    names = ("x", f"{digest}/strip-1", f"{digest}/strip-00001x", f"{'1' * 32}/strip-00001")
    files = dict.fromkeys(names, tmp_path)
    assert found_strips(files, digest) == {}
    assert strip_name(digest, 1) == f"{digest}/strip-00001"


def test_a_class_map_shrinks_to_a_few_percent(tmp_path: Path) -> None:
    scene = np.ones((1, 512, 512), np.uint8)
    path = write_scene(tmp_path / "scene.tif", scene)
    processor = RasterSegmentation(make_model(tile_px=256))
    prepared = processor.pre_process(processor.request(scene=str(path), outputs=("classes",)), Files())
    sink = Folder(tmp_path / "out")
    processor.post_process(answers(prepared.prompts, by_value), prepared.context, sink)
    [saved] = sink.saved.values()
    assert len(saved) < 256 * 512 / 50
