"""Before a model's jobs are claimed its processor's dummy request goes all the way: pre_process, engine, post_process.

It loads the weights and compiles what compiles, finds how many of its prompts fit on the device at once, and shows what
is wrong with a model before a job does.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import structlog

from penstock.errors import ExecutionTimeout, Interruption, PenstockError
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.base import Check, Engine
from penstock.workers.outcomes import blame
from penstock.workers.processing import Processing

#: What a dummy is limited to on a CPU.
MODEST = {"max_pixels": 256 * 256, "max_items": 1, "max_tokens": 32}

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Warmth:
    """What a warm-up found."""

    #: Loading the weights.
    load_s: float
    #: Everything after that.
    warm_up_s: float
    #: How many of the dummy's prompts share a batch.
    largest_batch: int


def warm_up(
    models: Iterable[Model],
    processing: Processing,
    engine: Engine,
    folder: Path,
    *,
    ready: Callable[[str], None],
    failed: Callable[[str, PenstockError], None],
    check: Check = lambda: None,
) -> None:
    """Warm models up one after the other and say by name which are ready and which failed, and why.

    Models that want no warm-up are ready at once, before the others. `folder` is for the dummies' media and results,
    which are removed. Ends early, without a word on the models that are left, when `check` raises an `Interruption`.
    """
    models = list(models)
    for model in models:
        if not model.warm_up:
            ready(model.name)
    for model in models:
        if not model.warm_up:
            continue
        try:
            warmth = warm(model, processing, engine, folder / model.name, check=check)
        except Interruption:
            return
        except Exception as error:  # a processor's or a runner's own fault must not keep the others from serving
            ours = blame(error)
            fields = {"model": model.name, "code": ours.code, "detail": ours.detail}
            log.warning("model.warm_up_failed", **fields, exc_info=ours is not error)
            failed(model.name, ours)
        else:
            log.info("model.warm", model=model.name, **asdict(warmth))
            ready(model.name)


def warm(model: Model, processing: Processing, engine: Engine, folder: Path, *, check: Check) -> Warmth:
    """Run a model's dummy request through everything, and then as many of its largest prompt as fit in a batch.

    Raises what goes wrong on the way, and `ExecutionTimeout` after a job's time. `folder` is made and removed.
    """
    check = _until(time.monotonic() + model.execution_timeout_s, check)
    try:
        load_s = engine.load(model, check=check)
        work = replace(processing.dummy(_modest(model), folder), model=model)
        begun = time.monotonic()
        largest = Largest()
        with processing.open(work, check=check, say=lambda _: None) as session:
            prompts = largest.watch(session.prompts)
            with closing(engine.run(model, prompts, check=check, cost=session.cost)) as outputs:
                session.finish(outputs)
        batch = 0 if largest.prompt is None else engine.fill(model, largest.prompt, check=check)
        return Warmth(round(load_s, 3), round(time.monotonic() - begun, 3), batch)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _modest(model: Model) -> Model:
    """Return the model with limits that make its dummy small, unless a device's memory is to be tried out with it.

    A CPU compiles nothing and has no batch to be found: there the dummy only shows that every part works.
    """
    torch = sys.modules.get("torch")  # imported by now, where there is anything to ask it
    if torch is not None and model.device != "cpu" and torch.cuda.is_available():
        return model
    limits = {name: min(getattr(model.limits, name) or most, most) for name, most in MODEST.items()}
    return model.model_copy(update={"limits": model.limits.model_copy(update=limits)})


def _until(ends_s: float, check: Check) -> Check:
    def checked() -> None:
        check()
        if time.monotonic() > ends_s:
            raise ExecutionTimeout("the warm-up took longer than a job may")

    return checked


@dataclass(slots=True)
class Largest:
    """Remembers the prompt with the greatest cost of those that pass."""

    prompt: Prompt | None = field(default=None)

    def watch(self, prompts: Iterator[Prompt]) -> Iterator[Prompt]:
        """Yield the prompts, and close them at the end."""
        try:
            for prompt in prompts:
                if self.prompt is None or prompt.cost > self.prompt.cost:
                    self.prompt = _copy(prompt)
                yield prompt
        finally:
            close = getattr(prompts, "close", None)
            if close is not None:
                close()


def _copy(prompt: Prompt) -> Prompt:
    """Copy the arrays: they may lie in memory that is used again once they were answered."""
    copies = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in prompt.data.items()}
    return replace(prompt, data=copies)
