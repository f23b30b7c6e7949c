"""Sampling of the next token.

Each choice has a random number made from the seed and the token's position, whatever else is in the batch.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of sampling; with `temperature` 0 always the likeliest token."""

    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Sampling:
        """Read a prompt's plain data; raise `InvalidInput`.

        `max_new_tokens` is required; `temperature` defaults to 0, `top_p` to 1, `seed` to a random number.
        """
        count, seed = data.get("max_new_tokens"), data.get("seed")
        temperature, top_p = data.get("temperature"), data.get("top_p")
        temperature, top_p = 0.0 if temperature is None else temperature, 1.0 if top_p is None else top_p
        if type(count) is not int or count < 1:
            raise InvalidInput("`max_new_tokens` is a whole number of at least 1")
        if not _is_number(temperature) or not 0 <= temperature < math.inf:
            raise InvalidInput("`temperature` is a number of at least 0")
        if not _is_number(top_p) or not 0 < top_p <= 1:
            raise InvalidInput("`top_p` is a number above 0 and up to 1")
        if seed is not None and (type(seed) is not int or seed < 0):
            raise InvalidInput("`seed` is a whole number of at least 0")
        return cls(count, float(temperature), float(top_p), secrets.randbits(63) if seed is None else seed)

    def choose(self, logits: Tensor, position: int) -> int:
        """Return the token at a position (0 = the first new one) from its logits (vocabulary,)."""
        if self.temperature == 0:
            return int(logits.argmax())
        probabilities, tokens = torch.softmax(logits.double() / self.temperature, dim=0).sort(descending=True)
        below = probabilities.cumsum(dim=0)
        # The fewest of the likeliest tokens whose probabilities sum to `top_p`.
        kept = int((below - probabilities < self.top_p).sum())
        draw = np.random.default_rng((self.seed, position)).random() * float(below[kept - 1])
        return int(tokens[min(int((below[:kept] <= draw).sum()), kept - 1)])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
