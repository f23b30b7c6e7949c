"""The states that workers report, for display only. Commands, as in `records.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.formats import BESIDE, beside, inside, known
from penstock.observation.listening import RecentLine
from penstock.storage.redis.fields import MICRO, dump, us
from penstock.storage.redis.scripts import Command, query

#: Seconds for which the log lines of a worker are kept after its end: operators look for the reason.
LINES_S = 3600.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a worker can run."""

    name: str
    ready: bool
    #: Its weights are on the device.
    loaded: bool
    #: Prompts in its latest batch on the device; None before the first.
    batch_size: int | None
    #: Bytes of cached encodings; None without a cache.
    encoder_cache_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The latest state of a worker."""

    host: str
    started_s: float
    queues: tuple[str, ...]
    slots: int
    #: `cpu`, or the name of the accelerator.
    device: str
    draining: bool
    models: tuple[ServedModel, ...]
    #: Share of about the last minute in which the device computed; None from a release that does not report it.
    device_busy: float | None = field(default=None, metadata=BESIDE)
    #: Id of its process on the host; None from a release that does not report it.
    pid: int | None = field(default=None, metadata=BESIDE)


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A living worker with the number of its running jobs."""

    id: str
    running: int
    state: WorkerState


def report(
    worker: str, state: WorkerState, lines: Sequence[RecentLine] | None = (), *, alive_s: float
) -> Command[bool]:
    """Store the state of a worker, for `alive_s`, and its latest log lines, for `LINES_S` more.

    `lines` are None where they are those of the latest report. False where Redis lost these: report them again.
    """
    row = asdict(state)
    about, more = dump(inside(WorkerState, row)), dump(beside(WorkerState, row))
    rows = None if lines is None else dump([[us(line.at_s), line.level, line.text] for line in lines])
    return Command("worker_state", {
        "worker": worker, "about": about, "more": more, "busy_us": us(state.device_busy or 0.0), "lines": rows,
        "alive_us": us(alive_s), "lines_us": us(alive_s + LINES_S),
    }, bool)  # fmt: skip


def recent_lines(worker: str) -> Command[tuple[RecentLine, ...] | None]:
    """Return the latest log lines of a worker, the oldest first; None for a worker without a report."""
    return query("worker_lines", _lines, worker=worker)


def _lines(reply: str | None) -> tuple[RecentLine, ...] | None:
    if reply is None:
        return None
    return tuple(RecentLine(int(at_us) / MICRO, level, text) for at_us, level, text, *_ in json.loads(reply))


def living() -> Command[tuple[LiveWorker, ...]]:
    """Return the living workers, oldest first."""
    return Command("workers", {}, _living)


def _living(rows: list[Any]) -> tuple[LiveWorker, ...]:
    found = [
        LiveWorker(worker, int(running), _state({**json.loads(about), **json.loads(more or "{}")}))
        for about, running, worker, more in rows
    ]
    return tuple(sorted(found, key=lambda live: (live.state.started_s, live.id)))


def _state(about: Mapping[str, Any]) -> WorkerState:
    models = tuple(ServedModel(**known(ServedModel, model)) for model in about["models"])
    return WorkerState(**{**known(WorkerState, about), "queues": tuple(about["queues"]), "models": models})
