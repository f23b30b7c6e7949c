"""Warm-up: a model's dummy request runs through pre_process, engine and post_process before jobs are claimed.

The warm-up loads the weights, compiles what needs compiling, finds the largest batch that fits on the device, and
finds faults of a model before a job does.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import structlog

from penstock.errors import ExecutionTimeout, Interruption, PenstockError
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.base import Check, Engine
from penstock.workers.processing import Processing, Work
from penstock.workers.retry_policy import to_penstock_error

#: Limits of a dummy request on a CPU.
CPU_LIMITS = {"max_pixels": 256 * 256, "max_items": 1, "max_tokens": 32}


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WarmUpReport:
    """The measurements of a warm-up."""

    #: Seconds for loading the weights.
    load_s: float
    #: Seconds for everything after loading.
    warm_up_s: float
    #: Number of the dummy's prompts that fit in one batch.
    largest_batch: int


def warm_up(
    model: Model,
    processing: Processing,
    engine: Engine,
    folder: Path,
    *,
    ready: Callable[[str], None],
    failed: Callable[[str, PenstockError], None],
    check: Check = lambda: None,
) -> None:
    """Warm a model up; call `ready` or `failed` with its name, or neither when `check` raises an `Interruption`.

    `folder` holds the dummy's media and results, which are removed.
    """
    try:
        warmth = warm(model, processing, engine, folder / model.name, check=check)
    except Interruption:
        return
    except Exception as error:  # a fault of a processor or a runner must not keep the other models from serving
        ours = to_penstock_error(error)
        fields = {"model": model.name, "code": ours.code, "detail": ours.detail}
        log.warning("model.warm_up_failed", **fields, exc_info=ours is not error)
        failed(model.name, ours)
    else:
        log.info("model.warmed_up", model=model.name, **asdict(warmth))
        ready(model.name)


def warm(model: Model, processing: Processing, engine: Engine, folder: Path, *, check: Check) -> WarmUpReport:
    """Run a model's dummy request, then find how many of its largest prompt fit in a batch.

    Raises every error on the way, and `ExecutionTimeout` after a job's time. `folder` is created and removed.
    """
    check = _until(time.monotonic() + model.execution_timeout_s, check)
    try:
        load_s = engine.load(model, check=check)
        work = dummy_of(model, processing, folder)
        begun = time.monotonic()
        largest = LargestPrompt()
        with processing.open(work, check=check, say=lambda _: None) as session:
            prompts = largest.watch(session.prepared.prompts)
            with closing(engine.run(model, prompts, check=check, cost=session.prepared.cost)) as outputs:
                session.finish(outputs)
        most = 0 if largest.prompt is None else engine.fill(model, largest.prompt, check=check)
        return WarmUpReport(round(load_s, 3), round(time.monotonic() - begun, 3), most)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def dummy_of(model: Model, processing: Processing, folder: Path) -> Work:
    """Return a model's dummy request, small on a CPU; creates `folder`. Raises the processor's errors."""
    return replace(processing.dummy(_with_small_limits(model), folder), model=model)


def _with_small_limits(model: Model) -> Model:
    """Return the model with limits for a small dummy, unless the device is a GPU, whose memory must be tried out.

    A CPU compiles nothing and needs no batch size: there the dummy only shows that every part works.
    """
    torch = sys.modules.get("torch")  # imported by now if any model uses it
    if torch is not None and model.device != "cpu" and torch.cuda.is_available():
        return model
    limits = {name: min(getattr(model.limits, name) or most, most) for name, most in CPU_LIMITS.items()}
    return model.model_copy(update={"limits": model.limits.model_copy(update=limits)})


def _until(ends_s: float, check: Check) -> Check:
    def checked() -> None:
        check()
        if time.monotonic() > ends_s:
            raise ExecutionTimeout("the warm-up took longer than a job may take")

    return checked


@dataclass(slots=True)
class LargestPrompt:
    """Keeps the prompt with the greatest cost of an iterator."""

    prompt: Prompt | None = field(default=None)

    def watch(self, prompts: Iterator[Prompt]) -> Iterator[Prompt]:
        """Yield the prompts, and close them at the end."""
        try:
            for prompt in prompts:
                if self.prompt is None or prompt.cost > self.prompt.cost:
                    self.prompt = copied(prompt)
                yield prompt
        finally:
            close = getattr(prompts, "close", None)
            if close is not None:
                close()


def copied(prompt: Prompt) -> Prompt:
    """Return a copy of a prompt with its arrays: their memory may be reused once the prompt was answered."""
    copies = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in prompt.data.items()}
    return replace(prompt, data=copies)
