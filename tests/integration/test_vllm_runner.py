"""The runner `vllm` with a double of vLLM: plugins' jobs through IO processes and the engine, and what goes wrong."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import InvalidInput, ModelUnavailable, PenstockError, ProcessorFailed
from penstock.intake.local_media import LocalMedia
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.processors.vllm.serialization import serialize
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.vllm.runner import EngineDied, Started
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import Processed, Processing, Work
from tests.support.polling import wait_for
from tests.support.vllm_plugins import FILES, a_directory, a_model, vllm_double

pytestmark = pytest.mark.breadth

MIB = 2**20


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[Path]:
    with vllm_double() as folder:
        yield folder


@pytest.fixture(scope="module")
def pool(double: Path) -> Iterator[Processing]:  # noqa: ARG001  (its path is in the environment)
    pool = IOPool(2, ForkOptions(2048 * MIB))
    yield pool
    pool.close()


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    engine = BatchingEngine(Runners.installed())
    yield engine
    engine.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    shapes = {"pixel_values": {"shape": [1, 2, 2]}}
    return a_directory(tmp_path / "model", pretrained_cfg={"input": {"target": "pixel_values", "data": shapes}})


def run(pool: Processing, engine: BatchingEngine, model: Model, *values: Any, **more: Any) -> Processed:
    folder = Path(model.source).parent
    (folder / "in.json").write_text(json.dumps(values))
    work = Work(model, {**FILES, **more}, {FILES["file"]: LocalMedia(folder / "in.json")}, folder / "artifacts")
    work.folder.mkdir(exist_ok=True)
    with pool.open(work, check=lambda: None, say=lambda _: None) as session:
        return session.finish(
            engine.run(model, session.prepared.prompts, check=lambda: None, cost=session.prepared.cost)
        )


def started() -> Any:
    from vllm.entrypoints.llm import LLM

    return LLM


def test_a_plugins_job_goes_through_an_io_process_and_the_engine(
    pool: Processing, engine: BatchingEngine, source: Path
) -> None:
    model = a_model(source)
    done = run(pool, engine, model, 1, 2, 4, times=2)
    assert done.result.data == {"data": {"name": "double", "total": 42.0, "images": [{"artifact": "images-0.png"}]}}
    assert done.files["images-0.png"].path.read_bytes().startswith(b"\x89PNG")
    told = started().started[-1]
    assert (told["runner"], told["max_num_seqs"], told["model_impl"]) == ("pooling", 4, "terratorch")
    assert told["hf_overrides"] == {"io_processor_plugin": None}  # the engine itself runs no plugin


def test_several_plugins_share_a_worker_and_a_broken_one_is_reported(
    pool: Processing, engine: BatchingEngine, source: Path
) -> None:
    entries = {name: pool.entry(a_model(source, name)) for name in ("tally", "later", "broken", "choosy")}
    problems = {name: entry.problem for name, entry in entries.items()}
    assert (problems["tally"], problems["later"]) == (None, None)
    assert "no licence found" in (problems["broken"] or "")
    assert "does not contain the datamodule configuration" in (problems["choosy"] or "")
    for name in ("tally", "later"):
        assert run(pool, engine, a_model(source, name), 5).result.data["data"]["total"] == 15  # type: ignore[index]


def test_a_plugin_that_crashes_takes_its_own_job_only(pool: Processing, engine: BatchingEngine, source: Path) -> None:
    with pytest.raises(ProcessorFailed, match="crashed"):
        run(pool, engine, a_model(source, "crashing"), 1)
    assert run(pool, engine, a_model(source), 1).result.data["data"]["total"] == 3  # type: ignore[index]


def test_an_engine_that_died_of_a_prompt_is_started_anew(
    pool: Processing, engine: BatchingEngine, source: Path
) -> None:
    model = a_model(source)
    assert run(pool, engine, model, 1).result.data is not None
    before = len(started().started)
    with pytest.raises(ProcessorFailed, match="vLLM's engine died of this prompt"):
        run(pool, engine, model, 13)
    assert run(pool, engine, model, 1, 2).result.data["data"]["total"] == 9  # type: ignore[index]
    assert len(started().started) == before + 1


def test_an_engine_whose_start_hangs_is_ended(engine: BatchingEngine, source: Path) -> None:
    model = a_model(source, options={"engine": {"hang": True}, "start_timeout_s": 2})
    with pytest.raises(ModelUnavailable, match=r"did not start within 2 s \(`options.start_timeout_s`\) and was ended"):
        engine.load(model, check=lambda: None)
    wait_for(lambda: not multiprocessing.active_children(), "the engine's process lives on")
    assert engine.load(a_model(source), check=lambda: None) >= 0


@pytest.mark.parametrize("seconds", [0, -1, True, "60"])
def test_a_limit_that_is_no_number_of_seconds_is_refused(source: Path, seconds: Any) -> None:
    with pytest.raises(ModelUnavailable, match="must be a number of seconds above 0"):
        Runners.installed().check(a_model(source, options={"start_timeout_s": seconds}))


class Process:
    """An engine's process that lives, or does not."""

    def __init__(self, *, alive: bool) -> None:
        self.alive = alive

    def is_alive(self) -> bool:
        return self.alive


