"""Cutting a recording into passages that are heard one by one: where it is quietest, so that no word is cut in two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

#: How finely loudness is looked at.
STEP_S = 0.02
#: A pause is at least so long: what is quieter and shorter may be a consonant.
_PAUSE_S = 0.3
#: A passage has at least this share of the longest one.
_LEAST = 2 / 3


class Loudness:
    """The loudness of a recording, step by step, however its samples come."""

    def __init__(self, rate_hz: int) -> None:
        self._step = round(rate_hz * STEP_S)
        self._rest = np.empty(0, np.float32)
        self._levels: list[npt.NDArray[np.float32]] = []
        self.samples = 0

    def hear(self, block: npt.NDArray[np.float32]) -> None:
        """Take the next samples."""
        self.samples += len(block)
        together = np.concatenate([self._rest, block])
        whole = len(together) - len(together) % self._step
        self._levels.append(np.square(together[:whole]).reshape(-1, self._step).mean(axis=1))
        self._rest = together[whole:]

    def passages(self, longest_s: float) -> list[int]:
        """Return how many samples each passage has: `longest_s` at most, all of the recording together."""
        levels = np.concatenate(self._levels) if self._levels else np.empty(0, np.float32)
        cuts = quiet_cuts(levels, -(-self.samples // self._step), round(longest_s / STEP_S))
        edges = [0, *(cut * self._step for cut in cuts), self.samples]
        return [end - begin for begin, end in pairwise(edges)]


def quiet_cuts(levels: npt.NDArray[np.floating[Any]], steps: int, longest: int) -> list[int]:
    """Return where to cut so many steps that no part has more than `longest`, each in the last of the quietest places.

    `levels` are those of the whole steps, of which there may be one less.
    """
    pause = max(1, round(_PAUSE_S / STEP_S))
    quiet = np.convolve(levels, np.ones(pause), mode="same") if len(levels) >= pause else levels
    cuts: list[int] = []
    begin = 0
    while steps - begin > longest:
        choice = quiet[begin + max(1, int(longest * _LEAST)) : begin + longest + 1]
        begin += longest - int(np.argmin(choice[::-1]))
        cuts.append(begin)
    return cuts


def joined(blocks: Iterable[npt.NDArray[np.float32]], lengths: Sequence[int]) -> Iterator[npt.NDArray[np.float32]]:
    """Yield blocks of samples as passages of these lengths; only one of them is in memory."""
    source, rest = iter(blocks), np.empty(0, np.float32)
    for length in lengths:
        parts, have = [rest], len(rest)
        while have < length and (block := next(source, None)) is not None:
            parts.append(block)
            have += len(block)
        together = np.concatenate(parts)
        yield together[:length]
        rest = together[length:]
