"""Several prompts in one message: those that are small, in order, and none is held while nobody makes the next."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from penstock.errors import ProcessorFailed
from penstock.processors.base import Prompt
from penstock.workers.io import prompt_groups
from penstock.workers.io.channel import Channel, Disconnected, Memory, Message
from penstock.workers.io.output_groups import MAX_ARRAYS
from penstock.workers.io.prompt_groups import MAX_BYTES, MAX_CHARS, MAX_PROMPTS, PromptSender, prompts_of

TILE = {"pixels": np.arange(3, dtype=np.uint16), "reduce": "classes"}


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """The IO process's channel and the worker's, which share no memory beyond the socket's."""
    ours, its = socket.socketpair()
    with closing(Channel(its, Memory(0), patient=True)) as one, closing(Channel(ours, Memory(0))) as other:
        yield one, other


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent because time is over."""
    monkeypatch.setattr(prompt_groups, "HOLD_S", 1000.0)


def sent(ends: tuple[Channel, Channel], prompts: Sequence[Prompt]) -> list[list[Prompt]]:
    """Return the groups in which prompts arrive that are made at once."""
    sender = PromptSender(ends[0])
    sender.begin()
    for number, prompt in enumerate(prompts):
        sender.add(prompt, more=number + 1 < len(prompts))
    sender.pause()
    ends[0].send("end")
    sender.end()
    return list(iter(lambda: prompts_of(ends[1].receive()), []))


@pytest.mark.usefixtures("patience")
def test_prompts_of_a_request_arrive_together_as_they_were(ends: tuple[Channel, Channel]) -> None:
    prompts = [Prompt({"pixels": np.full((number, 2), number), "n": number}, cost=number) for number in range(5)]
    (group,) = sent(ends, prompts)
    for prompt, arrived in zip(prompts, group, strict=True):
        assert arrived.cost == prompt.cost
        assert arrived.data["n"] == prompt.data["n"]
        np.testing.assert_array_equal(arrived.data["pixels"], prompt.data["pixels"])


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (TILE, [MAX_PROMPTS, MAX_PROMPTS, 1]),
        ({str(number): np.zeros(1) for number in range(MAX_ARRAYS // 2)}, [2] * MAX_PROMPTS + [1]),
        ({"text": "a" * MAX_CHARS}, [1] * (2 * MAX_PROMPTS + 1)),
        ({"boxes": [1, 2]}, [1] * (2 * MAX_PROMPTS + 1)),
    ],
)
def test_groups_are_small(ends: tuple[Channel, Channel], each: dict[str, Any], expected: list[int]) -> None:
    assert [len(group) for group in sent(ends, [Prompt(each)] * (2 * MAX_PROMPTS + 1))] == expected


@pytest.mark.usefixtures("patience")
def test_large_prompts_go_alone_and_in_order(monkeypatch: pytest.MonkeyPatch, ends: tuple[Channel, Channel]) -> None:
    monkeypatch.setattr(prompt_groups, "MAX_BYTES", 20)
    sizes = [1, 2, 30, 3, 4, 16, 5]
    groups = sent(ends, [Prompt({"x": np.zeros(size, np.uint8)}) for size in sizes])
    assert [[len(prompt.data["x"]) for prompt in group] for group in groups] == [[1, 2], [30], [3, 4], [16], [5]]
    assert MAX_BYTES >= 20


def test_a_prompt_is_sent_while_the_next_one_is_being_made(ends: tuple[Channel, Channel]) -> None:
    sender = PromptSender(ends[0])
    sender.begin()
    sender.add(Prompt(TILE), more=True)
    assert len(prompts_of(ends[1].receive())) == 1  # whatever its maker does meanwhile
    sender.end()


def test_the_worker_s_end_is_noticed_by_the_maker(ends: tuple[Channel, Channel]) -> None:
    sender = PromptSender(ends[0])
    sender.begin()
    sender.add(Prompt(TILE), more=True)
    prompts_of(ends[1].receive())
    ends[1].close()
    with pytest.raises(Disconnected):
        sender.add(Prompt(TILE), more=False)
    sender.end()


@pytest.mark.usefixtures("patience")
def test_a_prompt_that_cannot_be_sent_takes_no_other_with_it(ends: tuple[Channel, Channel]) -> None:
    sender = PromptSender(ends[0])
    sender.begin()
    sender.add(Prompt(TILE), more=True)
    with pytest.raises(ProcessorFailed, match="only numbers"):
        sender.add(Prompt({"x": np.array([object()])}), more=True)
    assert len(prompts_of(ends[1].receive())) == 1
    sender.end()


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"kind": "prompt"}, {}),
        ({"kind": "prompt", "cost": "1"}, {}),
        ({"kind": "prompts", "costs": []}, {}),
        ({"kind": "prompts", "costs": [1, True]}, {}),
        ({"kind": "prompts", "costs": 2}, {}),
        ({"kind": "prompts", "costs": [1]}, {"1 x": 1}),
        ({"kind": "prompts", "costs": [1]}, {"x": 1}),
        ({"kind": "prompts", "costs": [1, 2]}, {"-1 x": 1}),
        ({"kind": "else"}, {}),
    ],
)
def test_nonsense_instead_of_prompts_is_refused(header: dict[str, Any], data: dict[str, Any]) -> None:
    with pytest.raises(ProcessorFailed, match="instead of a prompt"):
        prompts_of(Message(header, data))
