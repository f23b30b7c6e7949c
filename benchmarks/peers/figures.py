"""Figures of a peer and a work, and their tables in Markdown. Pure: measured numbers come in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

#: The row that the others are compared with.
BASE = "Penstock, durability redis"


@dataclass(frozen=True, slots=True)
class Measured:
    """The jobs of one run without faults: all of them succeeded."""

    #: Seconds of each job from its submission to its answer.
    latencies_s: tuple[float, ...]
    #: Seconds from the first submission to the last answer.
    took_s: float
    #: Processor seconds of all processes of the peer, with its broker.
    processor_s: float
    #: The most memory that all these processes held at one time; pages that they share count once.
    peak_bytes: int

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return len(self.latencies_s) / self.took_s

    @property
    def processor_s_per_job(self) -> float:
        """Processor seconds of a job."""
        return self.processor_s / len(self.latencies_s)


@dataclass(frozen=True, slots=True)
class Killed:
    """The jobs of one run in the middle of which the worker was killed."""

    jobs: int
    #: Jobs that were accepted, or sent, and had no answer within the time that the work allows.
    lost: int
    #: Seconds from the kill to the first answer to a job that was sent after it; None if there was none.
    back_s: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A peer's result for a work: figures, or the reason why there are none."""

    peer: str
    measured: Measured | None = None
    killed: Killed | None = None
    #: The reason why it did not run, or the difference to the others' work.
    note: str = ""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` (0 to 1) of the values do not exceed; raise `ValueError` for none."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def table(title: str, rows: Iterable[Row]) -> str:
    """Return a work's table: a line for each peer, with ratios to `BASE` where that row has figures."""
    rows = list(rows)
    base = next((row.measured for row in rows if row.peer == BASE), None)
    head = (
        f"**{title}**\n\n"
        "| peer | jobs/s | ratio | p50 / p99 | processor time a job | ratio | peak memory | lost at a kill | note |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    return "\n".join([head, *(_line(row, base) for row in rows)])


def _line(row: Row, base: Measured | None) -> str:
    cells = ["-"] * 6
    if row.measured is not None:
        found = row.measured
        spread = " / ".join(duration(percentile(found.latencies_s, share)) for share in (0.5, 0.99))
        cells = [
            rate(found.rate), _ratio(found.rate, base and base.rate), spread, duration(found.processor_s_per_job),
            _ratio(found.processor_s_per_job, base and base.processor_s_per_job), f"{found.peak_bytes / 1e6:,.0f} MB",
        ]  # fmt: skip
    return f"| {row.peer} | {' | '.join(cells)} | {_lost(row.killed)} | {_cell(row.note)} |"


def _lost(killed: Killed | None) -> str:
    if killed is None:
        return "-"
    back = "" if killed.back_s is None else f", back after {duration(killed.back_s)}"
    return f"{killed.lost} of {killed.jobs}{back}"


def _ratio(value: float, base: float | None) -> str:
    return f"{value / base:.2f}" if base else "-"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def rate(per_s: float) -> str:
    """Return jobs per second with three digits or more."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def duration(seconds: float) -> str:
    """Return seconds, or milliseconds below a second."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
