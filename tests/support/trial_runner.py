"""The runner `trial`, which does in a model's process what a test's prompt says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import DeviceLost, InvalidInput, ModelUnavailable, OutOfMemory
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Hosting, RunnerSpec, shapes_of

ROOT = Path(__file__).parents[2]


class Trial:
    """Doubles `x`; the option `folder` gets a file for each batch with its numbers and those beside it."""

    memory_bytes = 5

    def __init__(self, model: Model) -> None:
        self.max_batch = model.max_batch
        self._options: Mapping[str, Any] = model.options

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the shapes."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> Prompt:
        """Return the prompt; refuse `refused`."""
        if prompt.data["do"] == "refused":
            raise InvalidInput("the trial refuses this")
        return prompt

    def step(self, states: Sequence[Prompt]) -> list[Done]:
        """Do what the prompts say, and answer those that are left."""
        folder = self._options.get("folder")
        if folder is not None:
            (Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}").write_text(str(len(states)))
        for prompt in states:
            match prompt.data["do"]:
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hang":
                    time.sleep(600)
                case "lost":
                    raise DeviceLost("CUDA error: an assertion failed")
                case "raise":
                    raise ZeroDivisionError("inside")
        if len(states) > self._options.get("room", len(states)):
            raise OutOfMemory
        return [Done(Output({"x": prompt.data["x"] * 2, "pid": os.getpid()})) for prompt in states]

    def close(self) -> None:
        """Free nothing."""


def _load(model: Model) -> Trial:
    if model.options.get("broken"):
        raise ModelUnavailable("the weights are damaged")
    return Trial(model)


SPEC = RunnerSpec(_load, hosting=lambda _model: Hosting())


def install(folder: Path) -> str:
    """Write an installed package's entry point that names the runner; return the value of PYTHONPATH for processes."""
    info = folder / "trial_runner-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trial-runner\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[penstock.runners]\ntrial = tests.support.trial_runner:SPEC\n")
    return os.pathsep.join([str(folder), str(ROOT)])


def prompt(value: float, do: str = "", size: int = 3) -> Prompt:
    """Return a prompt; arrays of more than 16,384 numbers go through shared memory."""
    return Prompt({"x": np.full(size, value, np.float32), "do": do}, cost=size)
