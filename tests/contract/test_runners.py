"""Every runner keeps the same promises to the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest

from penstock.errors import ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Continue, Runner
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.onnx_files import conv


def a_model(runner: str, **fields: Any) -> Model:
    common = {"title": runner, "processor": "none", "revision": "1", "max_batch": 3, "device": "cpu"}
    return Model(name=runner, runner=runner, **{"source": "none", **common, **fields})


MODELS = {
    "fake": a_model("fake", options={"classes": 5}),
    "fake in steps": a_model("fake", options={"classes": 5, "steps": 4}),
    "lightgbm": a_model("lightgbm"),
    "onnx": a_model("onnx"),
    "torch": a_model(
        "torch",
        source="package:ukis_csmask/model_6b.onnx",
        sha256="abd33028e9e9218522778bbcbc627177c6451f795989c82414f37adb6f673a66",
        options={"network": "csmask-unet"},
    ),
}


@dataclass(frozen=True)
class Loaded:
    model: Model
    runner: Runner


@pytest.fixture(scope="module", params=MODELS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    model = MODELS[request.param]
    if request.param == "lightgbm":
        model = model.model_copy(update={"source": str(some_trees(tmp_path_factory.mktemp("trees") / "trees.txt"))})
    if request.param == "onnx":
        made = tmp_path_factory.mktemp("onnx") / "net.onnx"
        source = conv(made, softmax=True, names=("pixels", "probability"))
        model = model.model_copy(update={"source": str(source)})
    with closing(Runners.installed().load(model)) as runner:
        yield Loaded(model, runner)


def some_trees(path: Path) -> Path:
    """Write a classifier of six bands into five classes."""
    rng = np.random.default_rng(0)
    data = lightgbm.Dataset(rng.normal(size=(500, 6)), rng.integers(0, 5, 500))
    settings = {"objective": "multiclass", "num_class": 5, "verbosity": -1, "num_threads": 1, "deterministic": True}
    lightgbm.train(settings, data, num_boost_round=3).save_model(path)
    return path


def a_prompt(seed: int, height: int = 48, width: int = 64) -> Prompt:
    noise = np.random.default_rng(seed).normal(size=(6, height, width))
    return Prompt({"pixels": noise.astype(np.float32)}, cost=height * width)


def finish(runner: Runner, prompts: list[Prompt]) -> list[Output]:
    """Step until all are done, in batches as large as the runner wants them."""
    states: dict[int, Any] = {index: runner.admit(prompt) for index, prompt in enumerate(prompts)}
    outputs: dict[int, Output] = {}
    while states:
        indexes = list(states)[: runner.max_batch]
        for index, step in zip(indexes, runner.step([states[i] for i in indexes]), strict=True):
            if isinstance(step, Continue):
                states[index] = step.state
            else:
                outputs[index] = step.output
                del states[index]
    return [outputs[index] for index in range(len(prompts))]


def probability(output: Output) -> np.ndarray[Any, np.dtype[np.float32]]:
    array: np.ndarray[Any, np.dtype[np.float32]] = output.data["probability"]
    return array


@pytest.mark.parametrize("name", Runners.installed().specs)
def test_an_installed_runner_refuses_a_model_without_files_and_expects_no_memory_for_it(
    name: str, tmp_path: Path
) -> None:
    model, runners = a_model(name, source=str(tmp_path / "none")), Runners.installed()
    assert runners.expected_bytes(model) == 0
    assert runners.hub_files(model)
    if name == "fake":  # reads no files
        runners.check(model)
        return
    for ask in (runners.check, runners.load):
        with pytest.raises(ModelUnavailable):
            ask(model)


def test_every_prompt_is_answered_without_a_batch_axis(loaded: Loaded) -> None:
    for output in finish(loaded.runner, [a_prompt(1), a_prompt(2)]):
        array = probability(output)
        assert array.shape == (5, 48, 64)
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        np.testing.assert_allclose(array.sum(axis=0), 1, atol=1e-5)


def test_the_same_prompt_gets_the_same_bits_whatever_shares_its_batch(loaded: Loaded) -> None:
    prompts = [a_prompt(seed) for seed in range(3)]
    together = finish(loaded.runner, prompts)
    for prompt, output in zip(prompts, together, strict=True):
        (alone,) = finish(loaded.runner, [prompt])
        assert np.array_equal(probability(alone), probability(output))


def test_outputs_keep_their_batch_from_nobody(loaded: Loaded) -> None:
    first, second = finish(loaded.runner, [a_prompt(1), a_prompt(2)])
    assert not np.shares_memory(probability(first), probability(second))
    owner = probability(first).base
    assert owner is None or owner.nbytes == probability(first).nbytes


def test_read_only_and_strided_pixels_are_taken(loaded: Loaded) -> None:
    prompt = a_prompt(1)
    strided = np.ascontiguousarray(prompt.data["pixels"].transpose(1, 2, 0)).transpose(2, 0, 1)
    strided.flags.writeable = False
    expected, got = finish(loaded.runner, [prompt, Prompt({"pixels": strided})])
    assert np.array_equal(probability(expected), probability(got))


@pytest.mark.parametrize("data", [{}, {"image": np.zeros((6, 16, 16), np.float32)}, {"pixels": np.zeros(4)}])
def test_a_prompt_that_does_not_fit_is_refused(loaded: Loaded, data: dict[str, Any]) -> None:
    with pytest.raises(ProcessorFailed, match="pixels"):
        loaded.runner.admit(Prompt(data))


def test_a_batch_is_at_most_what_the_model_allows(loaded: Loaded) -> None:
    assert 1 <= loaded.runner.max_batch <= loaded.model.max_batch


def test_through_the_engine_the_bits_are_the_same_and_in_order(loaded: Loaded) -> None:
    prompts = [a_prompt(seed, 16 * (1 + seed % 2)) for seed in range(6)]
    expected = [probability(finish(loaded.runner, [prompt])[0]) for prompt in prompts]
    with closing(BatchingEngine(Runners.installed())) as engine:
        got = [probability(output) for output in engine.run(loaded.model, iter(prompts), check=lambda: None)]
    assert len(got) == len(expected)
    assert all(np.array_equal(*pair) for pair in zip(got, expected, strict=True))
