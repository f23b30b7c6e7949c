"""Autoscaling in a simulation: `wanted_workers` against the number of queued, and of queued and running jobs.

    python -m benchmarks.autoscaling [--seed 1] [--hours 6]

Four signals, one fleet: every 15 s as many workers are started as the signal asks for beyond those that live, up to 20.
A worker takes 20 s to start, runs two jobs at once, and leaves by itself when it had none for 60 s, so no signal ends a
busy one. The jobs are those of a mixed service: bursts of small pictures (0.1 to 1 s), single texts (2 to 10 s), and
scenes (30 to 400 s). Service times are random, arrivals the same for each signal. Cost is the time for which workers
live, as a multiple of the time for which their slots compute; a wait lasts from a job's arrival to its start.

A second table has scenes of one model alone, from one tile to hundreds, most of them small, which come in bursts of one
size. It compares what a waiting scene counts as: the model's mean, what the bytes of its file let expect, or its true
seconds, which nobody knows. A file has 0.3 to 1 MB for each tile, as it was compressed.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from penstock.scaling import Growth, Load, ScalingBounds, Waiting, by_size, wanted_workers

SLOTS, STARTS_S, IDLE_S, LOOKS_EVERY_S = 2, 20.0, 60.0, 15.0
BOUNDS = ScalingBounds(max_workers=20)
#: Seconds of execution of each kind of job, from and to.
KINDS = {"picture": (0.1, 1.0), "text": (2.0, 10.0), "scene": (30.0, 400.0)}

Signal = Callable[[Load], int]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job: its kind, the time of its arrival, and the seconds that it takes."""

    at_s: float
    kind: str
    takes_s: float
    #: Bytes and tiles of a scene's file.
    size: float | None = None
    tiles: int = 1


Rows = Callable[[Sequence[Arrival], float | None, Growth | None], Sequence[Waiting]]


@dataclass
class Fleet:
    """The simulated queue and its workers."""

    signal: Signal
    now_s: float = 0.0
    waiting: deque[Arrival] = field(default_factory=deque)
    #: Worker -> its running jobs.
    running: dict[int, int] = field(default_factory=dict)
    starting: int = 0
    #: Worker -> since when it has no job.
    idle_since_s: dict[int, float] = field(default_factory=dict)
    begun_s: dict[int, float] = field(default_factory=dict)
    lived_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    #: Moving averages of the kinds' seconds, as the queue keeps them.
    speeds_s: dict[str, float] = field(default_factory=dict)
    growths: dict[str, Growth] = field(default_factory=dict)
    #: Returns the rows of the waiting jobs of a kind, from the jobs, their mean in seconds, and the kind's growth.
    rows: Rows = lambda jobs, mean_s, _: (Waiting(len(jobs), mean_s),)
    most: int = 0
    _left: int = 0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)
    _workers: Iterator[int] = field(default_factory=count)

    def run(self, arrivals: Sequence[Arrival]) -> None:
        """Run until every job has ended and every worker has left."""
        self._left = len(arrivals)
        for job in arrivals:
            self._at(job.at_s, partial(self.waiting.append, job))
        self._at(0.0, self._look)
        while self._events:
            self.now_s, _, happens = heapq.heappop(self._events)
            happens()
            self._claim()

    def _at(self, time_s: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), happens))

    def _look(self) -> None:
        for _ in range(self.signal(self._load()) - len(self.running) - self.starting):
            self.starting += 1
            self._at(self.now_s + STARTS_S, partial(self._start, next(self._workers)))
        if self._left or self.running or self.starting:
            self._at(self.now_s + LOOKS_EVERY_S, self._look)

    def _start(self, worker: int) -> None:
        self.starting -= 1
        self.begun_s[worker] = self.now_s - STARTS_S
        self.running[worker] = 0
        self.most = max(self.most, len(self.running))
        self._rest(worker)

    def _claim(self) -> None:
        for worker, held in self.running.items():
            for _ in range(min(SLOTS - held, len(self.waiting))):
                job = self.waiting.popleft()
                self.running[worker] += 1
                self.idle_since_s.pop(worker, None)
                self.waits_s.append(self.now_s - job.at_s)
                self._at(self.now_s + job.takes_s, partial(self._end, worker, job))

    def _end(self, worker: int, job: Arrival) -> None:
        self._left -= 1
        self.running[worker] -= 1
        before = self.speeds_s.get(job.kind, job.takes_s)
        self.speeds_s[job.kind] = 0.8 * before + 0.2 * job.takes_s
        if job.size is not None:
            self.growths[job.kind] = self.growths.get(job.kind, Growth()).after(job.size, job.takes_s, job.tiles)
        if not self.running[worker]:
            self._rest(worker)

    def _rest(self, worker: int) -> None:
        self.idle_since_s[worker] = self.now_s
        self._at(self.now_s + IDLE_S, partial(self._leave, worker, self.now_s))

    def _leave(self, worker: int, idle_since_s: float) -> None:
        if self.idle_since_s.get(worker) == idle_since_s:
            del self.running[worker], self.idle_since_s[worker]
            self.lived_s += self.now_s - self.begun_s.pop(worker)

    def _load(self) -> Load:
        kinds: dict[str, list[Arrival]] = {}
        for job in self.waiting:
            kinds.setdefault(job.kind, []).append(job)
        rows = [
            row
            for kind, jobs in kinds.items()
            for row in self.rows(jobs, self.speeds_s.get(kind), self.growths.get(kind))
        ]
        held = list(self.running.values())
        return Load(rows, running=sum(held), busy=sum(1 for jobs in held if jobs), slots=SLOTS)


