"""Image generation with real networks: through IO processes and the engine, the images are the library's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

import penstock
from penstock.errors import InvalidInput
from penstock.jobs import Phase, Progress
from penstock.models import Model
from penstock.processors.image_generation.generation import ImageGeneration
from penstock.processors.testing import check_processor
from penstock.workers.artifacts import Preview
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import Processed, Work
from penstock.workers.warmup import warm
from tests.support.diffusion import a_dreamer, a_model, a_painter

PROCESSOR = "penstock.processors.image_generation.generation:ImageGeneration"
WISH = {"prompt": "a cat and a hat", "negative_prompt": "and", "n": 2, "seed": 3, "steps": 6, "previews": 2}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_painter(tmp_path_factory.mktemp("painter"))


@pytest.fixture(scope="module")
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


@pytest.fixture(scope="module")
def pool() -> Iterator[IOPool]:
    with closing(IOPool(1, ForkOptions(1024 * 2**20, processors={"image-generation": PROCESSOR}))) as pool:
        yield pool


def theirs(source: Path, seed: int) -> Any:
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(source)
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(seed)
    return np.asarray(
        pipeline("a cat and a hat", negative_prompt="and", num_inference_steps=6, generator=generator)[0][0]
    )


def run(
    pool: IOPool, engine: BatchingEngine, model: Model, wish: dict[str, Any], folder: Path, shown: list[Preview]
) -> Processed:
    work = Work(model, wish, {}, folder / "artifacts")
    with pool.open(work, check=lambda: None, say=lambda _: None, show=shown.append) as session:
        assert (session.prepared.count, session.prepared.unit, session.prepared.steps) == (
            wish["n"],
            "steps",
            wish["steps"],
        )
        return session.finish(engine.run(model, session.prepared.prompts, check=lambda: None))


def test_images_through_an_io_process_are_the_librarys(
    source: Path, pool: IOPool, engine: BatchingEngine, tmp_path: Path
) -> None:
    shown: list[Preview] = []
    done = run(pool, engine, a_model(source), WISH, tmp_path, shown)
    assert list(done.files) == ["image-1.png", "image-2.png"]
    for number, name in enumerate(done.files):
        np.testing.assert_array_equal(np.asarray(Image.open(done.files[name].path)), theirs(source, 3 + number))
    assert shown
    assert {(each.name, each.media_type) for each in shown} <= {(name, "image/webp") for name in done.files}


def test_a_request_that_does_not_fit_leaves_both_well(
    source: Path, pool: IOPool, engine: BatchingEngine, tmp_path: Path
) -> None:
    for wrong in ({"label": 3}, {"prompt": "a", "width": 100}, {"prompt": "a", "steps": 1000}):
        with pytest.raises(InvalidInput):
            run(pool, engine, a_model(source), {"n": 1, "steps": 50, **wrong}, tmp_path, [])
    assert run(pool, engine, a_model(source), WISH, tmp_path, []).files


def test_the_processor_keeps_its_contract_on_the_engine(source: Path, engine: BatchingEngine) -> None:
    model = a_model(source)
    done = check_processor(
        ImageGeneration(model), WISH, {}, engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        other={"prompt": "and", "steps": 3, "format": "webp", "guidance_scale": 1}, limits=model.limits,
    )  # fmt: skip
    assert set(done.artifacts) == {"image-1.png", "image-2.png"}


def test_a_model_is_warm_after_its_dummy(source: Path, pool: IOPool, engine: BatchingEngine, tmp_path: Path) -> None:
    assert warm(a_model(source), pool, engine, tmp_path / "w", check=lambda: None).largest_batch == 4
    dreamer = a_model(a_dreamer(tmp_path / "dreamer")).model_copy(update={"name": "dreamer"})
    assert warm(dreamer, pool, engine, tmp_path / "w", check=lambda: None).largest_batch == 4


@pytest.mark.breadth
def test_the_library_counts_steps(source: Path, tmp_path: Path) -> None:
    catalogue = tmp_path / "models.toml"
    record = {
        "title": "P",
        "runner": "diffusers",
        "processor": "image-generation",
        "source": str(source),
        "revision": "1",
    }
    fields = "\n".join(f"{name} = {json.dumps(value)}" for name, value in record.items())
    catalogue.write_text(f'[models.painter]\n{fields}\nmax_batch = 2\ndevice = "cpu"\n')
    seen: list[tuple[Phase, Progress]] = []
    with penstock.Engine(catalogue=[catalogue]) as library:
        result = library.run(
            "painter", input={**WISH, "steps": 40}, out=tmp_path / "out",
            on_progress=lambda phase, progress: seen.append((phase, progress)),
        )  # fmt: skip
    assert set(result.artifacts) == {"image-1.png", "image-2.png"}
    assert seen[-1] == (Phase.POSTPROCESSING, Progress(80, 80, "steps"))
    done = [progress.done for phase, progress in seen if phase is Phase.INFERRING]
    assert done == sorted(done)
    assert any(count % 40 for count in done), "between two images, too"