def test_an_engine_that_was_killed_is_not_waited_for() -> None:
    never = threading.Event()
    with pytest.raises(EngineDied):
        Started(None, [Process(alive=True), Process(alive=False)]).wait_for(never.wait)
    never.set()


def test_what_an_engine_answers_or_raises_comes_back() -> None:
    living = Started(None, [Process(alive=True)])
    assert living.wait_for(lambda: 7) == 7
    assert living.wait_for(lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        living.wait_for(lambda: 1 // 0)
    # Its last words count.
    assert Started(None, [Process(alive=False)]).wait_for(lambda: "said") == "said"


def test_the_warm_up_runs_the_records_sample(pool: Processing, source: Path, tmp_path: Path) -> None:
    work = pool.dummy(a_model(source), tmp_path / "dummy")
    assert work.input == {"file": "media://file", "times": 2}
    assert work.media["media://file"].path.read_bytes() == (source / "numbers.json").read_bytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_tensors_come_in_the_dtype_that_the_engine_computes_in(
    pool: Processing, engine: BatchingEngine, source: Path, dtype: str
) -> None:
    model = a_model(source, options={"engine": {"dtype": dtype}})
    assert run(pool, engine, model, 2).result.data["data"]["total"] == 6  # type: ignore[index]


def prompt(image: Any) -> Prompt:
    tree = {"prompt_token_ids": [1], "multi_modal_data": {"image": image}}
    return Prompt({**serialize("prompt", tree), **serialize("params", {"task": "plugin"})})


@pytest.mark.parametrize(
    ("image", "error", "said"),
    [
        ({"pixel_values": torch.zeros(2, 2, 2)}, InvalidInput, "takes 1 bands as 'pixel_values', the prompt has 2"),
        ({"pixel_values": torch.zeros(2, 2)}, ProcessorFailed, "a tensor of 3 dimensions"),
        ({"pixel_values": "zeros"}, ProcessorFailed, "a tensor of 3 dimensions"),
        ({"pixels": torch.zeros(1, 2, 2)}, ProcessorFailed, "takes the tensors pixel_values"),
        ([torch.zeros(1, 2, 2)], ProcessorFailed, "takes the tensors pixel_values"),
    ],
)
def test_what_would_kill_the_engine_does_not_reach_it(
    source: Path, image: Any, error: type[PenstockError], said: str
) -> None:
    runner = Runners.installed().load(a_model(source))
    with pytest.raises(error, match=said):
        runner.admit(prompt(image))
    runner.close()


@pytest.mark.parametrize("data", [{}, {"prompt": 1}, {"input_ids": np.zeros(0, np.int64)}, {"input_ids": [1]}])
def test_prompts_of_others_are_refused(source: Path, data: dict[str, Any]) -> None:
    runner = Runners.installed().load(a_model(source))
    with pytest.raises(ProcessorFailed):
        runner.admit(Prompt(data))
    runner.close()


def test_token_ids_become_embeddings(tmp_path: Path) -> None:
    model = a_model(a_directory(tmp_path / "model"))
    runner = Runners.installed().load(model)
    prompts = [Prompt({"input_ids": np.array(ids)}) for ids in ([1, 2], [3, 4, 5])]
    assert {runner.bucket(one) for one in prompts} == {"texts"}
    steps: Any = runner.step([runner.admit(one) for one in prompts])
    runner.close()
    assert [step.output.data["embedding"].round(3).tolist() for step in steps] == [
        np.array(ids, np.float32).tolist() for ids in ([0.1, 0.2], [0.3, 0.4, 0.5])
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"options": {"task": "sing"}}, "`options.task` is one of embed, classify"),
        ({"source": "/nowhere"}, "is no directory"),
    ],
)
def test_a_record_that_cannot_work_is_said_before_anything_is_loaded(
    source: Path, fields: dict[str, Any], said: str
) -> None:
    model = a_model(source, options=fields.get("options", {})).model_copy(
        update={"source": fields.get("source", str(source))}
    )
    with pytest.raises(ModelUnavailable, match=said):
        Runners.installed().check(model)


def test_an_engine_that_does_not_start_says_why(source: Path) -> None:
    with pytest.raises(ModelUnavailable, match="does not start: TypeError: EngineArgs got unexpected"):
        Runners.installed().load(a_model(source, options={"engine": {"colour": "red"}}))
