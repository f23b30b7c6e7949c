"""The difference between a model's outputs in its record's number type and in float32, for `penstock models check`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.processors.prompt_names import REDUCED, VALID
from penstock.workers.engine.base import Check, Engine
from penstock.workers.processing import Processing, Work
from penstock.workers.warmup import copied

#: Runners that read a record's `dtype`.
WITH_DTYPE: Final = ("terratorch", "torch", "transformers")
#: Processors whose networks answer a prompt in one pass with classes, scores or numbers: quick to compute twice.
_COMPARED: Final = frozenset({
    "audio-classification", "depth-estimation", "image-classification", "image-embedding", "image-segmentation",
    "raster-regression", "raster-segmentation", "video-classification", "video-segmentation",
})  # fmt: skip
#: Outputs with one score for each class on the first axis, and outputs of class ids.
_SCORES: Final = frozenset({"probability", "logits"})
_IDS: Final = frozenset({"classes"})
#: Outputs of numbers that are no scores.
_NUMBERS: Final = frozenset({"values", "depth", "embedding"})

Labels = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between a model's outputs in its own number type and in float32."""

    #: Name of the file that was computed, or `noise`.
    sample: str
    #: Compared labels of classes, without pixels that the prompt marks as having no data.
    labels: int
    #: Labels that differ.
    differing: int
    #: `differing` of `labels`, from 0 to 1; None without labels.
    share: float | None
    #: Largest absolute difference of numeric outputs; infinite if a number is NaN in the model's own type only; None
    #: without numeric outputs. Values that are not finite in float32 are left out.
    largest_difference: float | None
    #: Largest absolute number of these outputs in float32.
    largest_number: float | None

    def __str__(self) -> str:
        """Return one sentence for a person; empty if nothing was compared."""
        if self.share is not None:
            count = f"{self.differing:,} of {self.labels:,} labels"
            return f"{100 * self.share:.2g} % of the labels of {self.sample} differ from float32 ({count})"
        if self.largest_difference is None:
            return ""
        largest = f"{self.largest_difference:.2g} (largest number: {self.largest_number:.3g})"
        return f"the outputs of {self.sample} differ from float32 by up to {largest}"


@dataclass(slots=True)
class Tally:
    """Sums up the differences between pairs of outputs."""

    labels: int = 0
    differing: int = 0
    largest_difference: float | None = None
    largest_number: float | None = None

    def add(self, prompt: Prompt, own: Output, exact: Output) -> None:
        """Compare the outputs of a prompt in the model's own number type and in float32."""
        for name in own.data.keys() & exact.data.keys():
            one, other = own.data[name], exact.data[name]
            if (ids := _labels(name, one)) is not None and (expected := _labels(name, other)) is not None:
                self._add_labels(ids, expected, prompt.data.get(VALID))
            elif name in _NUMBERS:
                self._add_numbers(np.asarray(one, np.float64), np.asarray(other, np.float64))

    def result(self, sample: str) -> Difference:
        """Return the difference so far."""
        share = self.differing / self.labels if self.labels else None
        return Difference(sample, self.labels, self.differing, share, self.largest_difference, self.largest_number)

    def _add_labels(self, ids: Labels, expected: Labels, valid: Any) -> None:
        differ = ids != expected
        if valid is not None and valid.shape == differ.shape:
            differ = differ[valid]
        self.labels += differ.size
        self.differing += int(np.count_nonzero(differ))

    def _add_numbers(self, own: npt.NDArray[np.float64], exact: npt.NDArray[np.float64]) -> None:
        finite = np.isfinite(exact)  # networks may answer "no number" for pixels without data
        if not finite.any():
            return
        differences = np.abs(own[finite] - exact[finite])
        largest = float(np.where(np.isnan(differences), np.inf, differences).max())
        self.largest_difference = max(self.largest_difference or 0.0, largest)
        self.largest_number = max(self.largest_number or 0.0, float(np.abs(exact[finite]).max()))


def is_compared(model: Model) -> bool:
    """Return True for a model in another number type than float32 whose outputs are quick to compute twice."""
    return model.dtype != "float32" and model.runner in WITH_DTYPE and model.processor in _COMPARED


def compare(work: Work, processing: Processing, engine: Engine, *, sample: str, check: Check) -> Difference:
    """Run a request through its model, and each prompt through the same model in float32 too.

    Both networks are loaded at a time. Raises every error on the way.
    """
    model = work.model
    exact = model.model_copy(update={"dtype": "float32", "revision": f"{model.revision}, in float32"})
    tally, waiting = Tally(), deque[Prompt]()

    def answer(prompt: Prompt) -> Output:
        with closing(engine.run(exact, iter([prompt]), check=check, ready=True)) as outputs:
            return next(output for output in outputs if not output.partial)

    with processing.open(work, check=check, say=lambda _: None) as session:
        prompts = _watched(session.prepared.prompts, waiting)
        with closing(engine.run(model, prompts, check=check, cost=session.prepared.cost)) as outputs:
            session.finish(_tallied(outputs, waiting, answer, tally))
    return tally.result(sample)


def _watched(prompts: Iterator[Prompt], waiting: deque[Prompt]) -> Iterator[Prompt]:
    """Yield prompts, and keep a copy of each until it is answered; close them at the end."""
    try:
        for prompt in prompts:
            waiting.append(copied(prompt))
            yield prompt
    finally:
        close = getattr(prompts, "close", None)
        if close is not None:
            close()


def _tallied(
    outputs: Iterator[Output], waiting: deque[Prompt], answer: Callable[[Prompt], Output], tally: Tally
) -> Iterator[Output]:
    """Yield outputs, and compare each with the answer to its prompt in float32."""
    for output in outputs:
        if not output.partial:
            prompt = waiting.popleft()
            tally.add(prompt, output, answer(prompt))
        yield output


def _labels(name: str, value: Any) -> Labels | None:
    """Return the class ids of an output, in any shape; None for an output without classes."""
    array = np.asarray(value) if name in (*_SCORES, *_IDS, REDUCED) else np.empty(0)
    if not array.ndim or not array.size:
        return None
    if name in _SCORES:
        return np.asarray(array.argmax(axis=0))
    return array[0] if name == REDUCED else array
