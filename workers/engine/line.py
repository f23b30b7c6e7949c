"""The line of batches before a model's process: when the next batch begins while one is under way. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final

#: Batches that a process has at a time: one that it works on, and one that is ready when that ends.
DEPTH: Final = 2
#: Seconds before the expected end of a batch at which the next one goes, even if it is not full: about the time in
#: which 20 MB of pictures reach the process. At most half of a batch's time: later prompts would miss the batch.
LEAD_S: Final = 0.008


@dataclass(slots=True, eq=False)
class BatchLine:
    """The batches of one model that are under way."""

    #: Times at which they began, or were first in line, in seconds.
    begun: list[float] = field(default_factory=list)
    #: Seconds of the latest batch's step; infinite before the first.
    step_s: float = inf

    def add(self, *, at: float) -> None:
        """Note that a batch begins."""
        self.begun.append(at)

    def end(self, step_s: float, *, at: float) -> None:
        """Note that the first batch has ended, after `step_s` seconds on the device (0: it failed)."""
        self.begun = [at for _ in self.begun[1:]]
        self.step_s = step_s or self.step_s

    @property
    def is_full(self) -> bool:
        """True if no batch may begin."""
        return len(self.begun) >= DEPTH

    def opens_s(self, *, at: float) -> float:
        """Return the seconds until a batch that is not full may begin: 0 if it may, infinite if one must end before."""
        if not self.begun:
            return 0.0
        if self.is_full:
            return inf
        return max(0.0, self.begun[0] + self.step_s - min(LEAD_S, self.step_s / 2) - at)
