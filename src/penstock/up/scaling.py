"""Deciding how many workers `penstock up` starts. Pure: the counts and the time come in, the number of starts goes out.

The driver only adds workers. They leave by themselves when they are idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.errors import ConfigError
from penstock.up.children import pause_s

#: Seconds without a start after a worker left that had found no job, though jobs wanted it; doubles up to the longest.
FRUITLESS_PAUSE_S, LONGEST_PAUSE_S = 30.0, 600.0


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers of workers on this machine: so many always, and so many at most."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Range:
        """Return the range of `2` or `0..4`; `ConfigError` for anything else."""
        first, dots, last = text.partition("..")
        if not first.isdecimal() or not (last.isdecimal() if dots else True):
            raise ConfigError(f"--workers {text} is neither a number nor a range such as 0..4")
        least, most = int(first), int(last if dots else first)
        if most < max(1, least):
            raise ConfigError(f"--workers {text}: at most {most} workers, which is fewer than {max(1, least)}")
        return cls(least, most)


ONE_WORKER = Range(1, 1)


@dataclass(frozen=True, slots=True)
class Counts:
    """The workers of a queue or of several, on all machines, and the work for them."""

    #: Workers that are wanted.
    wanted: int
    #: Jobs that wait for a slot.
    waiting: int
    #: Living workers that claim jobs.
    claiming: int = 0
    #: Workers that were started and have not reported yet.
    starting: int = 0
    #: Processes of workers on this machine.
    here: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers that the driver starts on this machine: their failures, and the earliest time of the next start."""

    most: int
    #: Workers that ended right after their start, one after the other.
    failures: int = 0
    #: Workers that left without having had a job, one after the other.
    fruitless: int = 0
    #: Time before which no worker is started.
    due_s: float = 0.0
    #: Jobs that waited when the last worker left without a job: more end the pause.
    in_vain: int | None = None

    def missing(self, *counts: Counts, at: float) -> int:
        """Return the number of workers to start now: each of them serves all the queues that were counted.

        `counts` has the counts of each queue, because a worker cannot run jobs of another queue, and the counts of all
        queues together, because a worker that is busy in one queue cannot serve another. The largest lack decides.
        """
        waiting = max((each.waiting for each in counts), default=0)
        if at < self.due_s and (self.in_vain is None or waiting <= self.in_vain):
            return 0
        return max((self._lacking(each) for each in counts), default=0)

    def _lacking(self, counts: Counts) -> int:
        """Return the number of workers that these queues lack.

        Running jobs have their workers, so nothing starts where no job waits. Workers that drain, and the jobs that
        they run, are left out of the counts.
        """
        if counts.waiting <= 0:
            return 0
        return max(0, min(counts.wanted - counts.claiming - counts.starting, self.most - counts.here))

    def failed(self, *, at: float) -> Pool:
        """Return the pool after a worker ended with an error: the pause grows with each one."""
        return replace(self, failures=self.failures + 1, due_s=at + pause_s(self.failures), in_vain=None)

    def left(self, *, jobs: int, waiting: int, at: float) -> Pool:
        """Return the pool after a worker left by itself after `jobs` jobs, while `waiting` jobs still wait.

        If no worker of this pool can claim the waiting jobs, a pause avoids starting workers that find no job.
        """
        if jobs or not waiting:
            return replace(self, failures=0, fruitless=0, due_s=at, in_vain=None)
        pause = min(LONGEST_PAUSE_S, FRUITLESS_PAUSE_S * 2**self.fruitless)
        return replace(self, failures=0, fruitless=self.fruitless + 1, due_s=at + pause, in_vain=waiting)

    def well(self) -> Pool:
        """Return the pool after a worker has lived for a while."""
        return replace(self, failures=0)
