"""Passes side by side on a CPU: the option `threads` of the runner `torch`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.workers.engine.torch.passes import Passes
from penstock.workers.engine.torch.runner import check_torch, load_torch
from tests.unit.workers.engine.torch.test_program import a_directory, a_prompt, run

#: Seconds after which a pass that should run beside another one does not.
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def passes() -> Iterator[Passes]:
    with closing(Passes(1, 2)) as found:
        yield found


def with_options(model: Model, **options: Any) -> Model:
    return model.model_copy(update={"options": options})


def test_a_prompt_has_the_same_bits_beside_another_one_and_alone(tmp_path: Path) -> None:
    prompts = [a_prompt(), a_prompt()]
    prompts[1].data["pixels"][:] += 1
    with closing(load_torch(with_options(a_directory(tmp_path), threads=1))) as runner:
        assert runner.max_batch == 2
        alone = [run(runner, prompt) for prompt in prompts]
        beside = runner.step([runner.admit(prompt) for prompt in prompts])
    for one, other in zip(alone, beside, strict=True):
        assert np.array_equal(one.data["probability"], other.output.data["probability"])  # type: ignore[union-attr]
    assert not np.array_equal(alone[0].data["probability"], alone[1].data["probability"])


@pytest.mark.parametrize("options", [{}, {"threads": 2}, {"threads": 9}])
def test_other_settings_compute_one_prompt_at_a_time(tmp_path: Path, options: dict[str, Any]) -> None:
    with closing(load_torch(with_options(a_directory(tmp_path), **options))) as runner:
        assert runner.max_batch == 1


def test_a_compiled_network_has_one_pass_at_a_time(tmp_path: Path) -> None:
    one = Passes.of(with_options(a_directory(tmp_path), threads=1, compile=True))
    assert one is not None
    with closing(one):
        assert one.at_once == 1


def test_passes_run_at_the_same_time_with_their_own_threads(passes: Passes) -> None:
    together = Barrier(2)

    def step(states: Sequence[int]) -> list[tuple[int, int]]:
        together.wait(PATIENCE_S)
        return [(states[0], torch.get_num_threads())]

    assert passes.run(step, [3, 4]) == [(3, 1), (4, 1)]
    assert torch.get_num_threads() == 2


def test_the_error_of_a_pass_comes_when_all_have_ended(passes: Passes) -> None:
    ended: list[int] = []
    first_has_failed = Barrier(2)

    def step(states: Sequence[int]) -> list[int]:
        first_has_failed.wait(PATIENCE_S)
        if states == [0]:
            raise ZeroDivisionError
        ended.append(states[0])
        return [states[0]]

    with pytest.raises(ZeroDivisionError):
        passes.run(step, [0, 1])
    assert ended == [1]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("threads", [0, -1, True, "1", 1.5])
def test_a_number_of_threads_that_is_none_is_refused_by_the_check(tmp_path: Path, threads: object) -> None:
    with pytest.raises(ModelUnavailable, match=r"options\.threads"):
        check_torch(with_options(a_directory(tmp_path), threads=threads))