def sized(jobs: Sequence[Arrival], mean_s: float | None, growth: Growth | None) -> Sequence[Waiting]:
    """Return what the bytes of each scene let expect."""
    return by_size(len(jobs), mean_s, growth, [None if job.size is None else round(job.size) for job in jobs])


def known(jobs: Sequence[Arrival], _: float | None, __: Growth | None) -> Sequence[Waiting]:
    """Return the true seconds of each scene."""
    return [Waiting(1, job.takes_s) for job in jobs]


def queued_only(load: Load) -> int:
    """Return a worker for each waiting job."""
    return min(BOUNDS.max_workers, sum(each.jobs for each in load.waiting))


def queued_and_running(load: Load) -> int:
    """Return a worker for each waiting and running job."""
    return min(BOUNDS.max_workers, sum(each.jobs for each in load.waiting) + load.running)


def slots_of_queued_and_running(load: Load) -> int:
    """Return a slot for each waiting and running job."""
    return min(BOUNDS.max_workers, -(-(sum(each.jobs for each in load.waiting) + load.running) // SLOTS))


def wanted(load: Load) -> int:
    """Return `wanted_workers`."""
    return wanted_workers(load, BOUNDS)


SIGNALS: dict[str, Signal] = {
    "a worker for each queued job": queued_only,
    "a worker for each queued or running job": queued_and_running,
    "a slot for each queued or running job": slots_of_queued_and_running,
    "`wanted_workers`": wanted,
}


def arrivals(seed: int, hours: float) -> list[Arrival]:
    """Return the jobs of some hours, in the order of their arrival."""
    chance, end_s = random.Random(seed), hours * 3600  # noqa: S311  (no secret)
    found: list[Arrival] = []
    for kind, per_hour, burst in (("picture", 6, 200), ("text", 60, 1), ("scene", 4, 3)):
        now_s = chance.expovariate(per_hour / 3600)
        while now_s < end_s:
            found += [
                Arrival(now_s, kind, chance.uniform(*KINDS[kind])) for _ in range(chance.randint(1, 2 * burst - 1))
            ]
            now_s += chance.expovariate(per_hour / 3600)
    return sorted(found, key=lambda job: job.at_s)


def scenes(seed: int, hours: float) -> list[Arrival]:
    """Return the scenes of some hours: bursts of one size, most of them small."""
    chance, end_s, now_s = random.Random(seed), hours * 3600, 0.0  # noqa: S311  (no secret)
    found: list[Arrival] = []
    while (now_s := now_s + chance.expovariate(6 / 3600)) < end_s:
        side = chance.choice((1, 1, 2, 2, 3, 4, 12, 25))
        for _ in range(chance.randint(1, 40 if side < 10 else 6)):
            tiles = side * chance.randint(side, side + 2)
            takes_s = 0.3 + 0.6 * tiles * chance.uniform(0.9, 1.2)
            found.append(Arrival(now_s, "scene", takes_s, tiles * chance.uniform(0.3e6, 1e6), tiles))
    return found


def table(seed: int, hours: float) -> list[str]:
    """Return the lines of the table of signals."""
    return lines_of("signal", arrivals(seed, hours), {name: Fleet(signal) for name, signal in SIGNALS.items()})


def scenes_table(seed: int, hours: float) -> list[str]:
    """Return the lines of the table of scenes."""
    fleets = {"the model's mean": Fleet(wanted), "its bytes": Fleet(wanted, rows=sized)}
    fleets["its true seconds"] = Fleet(wanted, rows=known)
    return lines_of("a waiting scene counts as", scenes(seed, hours), fleets)


def lines_of(title: str, jobs: Sequence[Arrival], fleets: Mapping[str, Fleet]) -> list[str]:
    """Return the lines of a table: a row for each fleet, which runs all the jobs."""
    computed_s = sum(job.takes_s for job in jobs) / SLOTS
    lines = [f"| {title} | cost | most workers | wait p50 / p95 | the longest |", "| --- | --- | --- | --- | --- |"]
    for name, fleet in fleets.items():
        fleet.run(jobs)
        if len(fleet.waits_s) < len(jobs):
            raise AssertionError("a job was never begun")
        waits_s = sorted(fleet.waits_s)
        p50_s, p95_s = (waits_s[int(share * (len(waits_s) - 1))] for share in (0.5, 0.95))
        cells = (
            f"{fleet.lived_s / computed_s:.2f}",
            str(fleet.most),
            f"{p50_s:.0f} / {p95_s:.0f} s",
            f"{waits_s[-1]:.0f} s",
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=6)
    given = parser.parse_args()
    lines = [*table(given.seed, given.hours), "", *scenes_table(given.seed, given.hours)]
    sys.stdout.write("\n".join(lines) + "\n")
