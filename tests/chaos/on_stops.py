"""Stops of our own processes: SIGSTOP past a lease, and SIGTERM."""

from __future__ import annotations

import signal
import time

from tests.chaos.arena import Arena, Summary
from tests.chaos.clients import jobs
from tests.chaos.run import Run

#: Seconds of a lease where workers restart: the product's default.
ROLLING_LEASE_S = 30.0


def zombies(run: Run) -> Summary:
    """SIGSTOP past the lease, then SIGCONT: what the zombie still says is refused."""
    count, stops = run.pick(40, 2000), run.pick(1, 30)
    points = {f"worker{n}": {"before_complete": {"action": "stop", "chance": 1.0, "limit": 2}} for n in (0, 1)}
    begun = time.monotonic()
    with run.arena(failpoints=points, slots=1) as arena:
        _zombie_meets_heir(arena)
        arena.submit(jobs(count, arena.receiver, takes_s=0.15))
        stopped = 0

        def strike() -> None:
            nonlocal stopped
            victim = arena.draws.choice(arena.fleet.workers)
            victim.signal(signal.SIGSTOP)
            arena.struck.append(time.time())
            arena.history.all_over.wait(arena.fleet.settings.lease_s + 1.5)
            victim.signal(signal.SIGCONT)
            stopped += 1

        arena.repeat(strike, every_s=(0.1, 0.8), enough=lambda: stopped >= stops)
        arena.finish()
        return run.done("zombies", arena, begun, stops=stopped)


def _zombie_meets_heir(arena: Arena) -> None:
    """Stop a worker before its complete, its job's next worker at the same moment, and wake them in this order."""
    arena.submit(jobs(1, arena.receiver))
    hits = arena.fleet.hits
    for number in (0, 1):
        arena.until((hits / f"before_complete.{number}").exists)
        arena.struck.append(time.time())
    workers = {worker.pid: worker for worker in arena.fleet.workers}
    for number in (0, 1):
        workers[int((hits / f"before_complete.{number}").read_text())].signal(signal.SIGCONT)
        arena.history.all_over.wait(0.5)
    arena.finish()


def rolling_restarts(run: Run) -> Summary:
    """SIGTERM to one worker after the other: no attempt is consumed, nothing crashes.

    The lease is long: only a job that a worker kept to itself may lose it, and not one beside which the disk stalled.
    """
    count, rounds = run.pick(36, 1000), run.pick(1, 15)
    begun = time.monotonic()
    with run.arena(workers=3, lease_s=ROLLING_LEASE_S) as arena:
        arena.submit(jobs(count, arena.receiver, takes_s=0.6))
        restarted = 0

        def restart() -> None:
            nonlocal restarted
            victim = arena.fleet.workers[restarted % len(arena.fleet.workers)]
            before = len(victim.deaths)
            arena.until(lambda: victim.handles(signal.SIGTERM))  # on a slow machine it may still be starting
            victim.signal(signal.SIGTERM)
            arena.until(lambda: len(victim.deaths) > before)
            restarted += 1

        arena.repeat(restart, every_s=(0.3, 0.6), enough=lambda: restarted >= rounds * 3)
        arena.finish()
        codes = {death.code for death in arena.deaths()}
        assert codes == {0}, f"workers ended with {codes}\n{arena.fleet.logs(4000)}"
        assert set(arena.attempts()) == {1}, f"attempts were consumed: {arena.past_attempts()}"
        return run.done("rolling_restarts", arena, begun, restarts=restarted)
