"""Recorded passes, with a recorder for the processor: `tests/gpu/test_recordings.py` has those of CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.errors import OutOfMemory
from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.torch.recordings import (
    MOST_RECORDINGS,
    RECORDED_AT,
    Forward,
    Recording,
    Recordings,
    padded,
)


class Passes:
    """A network that doubles its batch and counts its passes, and a recorder that replays it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.replayed: list[int] = []
        self.records = True

    def forward(self, batch: Tensor, how: Any) -> tuple[str, Tensor]:
        self.sizes.append(len(batch))
        return f"doubled {how}", batch * 2

    def record(self, forward: Forward, batch: Tensor, how: Any, expected: Tensor) -> Recording:
        if not self.records:
            raise RuntimeError("this network cannot be recorded")
        name, answer = forward(batch, how)
        assert torch.equal(answer, expected)

        def replay() -> None:
            self.replayed.append(len(batch))
            answer.copy_(batch * 2)

        return Recording(batch, name, answer, replay)


@pytest.mark.parametrize(
    ("count", "most", "size"),
    [(1, 32, 1), (2, 32, 2), (3, 32, 4), (5, 32, 8), (8, 32, 8), (9, 32, 16), (17, 32, 24), (31, 32, 32), (25, 30, 30)],
)
def test_a_batch_is_padded_little(count: int, most: int, size: int) -> None:
    assert padded(count, most) == size


def test_a_pass_that_comes_again_is_replayed_with_the_same_answer() -> None:
    passes = Passes()
    recordings = Recordings(passes.forward, passes.record, most=32)
    for number in range(RECORDED_AT + 3):
        batch = torch.full((5 + number % 3, 2), float(number))
        name, answer = recordings.run(batch, None)
        assert name == "doubled None"
        assert torch.equal(answer, batch * 2)
    assert passes.replayed == [8, 8, 8]


def test_passes_of_other_shapes_and_of_other_kinds_have_recordings_of_their_own() -> None:
    passes = Passes()
    recordings = Recordings(passes.forward, passes.record, most=8)
    for _ in range(RECORDED_AT + 1):
        for batch, how in ((torch.ones(2, 3), "a"), (torch.ones(2, 4), "a"), (torch.ones(2, 3), "b")):
            name, answer = recordings.run(batch, how)
            assert (name, answer.shape) == (f"doubled {how}", batch.shape)
    assert passes.replayed == [2, 2, 2]


def test_a_pass_that_cannot_be_recorded_runs_as_before_and_is_not_tried_again() -> None:
    passes = Passes()
    passes.records = False
    recordings = Recordings(passes.forward, passes.record, most=8)
    for _ in range(RECORDED_AT + 2):
        assert torch.equal(recordings.run(torch.ones(3, 1), None)[1], torch.full((3, 1), 2.0))
    assert passes.sizes == [3, 3, 3, 4, 3, 3]  # the fourth pass was to be compared with the recording


def test_no_more_passes_are_recorded_than_the_limit() -> None:
    passes = Passes()
    recordings = Recordings(passes.forward, passes.record, most=1)
    for _ in range(RECORDED_AT + 1):
        for width in range(MOST_RECORDINGS + 2):
            recordings.run(torch.ones(1, 1 + width), None)
    assert len(passes.replayed) == MOST_RECORDINGS


def test_a_pass_without_room_frees_the_recordings_of_every_network() -> None:
    passes, others = Passes(), Passes()
    kept = [Recordings(each.forward, each.record, most=8) for each in (passes, others)]
    for _ in range(RECORDED_AT):
        for recordings in kept:
            recordings.run(torch.ones(1, 1), None)
    with pytest.raises(OutOfMemory), TorchDevice(torch.device("cpu")).running():
        raise torch.OutOfMemoryError
    for _ in range(RECORDED_AT):
        for recordings in kept:
            assert float(recordings.run(torch.ones(1, 1), None)[1]) == 2
    assert passes.replayed == others.replayed == []
    for recordings in kept:  # recorded anew: the batch that had no room is smaller now
        assert float(recordings.run(torch.ones(1, 1), None)[1]) == 2
    assert passes.replayed == others.replayed == [1]


def test_passes_of_ever_new_shapes_are_not_counted_for_ever() -> None:
    passes = Passes()
    recordings = Recordings(passes.forward, passes.record, most=1)
    for width in range(3000):
        recordings.run(torch.ones(1, 1 + width % 1500), None)
    assert len(recordings._came) <= 1024
