"""Cutting a recording into passages at its quietest places, so that no word is cut in two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

#: Seconds of one step of loudness.
STEP_S = 0.02
#: Seconds of the shortest pause; a shorter quiet place may be a consonant.
_PAUSE_S = 0.3
#: The least length of a passage, as a share of the longest.
_LEAST = 2 / 3


class Loudness:
    """The loudness of a recording, step by step."""

    def __init__(self, rate_hz: int) -> None:
        self._step = round(rate_hz * STEP_S)
        self._rest = np.empty(0, np.float32)
        self._levels: list[npt.NDArray[np.float32]] = []
        self.samples = 0

    def add(self, block: npt.NDArray[np.float32]) -> None:
        """Add the next samples."""
        self.samples += len(block)
        together = np.concatenate([self._rest, block])
        whole = len(together) - len(together) % self._step
        self._levels.append(np.square(together[:whole]).reshape(-1, self._step).mean(axis=1))
        self._rest = together[whole:]

    def passages(self, longest_s: float) -> list[int]:
        """Return the samples of each passage, at most `longest_s` each. Together they are the recording."""
        levels = np.concatenate(self._levels) if self._levels else np.empty(0, np.float32)
        cuts = quiet_cuts(levels, -(-self.samples // self._step), round(longest_s / STEP_S))
        edges = [0, *(cut * self._step for cut in cuts), self.samples]
        return [end - begin for begin, end in pairwise(edges)]


def quiet_cuts(levels: npt.NDArray[np.floating[Any]], steps: int, longest: int) -> list[int]:
    """Return the cuts, each at the last of the quietest places, that leave no part of more than `longest` steps.

    `levels` has one value per whole step: `steps` or one less.
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
    """Yield blocks of samples as passages of these lengths; only one passage is in memory."""
    source, rest = iter(blocks), np.empty(0, np.float32)
    for length in lengths:
        parts, have = [rest], len(rest)
        while have < length and (block := next(source, None)) is not None:
            parts.append(block)
            have += len(block)
        together = np.concatenate(parts)
        yield together[:length]
        rest = together[length:]
