"""The parameters of a scenario's run, and its line of output."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.arena import Arena, Summary, open_arena, percentile
from tests.chaos.checker import PATIENCE_S
from tests.support.ceph import Ceph


class CannotRun(Exception):
    """The machine or the code lacks a requirement of the scenario."""


@dataclass(frozen=True, slots=True)
class Run:
    """The parameters of a scenario's run."""

    folder: Path
    seed: int
    #: The sizes of the promise, or those of `make test`.
    full: bool = False
    durability: str = "manifest"
    #: Starts the S3 server, or returns the one that runs.
    ceph: Callable[[], Ceph] | None = None
    #: Less where a run that breaks should be given up soon.
    patience_s: float = 60.0

    def pick(self, short: int, full: int) -> int:
        """Return the size that is wanted."""
        return full if self.full else short

    def arena(self, **options: Any) -> AbstractContextManager[Arena]:
        """Open the arena of this run."""
        patience_s = 1800.0 if self.full else self.patience_s
        chosen: dict[str, Any] = {"patience_s": patience_s, "durability": self.durability, **options}
        return open_arena(self.folder, seed=self.seed, **chosen)

    def done(
        self, name: str, arena: Arena, begun: float, *, api_patience_s: float = PATIENCE_S, **counts: object
    ) -> Summary:
        """Have the checker look and return the summary."""
        arena.verdict(api_patience_s=api_patience_s)
        back = arena.recoveries_s()
        if back:
            counts |= {"orphans": len(back), "back_p50_s": f"{percentile(back, 0.5):.1f}"}
            counts |= {"back_max_s": f"{max(back):.1f}"}
        late = arena.queued_late_s()
        if late:
            counts |= {"queued_p50_s": f"{percentile(late, 0.5):.2f}", "queued_max_s": f"{max(late):.2f}"}
        wanted = len(arena.history.wanted)
        return Summary(name, self.seed, wanted, time.monotonic() - begun, counts)
