"""One loop serves models of many steps: a small diffuser, and text token by token."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from penstock.errors import Canceled, OutOfMemory
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Continue, Done, Step, shapes_of
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.torch.device import Sent, TorchDevice, arrays_of, weights_bytes
from tests.support.hub import STORIES, needs_stories
from tests.support.hub import a_model as a_hub_model

STEPS, SIDE = 20, 16
WAIT_S = 60


class Denoiser(nn.Module):
    """A U-Net of one level: the noise in images (N, 3, S, S) at times (N,)."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(16, 32)
        self.enter, self.down = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.up, self.leave = nn.ConvTranspose2d(32, 32, 2, stride=2), nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.arange(1, 9, device=time.device)
        told = self.time(torch.cat((angles.sin(), angles.cos()), dim=1))[:, :, None, None]
        wide = torch.relu(self.enter(image) + told)
        found: Tensor = self.leave(torch.cat((self.up(torch.relu(self.down(wide))), wide), dim=1))
        return found


def denoiser() -> Denoiser:
    torch.manual_seed(4)
    return Denoiser()


def kept(step: int) -> float:
    """Return how much of the image is left in the noise before a step: the cosine schedule's cumulative alpha."""
    return math.cos((STEPS - step) / (STEPS + 1) * math.pi / 2) ** 2


