"""Faults of our own processes: killed, stopped, poisoned, restarted."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.chaos.arena import Summary
from tests.chaos.clients import jobs
from tests.chaos.history import Wanted
from tests.chaos.run import Run

#: Failpoints that every job passes, those of a worker that lives for a second, and those of a submit.
WORKER_MOMENTS = (
    "after_claim", "before_complete", "after_complete", "before_outcome", "after_outcome", "after_commit",
)  # fmt: skip
BEATS = ("before_heartbeat", "after_heartbeat")
KEEPER_MOMENTS = (
    "before_sweep", "after_sweep", "before_outcome", "after_outcome", "before_commit", "after_commit",
)  # fmt: skip
API_MOMENTS = ("after_submit", "before_request", "after_request", "after_confirm")


def deadly(names: Iterable[str], *, chance: float, limit: int) -> dict[str, Any]:
    """Return failpoints that kill."""
    return {name: {"action": "kill", "chance": chance, "limit": limit} for name in names}


def worker_kills(run: Run) -> Summary:
    """SIGKILL of workers, keeper and API at random and at every failpoint."""
    count, kills, each = run.pick(200, 10_000), run.pick(4, 100), run.pick(1, 10)
    chance = 30 * each / count
    worker = deadly(WORKER_MOMENTS, chance=chance, limit=each) | deadly(BEATS, chance=0.2, limit=each)
    api = deadly(API_MOMENTS, chance=chance, limit=each)
    begun = time.monotonic()
    with run.arena(workers=3, failpoints={"worker": worker, "api": api}) as arena:
        slow = jobs(count // 10, arena.receiver, takes_s=1.2)
        arena.submit([*slow, *jobs(count - len(slow), arena.receiver)])
        victims = [*arena.fleet.workers] * 3 + [arena.fleet.one("keeper"), arena.fleet.one("api")]
        struck: list[str] = []

        def strike() -> None:
            victim = arena.draws.choice(victims)
            victim.signal(signal.SIGKILL)
            struck.append(victim.name)

        def enough() -> bool:
            return sum(name.startswith("worker") for name in struck) >= kills

        arena.repeat(strike, every_s=(0.2, 1.2), enough=enough)
        arena.finish()
        hits = {name: arena.fleet.hit(name) for name in (*worker, *api) if arena.fleet.hit(name)}
        workers = sum(death.name.startswith("worker") for death in arena.deaths())
        assert workers >= kills, f"only {workers} workers died before the jobs were over"
        return run.done(
            "worker_kills", arena, begun, random_kills=len(struck), worker_deaths=workers,
            **{f"at_{name}": number for name, number in hits.items()},
        )  # fmt: skip


def cancels(run: Run) -> Summary:
    """Clients cancel every third job while workers, API and keeper die: each ends once, canceled or done before it."""
    count, kills = run.pick(60, 3000), run.pick(2, 40)
    points = {
        "worker": deadly(("before_outcome", "after_outcome"), chance=20 / count, limit=3),
        "api": deadly(("before_outcome", "after_outcome", "after_cancel"), chance=20 / count, limit=3),
        "keeper": deadly(KEEPER_MOMENTS, chance=0.1, limit=run.pick(1, 2)),
    }
    begun = time.monotonic()
    with run.arena(workers=3, failpoints=points) as arena:
        wanted = [replace(job, ends=("succeeded", "canceled")) for job in jobs(count, arena.receiver, takes_s=0.3)]
        arena.submit(wanted)
        victims = [*arena.fleet.workers, arena.fleet.one("keeper"), arena.fleet.one("api")]
        killed = 0

        def strike() -> None:
            nonlocal killed
            arena.draws.choice(victims).signal(signal.SIGKILL)
            killed += 1

        canceling = arena.cancel([job.id for job in wanted[::3]])
        arena.repeat(strike, every_s=(0.3, 1.2), enough=lambda: killed >= kills)
        canceling.join()
        arena.finish()
        ends = [arena.history.end(job.id) for job in wanted]
        canceled = sum(end is not None and end.status == "canceled" for end in ends)
        assert 0 < canceled <= len(wanted[::3]), f"{canceled} jobs were canceled"
        hits = sum(arena.fleet.hit(name) for name in {name for role in points.values() for name in role})
        return run.done("cancels", arena, begun, kills=killed, at_failpoints=hits, canceled=canceled)


def poison(run: Run) -> Summary:
    """A job that kills its workers among good ones: dead after three starts, and nobody else waits for it."""
    count = run.pick(30, 1000)
    begun = time.monotonic()
    with run.arena(workers=2, max_crashes=3) as arena:
        bad = [_ends(end, "worker_lost") for end in (("abort", "oom") if run.full else ("abort",))]
        # Long enough to be beside the poison when it kills: neighbours must not be taken for it.
        mixed = [*jobs(count, arena.receiver, takes_s=0.3)]
        for job in bad:
            mixed.insert(count // 3, job)
        arena.submit(mixed)
        arena.finish()
        deaths = sum(death.name.startswith("worker") for death in arena.deaths())
        assert deaths == 3 * len(bad), f"{deaths} workers died of {len(bad)} poisonous jobs"
        return run.done("poison", arena, begun, poisonous=len(bad), worker_deaths=deaths)


def _ends(end: str, code: str) -> Wanted:
    (job,) = jobs(1, end=end)
    return Wanted(job.id, job.input, ends=("failed",), code=code)
