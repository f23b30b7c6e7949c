"""Failpoints: exact moments at which a process of the chaos tests dies or stops. They exist in the test builds only.

`CHAOS_FAILPOINTS` holds JSON, `{"before_complete": {"action": "kill", "chance": 0.01, "limit": 5}}`; `CHAOS_HITS` is a
folder in which every hit leaves a file `<name>.<n>` with the process' id, which also counts hits over all processes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from penstock.storage.objects.base import ObjectInfo, ObjectStore
from penstock.storage.redis.records import AsyncJobStore, Command, JobStore

T = TypeVar("T")

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
#: Scripts around which a worker or an API may die: `before_<name>` and `after_<name>`.
SCRIPTS = ("submit", "confirm", "claim", "heartbeat", "complete", "commit", "release", "split")
#: Objects around whose put one may die.
OBJECTS = {"request.json": "request", "outcome.json": "outcome"}


@dataclass(frozen=True, slots=True)
class Failpoint:
    """The action at a moment: `kill` or `stop`, its probability, and its greatest number over all processes."""

    action: str = "kill"
    chance: float = 1.0
    limit: int = 1


@dataclass(frozen=True, slots=True)
class Failpoints:
    """The failpoints of this process."""

    points: Mapping[str, Failpoint]
    hits: Path
    draws: random.Random = field(default_factory=random.Random)

    @classmethod
    def from_environment(cls) -> Failpoints:
        """Return what `CHAOS_FAILPOINTS` says; none without it."""
        points = json.loads(os.environ.get("CHAOS_FAILPOINTS", "{}"))
        seed = f"{os.environ.get('CHAOS_SEED', '0')}-{os.getpid()}"
        hits = Path(os.environ.get("CHAOS_HITS", "."))
        return cls({name: Failpoint(**point) for name, point in points.items()}, hits, random.Random(seed))

    def hit(self, name: str) -> None:
        """Die or stop here, if that is what this moment is for."""
        point = self.points.get(name)
        if point is None or self.draws.random() >= point.chance or not self._take(name, point.limit):
            return
        os.kill(os.getpid(), _SIGNALS[point.action])

    def note_life(self, what: str, name: str) -> None:
        """Leave a file that tells since when a process claims jobs (`live`), sweeps (`sweeping`) or leaves (`left`).

        Without `CHAOS_HITS` there is no place for it.
        """
        if not self.hits.name:
            return
        folder = self.hits.with_name(what)
        folder.mkdir(exist_ok=True)
        whole = folder.with_name(f"{what}-{name}")  # a process may die here, and others read meanwhile
        whole.write_text(f"{os.getpid()} {time.time()}")
        whole.rename(folder / name)

    def _take(self, name: str, limit: int) -> bool:
        for number in range(limit):
            try:
                with (self.hits / f"{name}.{number}").open("x") as file:
                    file.write(str(os.getpid()))
            except FileExistsError:
                continue
            return True
        return False


class FailingStore(JobStore):
    """A `JobStore` with failpoints around its commands. `after_claim` counts only where a job was claimed."""

    failpoints: Failpoints
    _live = False
    _sweeps = False

    def run(self, command: Command[T]) -> T:
        """Run a command between two failpoints."""
        if command.script == "claim" and command.args["models"] and not self._live:
            self._live = True
            self.failpoints.note_life("live", str(command.args["worker"]))
        if command.script == "sweep" and not self._sweeps:
            self._sweeps = True
            self.failpoints.note_life("sweeping", str(os.getpid()))
        if command.script == "note" and command.args["op"] == "leave":
            self.failpoints.note_life("left", str(command.args["worker"]))
        self.failpoints.hit(f"before_{command.script}")
        reply = super().run(command)
        if command.script != "claim" or reply:
            self.failpoints.hit(f"after_{command.script}")
        return reply


class FailingAsyncStore(AsyncJobStore):
    """An `AsyncJobStore` with failpoints around its commands."""

    failpoints: Failpoints

    async def run(self, command: Command[T]) -> T:
        """Run a command between two failpoints."""
        self.failpoints.hit(f"before_{command.script}")
        reply = await super().run(command)
        self.failpoints.hit(f"after_{command.script}")
        return reply


class FailingObjects:
    """An `ObjectStore` with failpoints around the puts of `OBJECTS`; everything else goes straight through."""

    def __init__(self, objects: ObjectStore, failpoints: Failpoints) -> None:
        self._objects = objects
        self._failpoints = failpoints

    def put_bytes(self, key: str, data: bytes, *, content_type: str, if_absent: bool = False) -> ObjectInfo:
        """Store bytes between two failpoints."""
        self._hit("before", key)
        info = self._objects.put_bytes(key, data, content_type=content_type, if_absent=if_absent)
        self._hit("after", key)
        return info

    def _hit(self, when: str, key: str) -> None:
        name = OBJECTS.get(key.rpartition("/")[2])
        if name is not None:
            self._failpoints.hit(f"{when}_{name}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)