def alone(noise: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Diffuse one image in a plain loop: DDIM without fresh noise (Song, Meng and Ermon 2021, equation 12)."""
    network, image = denoiser().eval(), torch.from_numpy(noise)[None]
    with torch.inference_mode():
        for step in range(STEPS):
            found = network(image, torch.tensor([1 - step / STEPS]))
            clean = (image - math.sqrt(1 - kept(step)) * found) / math.sqrt(kept(step))
            image = math.sqrt(kept(step + 1)) * clean + math.sqrt(1 - kept(step + 1)) * found
    result: np.ndarray[Any, Any] = image[0].numpy()
    return result


@dataclass(frozen=True, slots=True)
class Sample:
    noise: Sent
    image: Tensor | None = None
    step: int = 0


class Diffuser:
    """A runner of twenty steps. Prompts have `noise`, float32 (3, S, S); outputs `image`, partial ones `step` too."""

    max_batch = 4

    def __init__(self, device: TorchDevice, on_step: Callable[[list[int]], None]) -> None:
        self._device, self._on_step = device, on_step
        self._network = device.place(denoiser(), channels_last=True)
        self.memory_bytes = weights_bytes(self._network)

    def bucket(self, prompt: Prompt) -> Hashable:
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> Sample:
        return Sample(self._device.send(prompt.data["noise"]))

    def step(self, states: Sequence[Sample]) -> Sequence[Step]:
        self._on_step([state.step for state in states])
        with self._device.running():
            images = torch.stack([self._device.receive(s.noise) if s.image is None else s.image for s in states])
            steps = torch.tensor([state.step for state in states])
            found = self._network(images, 1 - steps / STEPS)
            before, after = (
                torch.tensor([kept(state.step + more) for state in states])[:, None, None, None] for more in (0, 1)
            )
            clean = (images - (1 - before).sqrt() * found) / before.sqrt()
            images = after.sqrt() * clean + (1 - after).sqrt() * found
            return [self._answer(*one) for one in zip(states, images, arrays_of(images), strict=True)]

    def close(self) -> None:
        self._device.free(self._network)

    def _answer(self, state: Sample, image: Tensor, array: np.ndarray[Any, Any]) -> Step:
        step = state.step + 1
        if step == STEPS:
            return Done(Output({"image": array}))
        return Continue(Sample(state.noise, image, step), Output({"image": array, "step": step}, partial=True))


class Notes:
    """The steps at which the samples of each batch stood; `before` is called before each batch with its number."""

    def __init__(self, before: Callable[[int], None] = lambda _: None) -> None:
        self.batches: list[list[int]] = []
        self._before = before

    def __call__(self, steps: list[int]) -> None:
        self._before(len(self.batches))
        self.batches.append(sorted(steps))

    def engine(self) -> BatchingEngine:
        return BatchingEngine(Runners.of({"diffuser": lambda model: Diffuser(TorchDevice.of(model), self)}))


MODEL = Model(
    name="diffuser", title="D", runner="diffuser", processor="none", source="none", revision="1", device="cpu"
)


def noise(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=(3, SIDE, SIDE)).astype(np.float32)


def prompts(*seeds: int) -> Iterator[Prompt]:
    return (Prompt({"noise": noise(seed)}) for seed in seeds)


def never() -> None:
    """Nobody asks the job to stop."""


def images(outputs: Iterator[Output]) -> list[np.ndarray[Any, Any]]:
    return [output.data["image"] for output in outputs if not output.partial]


def test_a_diffusion_of_twenty_steps_is_that_of_a_plain_loop() -> None:
    notes = Notes()
    with closing(notes.engine()) as engine:
        found = images(engine.run(MODEL, prompts(1, 2, 3, 4, 5), check=never))
    assert len(found) == 5
    for seed, image in zip((1, 2, 3, 4, 5), found, strict=True):
        np.testing.assert_allclose(image, alone(noise(seed)), rtol=1e-3, atol=1e-4)
    assert sum(map(len, notes.batches)) == 5 * STEPS
    assert max(map(len, notes.batches)) == 4


def test_samples_of_two_jobs_at_different_steps_share_batches() -> None:
    late_is_there = threading.Event()

    def wait_at_the_seventh(batch: int) -> None:
        assert batch != 6 or late_is_there.wait(WAIT_S)

    def late() -> Iterator[Prompt]:
        yield from prompts(2)
        late_is_there.set()

    notes = Notes(wait_at_the_seventh)
    with closing(notes.engine()) as engine, ThreadPoolExecutor(1) as jobs:
        outputs = engine.run(MODEL, prompts(1), check=never)
        next(outputs)
        other = jobs.submit(lambda: images(engine.run(MODEL, late(), check=never)))
        (first,) = images(outputs)
        (second,) = other.result(WAIT_S)
    shared = [batch for batch in notes.batches if len(batch) == 2]
    assert len(shared) >= STEPS - 7
    assert all(early != behind for early, behind in shared)
    np.testing.assert_allclose(first, alone(noise(1)), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(second, alone(noise(2)), rtol=1e-3, atol=1e-4)


def test_partial_outputs_tell_the_steps_of_a_diffusion() -> None:
    """A batch waits until the partial output of the one before was taken, so that none is dropped."""
    taken = threading.Semaphore(1)
    notes = Notes(lambda _: assert_acquired(taken))
    told = []
    with closing(notes.engine()) as engine:
        for output in engine.run(MODEL, prompts(1), check=never):
            taken.release()
            told.append(output.data.get("step"))
    assert told == [*range(1, STEPS), None]


def assert_acquired(semaphore: threading.Semaphore) -> None:
    assert semaphore.acquire(timeout=WAIT_S)


def test_a_cancel_between_two_steps_ends_that_diffusion_only() -> None:
    canceled, gone = threading.Event(), threading.Event()

    def check() -> None:
        if canceled.is_set():
            raise Canceled

    def wait_at_the_fourth(batch: int) -> None:
        assert batch < 3 or gone.wait(WAIT_S)

    notes = Notes(wait_at_the_fourth)
    with closing(notes.engine()) as engine, ThreadPoolExecutor(1) as jobs:
        outputs = engine.run(MODEL, prompts(1), check=check)
        assert next(outputs).partial
        other = jobs.submit(lambda: images(engine.run(MODEL, prompts(2), check=never)))
        canceled.set()
        with pytest.raises(Canceled):
            next(outputs)
        gone.set()
        (image,) = other.result(WAIT_S)
    steps_of_the_canceled = sum(map(len, notes.batches)) - STEPS
    assert 1 <= steps_of_the_canceled <= 4
    np.testing.assert_allclose(image, alone(noise(2)), rtol=1e-3, atol=1e-4)


def test_memory_that_runs_out_between_steps_makes_batches_smaller_and_the_images_are_the_same() -> None:
    def too_large(steps: list[int]) -> None:
        notes(steps)
        if len(steps) > 2 and max(steps) > 4:
            raise OutOfMemory

    notes = Notes()
    with closing(
        BatchingEngine(Runners.of({"diffuser": lambda model: Diffuser(TorchDevice.of(model), too_large)}))
    ) as engine:
        found = images(engine.run(MODEL, prompts(1, 2, 3, 4), check=never))
    for seed, image in zip((1, 2, 3, 4), found, strict=True):
        np.testing.assert_allclose(image, alone(noise(seed)), rtol=1e-3, atol=1e-4)


@needs_stories
def test_a_story_is_told_token_by_token_and_a_cancel_ends_it_between_two() -> None:
    begin = Prompt({"input_ids": np.array([1], np.int64), "max_new_tokens": 400})
    short = Prompt({"input_ids": np.array([1], np.int64), "max_new_tokens": 30})
    model = a_hub_model(STORIES, max_batch=4)
    canceled = threading.Event()

    def check() -> None:
        if canceled.is_set():
            raise Canceled

    heard: list[list[int]] = []
    with closing(BatchingEngine(Runners.installed())) as engine, ThreadPoolExecutor(1) as jobs:
        outputs = engine.run(model, iter([begin]), check=check)
        for output in outputs:
            assert output.partial
            heard.append(output.data["token_ids"])
            if len(heard) == 10:
                break
        other = jobs.submit(lambda: list(engine.run(model, iter([short]), check=never))[-1])
        whole = other.result(WAIT_S).data["token_ids"]
        canceled.set()
        with pytest.raises(Canceled):
            list(outputs)
    assert len(whole) == 30
    assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(heard))
    assert whole[: len(heard[0])] == heard[0][:30]
