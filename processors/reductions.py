"""Reductions of a network's scores: a runner that can makes them on its device, so that fewer bytes leave it.

A prompt may have a `probability.reduce`, one of `Reduction`. A runner that reduces then gives `probability.reduced`
instead of `probability`: uint8 (1 + channels, H, W), the class ids and the quantised probabilities behind them. Other
runners give the scores, and the processor reduces them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from enum import StrEnum
from typing import Final

from penstock.processors.base import Prompt
from penstock.processors.prompt_names import REDUCE

#: Quantised probabilities are whole numbers of steps of 1/254; 255 is left for pixels without data.
STEPS: Final = 254
#: Class ids are below this number.
_MOST_CLASSES = 255


class Reduction(StrEnum):
    """A reduction of scores (classes, H, W) with sum 1."""

    #: The index of the largest score, the smallest of equal ones.
    CLASSES = "classes"
    #: The class, and its score in steps.
    CONFIDENCE = "confidence"
    #: The class, and all scores in steps.
    PROBABILITY = "probability"

    def channels(self, classes: int) -> int:
        """Return the channels of the answer."""
        return 1 + {Reduction.CLASSES: 0, Reduction.CONFIDENCE: 1, Reduction.PROBABILITY: classes}[self]


def reduction_for(outputs: Collection[str], classes: int) -> Reduction | None:
    """Return the smallest reduction from which a segmentation makes its outputs; None if scores are needed."""
    if "probability_float32" in outputs or classes > _MOST_CLASSES:
        return None
    if "probability" in outputs:
        return Reduction.PROBABILITY
    return Reduction.CONFIDENCE if "confidence" in outputs else Reduction.CLASSES


def without_request(prompt: Prompt) -> Prompt:
    """Return a prompt that asks for scores."""
    if REDUCE not in prompt.data:
        return prompt
    return replace(prompt, data={name: value for name, value in prompt.data.items() if name != REDUCE})
