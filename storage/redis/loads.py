"""Loads of models that ended their processes, by machine, and those that ended well. Commands, as in `records.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from penstock.storage.redis.fields import MICRO, dump, us
from penstock.storage.redis.scripts import Arg, Command, query

#: Seconds until a machine tries a model again after its first failed load, and at most; the time doubles in between.
FIRST_S, MOST_S = 2.0, 60.0
#: Machines whose loads must have failed until no further one tries the model.
MANY_MACHINES = 3
#: Seconds for which a failed load counts towards `MANY_MACHINES`.
KEEP_S = 86_400.0


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """The latest load of a model on a machine, which ended its process."""

    model: str
    machine: str
    #: Digest of the model's record.
    record: str
    #: Failed loads in a row.
    count: int
    #: Time of the failure, in seconds since 1970.
    at_s: float
    #: Seconds until the machine tries the model again; 0 if it may.
    wait_s: float
    #: The end of the load: "was ended by SIGABRT".
    how: str
    #: Its last lines.
    lines: tuple[str, ...]


def load_failed(model: str, machine: str, *, record: str, how: str, lines: tuple[str, ...]) -> Command[float]:
    """Store a failed load; return the seconds until the machine may try again."""
    args: dict[str, Arg] = {
        "op": "load_failed", "model": model, "machine": machine, "record": record, "how": how, "lines": dump(lines),
        "first_us": us(FIRST_S), "most_us": us(MOST_S), "keep_us": us(KEEP_S), "many": MANY_MACHINES,
    }  # fmt: skip
    return Command("note", args, lambda reply: int(reply) / MICRO)


def load_succeeded(model: str, machine: str) -> Command[bool]:
    """Forget a machine's failed loads of a model; return True if there were any."""
    return Command("note", {"op": "load_succeeded", "model": model, "machine": machine}, bool)


def load_failures() -> Command[tuple[LoadFailure, ...]]:
    """Return the latest load of each model and machine where it ended its process, by model and machine."""
    return query("load_failures", _failures)


def store_passed(model: str, device_class: str, mark: str) -> Command[bool]:
    """Remember that a model's load ended well on a kind of machine; `mark` is that of its record and software."""
    return Command("note", {"op": "load_passed", "model": model, "class": device_class, "mark": mark}, bool)


def passed(model: str, device_class: str) -> Command[str | None]:
    """Return the mark of a model's load that ended well on a kind of machine."""
    return query("load_passed", lambda reply: reply, model=model, **{"class": device_class})


def retry(model: str) -> Command[int]:
    """Forget all that is known of a model's loads, so that workers try it again; return the number of machines."""
    return Command("note", {"op": "load_retry", "model": model}, int)


def _failures(flat: list[Any]) -> tuple[LoadFailure, ...]:
    now_us, rows = int(flat[0]), zip(flat[1::3], flat[2::3], flat[3::3], strict=True)
    found = [_failure(model, machine, json.loads(row), now_us) for model, machine, row in rows]
    return tuple(sorted(found, key=lambda one: (one.model, one.machine)))


def _failure(model: str, machine: str, row: dict[str, Any], now_us: int) -> LoadFailure:
    wait_s = max(0, int(row["until_us"]) - now_us) / MICRO
    lines = tuple(json.loads(row["lines"]))
    return LoadFailure(
        model, machine, row["record"], int(row["count"]), int(row["at_us"]) / MICRO, wait_s, row["how"], lines
    )
