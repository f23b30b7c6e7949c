"""Scores of classes on a device of torch, reduced there as their prompts ask (see `processors.reductions`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import torch
from torch import Tensor

from penstock.processors.base import Array, Prompt
from penstock.processors.prompt_names import REDUCE, REDUCED
from penstock.processors.reductions import STEPS, Reduction
from penstock.workers.engine.torch.device import arrays_of, class_ids

#: Name of the scores in an output.
SCORES = "probability"


def reduction_of(prompt: Prompt) -> Reduction | None:
    """Return the reduction that a prompt asks for."""
    asked = prompt.data.get(REDUCE)
    return None if asked is None else Reduction(asked)


def answers_of(scores: Tensor, reductions: Sequence[Reduction | None]) -> list[dict[str, Array]]:
    """Return the outputs of float32 scores (N, classes, H, W), each reduced as its prompt asks."""
    found: list[dict[str, Array]] = [{} for _ in reductions]
    for reduction in dict.fromkeys(reductions):
        places = [place for place, each in enumerate(reductions) if each == reduction]
        some = scores if len(places) == len(reductions) else scores[places]
        arrays = arrays_of(some if reduction is None else reduced(some, reduction))
        for place, array in zip(places, arrays, strict=True):
            found[place] = {SCORES if reduction is None else REDUCED: array}
    return found


def reduced(scores: Tensor, reduction: Reduction) -> Tensor:
    """Return uint8 (N, channels, H, W): with the bits of numpy's reduction on a CPU."""
    ids = class_ids(scores)[:, None]
    match reduction:
        case Reduction.CLASSES:
            return ids
        case Reduction.CONFIDENCE:
            return torch.cat((ids, _steps(scores.amax(dim=1, keepdim=True))), dim=1)
        case Reduction.PROBABILITY:
            return torch.cat((ids, _steps(scores)), dim=1)
        case _:
            assert_never(reduction)


def _steps(scores: Tensor) -> Tensor:
    return scores.clamp(0, 1).mul_(STEPS).round_().to(torch.uint8)
