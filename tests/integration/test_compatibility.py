"""Every runner with every processor: the pair is refused by the check, or a job through both works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from penstock.models import Model
from penstock.processors.io_signature import fits
from penstock.processors.registry import Registry
from penstock.processors.testing import FolderSink, LocalFiles
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.sources import localise
from penstock.workers.processing import InThread
from penstock.workers.warmup import CPU_LIMITS, warm
from tests.support.pair_table import TABLE
from tests.support.pairs import a_model
from tests.support.vllm_command import vllm_command
from tests.support.vllm_plugins import vllm_double

ROOT = Path(__file__).parents[2]

#: Runners of one library, with an environment of its own or not, and those that run files of functions: the tests of
#: their pairs.
ELSEWHERE = {
    "terratorch": ROOT / "tests" / "terratorch" / "test_pairs.py",
    "olmoearth": ROOT / "tests" / "unit" / "workers" / "engine" / "test_olmoearth.py",
    "function": ROOT / "tests" / "integration" / "test_functions.py",
}
PAIRS = [(runner, processor) for processor, runners in TABLE.items() for runner in sorted(runners - ELSEWHERE.keys())]
#: Pairs that `make test` runs here: no other of its tests does.
ONLY_HERE = (
    *(f"onnx-{name}" for name in ("audio-classification", "depth-estimation", "image-embedding", "object-detection")),
    *(f"onnx-{name}" for name in ("raster-regression", "tensor", "text-embedding", "video-classification")),
    *("onnx-raster-detection", "onnx-raster-embedding", "torch-raster-embedding"),
    *("torch-object-detection", "torch-text-embedding", "lightgbm-tensor", "transformers-tensor"),
    *("fake-tabular", "fake-tensor", "fake-image-classification", "vllm-tensor", "vllm-text-embedding"),
    *("vllm-openai-chat", "vllm-openai-completion", "vllm-openai-embedding"),
)

RUNNERS = Runners.installed()


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.imported()


@pytest.fixture(scope="module")
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(RUNNERS)) as engine:
        yield engine


@contextmanager
def double(folder: Path) -> Iterator[None]:
    with vllm_double(), vllm_command(folder / "bin"):
        yield


def test_every_pair_is_declared(registry: Registry) -> None:
    """A processor or runner without a row or without a declaration fails here."""
    found = {
        name: frozenset(runner for runner in RUNNERS.specs if fits(needed, RUNNERS.offers(runner)))
        for name, needed in registry.io_signatures().items()
        if needed is not None and all(RUNNERS.offers(runner) is not None for runner in RUNNERS.specs)
    }
    assert found == TABLE


@pytest.mark.breadth(but=ONLY_HERE)
@pytest.mark.parametrize(("runner", "processor"), PAIRS, ids=lambda name: name)
def test_a_declared_pair_serves(
    registry: Registry, engine: BatchingEngine, tmp_path: Path, runner: str, processor: str
) -> None:
    with double(tmp_path) if runner == "vllm" and find_spec("vllm") is None else nullcontext():
        model = localise(a_model(runner, processor, tmp_path / "model"), cache=tmp_path)
        processing = InThread(registry)
        assert processing.entry(model).problem is None
        RUNNERS.check(model)
        assert warm(model, processing, engine, tmp_path / "dummy", check=lambda: None).largest_batch >= 1


def test_every_pair_that_another_environment_runs_is_in_its_tests() -> None:
    for runner, path in ELSEWHERE.items():
        for processor in (name for name, runners in TABLE.items() if runner in runners):
            assert f'"{processor}"' in path.read_text(), f"{path.name} runs no {runner} with {processor}"


def test_the_pairs_that_make_test_runs_here_are_pairs() -> None:
    assert set(ONLY_HERE) <= {f"{runner}-{processor}" for runner, processor in PAIRS}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], Model]:
    """Return a model of each pair that needs no double of a library."""
    folder = tmp_path_factory.mktemp("pairs")
    return {
        pair: localise(a_model(*pair, folder / "-".join(pair)), cache=folder) for pair in PAIRS if pair[0] != "vllm"
    }


@pytest.mark.breadth
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair[0] != "vllm"], ids="-".join)
def test_no_pair_is_refused_that_serves(
    registry: Registry, engine: BatchingEngine, models: Mapping[tuple[str, str], Model], tmp_path: Path,
    pair: tuple[str, str],
) -> None:  # fmt: skip
    """A job of every processor that does not fit a model fails with the model."""
    served, works = models[pair], set()
    offers = RUNNERS.offers_of(served)
    assert offers is not None
    for (_, name), model in {other[1]: (other, models[other]) for other in models}.values():
        processor = registry.processor_for(model)
        if fits(processor.io_signatures, offers):  # type: ignore[attr-defined]
            continue
        try:
            run(processor, model, engine, served, tmp_path / name)
        except Exception:  # whatever a processor raises for an answer that it does not know
            continue
        works.add(name)
    assert works == set()


def run(processor: Any, model: Model, engine: BatchingEngine, served: Model, folder: Path) -> None:
    """Run a processor's dummy through another model."""
    folder.mkdir()
    dummy = processor.dummy(model.limits.model_copy(update=CPU_LIMITS), folder)
    prepared = processor.pre_process(processor.request.model_validate(dummy.request), LocalFiles(dummy.files))
    outputs = engine.run(served, prepared.prompts, check=lambda: None)
    processor.post_process(outputs, prepared.context, FolderSink(folder))
