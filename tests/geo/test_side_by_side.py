"""Tiles that are cut ahead and written behind, by threads of their own, give the same results, and no thread stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InvalidInput
from penstock.processors.base import Output, Prompt
from penstock.processors.geo import mapping
from penstock.processors.geo.scene_writer import Behind
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.geo.write.raster_set import RasterArrays, RasterSet
from tests.geo.test_resume import EVERYTHING, HALO, MODELS, TIME, Job, Killed, contents, holed
from tests.support.geo.scenes import Files, Folder, answers, by_value, make_model, pattern, write_scene

OWN = ("read-ahead", "write-behind")


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(OWN)]


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_scene(tmp_path / "scene.tif", holed(), nodata=0)


@pytest.mark.breadth(but=("halo", "hann in panels"))
@pytest.mark.parametrize("name", MODELS)
def test_results_and_checkpoints_have_the_same_bytes(
    name: str, scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for threads in (False, True):
        monkeypatch.setattr(mapping, "SIDE_BY_SIDE", threads)
        job = Job(scene, tmp_path / str(threads), MODELS[name], outputs=EVERYTHING, datetime=TIME)
        results = contents(job.attempt())
        made.append((results, {name: path.read_bytes() for name, path in job.saved.items()}, job.sent))
        assert own_threads() == []
    assert made[0] == made[1]
    assert len(made[0][1]) > 2


@pytest.mark.parametrize("name", ["halo", "hann in panels"])
def test_a_killed_job_goes_on_with_what_it_saved(
    name: str, scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "SIDE_BY_SIDE", True)
    whole = contents(Job(scene, tmp_path / "whole", MODELS[name], outputs=("classes", "stats")).attempt())
    job = Job(scene, tmp_path / "killed", MODELS[name], outputs=("classes", "stats"))
    with pytest.raises(Killed):
        job.attempt(2)
    assert len(job.saved) == 2
    assert own_threads() == []
    assert contents(job.attempt()) == whole


def prepared(scene: Path, **options: object) -> tuple[RasterSegmentation, Iterator[Prompt], object]:
    processor = RasterSegmentation(make_model(**{**HALO, **options}))
    first = processor.pre_process(processor.request(scene=str(scene), outputs=("classes", "stats")), Files())
    return processor, first.prompts, first.context


def test_a_job_that_is_cancelled_leaves_no_thread(scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "SIDE_BY_SIDE", True)
    processor, prompts, context = prepared(scene)

    def outputs() -> Iterator[Output]:
        yield from islice(answers(prompts, by_value), 5)
        assert any(name.startswith("write-behind") for name in own_threads())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        processor.post_process(outputs(), context, Folder(tmp_path / "out"))  # type: ignore[arg-type]
    prompts.close()  # type: ignore[attr-defined]
    assert own_threads() == []


def test_a_tile_that_cannot_be_cut_fails_after_the_tiles_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "SIDE_BY_SIDE", True)
    numbers = pattern(128, 64).astype(np.int16)
    numbers[:, 96:, 32:] = -9999
    scene = write_scene(tmp_path / "s.tif", numbers)
    _, prompts, _ = prepared(scene)
    drawn = []
    with pytest.raises(InvalidInput, match="-9999"):
        drawn.extend(prompts)
    monkeypatch.setattr(mapping, "SIDE_BY_SIDE", False)
    _, prompts, _ = prepared(scene)
    alone = []
    with pytest.raises(InvalidInput, match="-9999"):
        alone.extend(prompts)
    assert len(drawn) == len(alone) > 2
    assert own_threads() == []


def test_a_file_that_cannot_be_written_fails_the_job(
    scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "SIDE_BY_SIDE", True)
    write: Callable[..., None] = RasterSet.write
    writers: list[str] = []

    def full(rasters: RasterSet, arrays: RasterArrays, box: object) -> None:
        writers.append(threading.current_thread().name)
        if len(writers) == 4:
            raise OSError("no space")
        write(rasters, arrays, box)

    monkeypatch.setattr(RasterSet, "write", full)
    processor, prompts, context = prepared(scene)
    with pytest.raises(OSError, match="no space"):
        processor.post_process(answers(prompts, by_value), context, Folder(tmp_path / "out"))  # type: ignore[arg-type]
    prompts.close()  # type: ignore[attr-defined]
    assert len(writers) == 4  # nothing is written after the error
    assert all(name.startswith("write-behind") for name in writers)
    assert own_threads() == []


def test_a_scene_of_one_tile_and_large_tiles_have_no_further_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "SIDE_BY_SIDE", True)
    scene = write_scene(tmp_path / "s.tif", pattern(64, 200))
    for options, most, expected in (({}, 2**25, 2), ({}, 1000, 1), ({"tile_px": 256}, 2**25, 1)):
        monkeypatch.setattr(mapping, "_AHEAD_BYTES", most)
        _, prompts, _ = prepared(scene, **options)
        next(prompts)
        assert len(own_threads()) == expected  # one reads rows ahead
        prompts.close()  # type: ignore[attr-defined]
    assert own_threads() == []


def test_one_thing_is_done_at_a_time_and_its_error_is_raised_before_the_next() -> None:
    behind, done = Behind(), [0]
    go_on = threading.Event()

    def first() -> None:
        go_on.wait(10)
        done.append(1)

    behind.do(first)
    assert done == [0]
    go_on.set()
    behind.do(lambda: done.append(2))
    behind.wait()
    assert done == [0, 1, 2]

    def fails() -> None:
        raise ValueError("third")

    behind.do(fails)
    with pytest.raises(ValueError, match="third"):
        behind.do(lambda: done.append(4))
    behind.close()
    assert done == [0, 1, 2]
    assert own_threads() == []
