"""The faults that the service must survive, each a seeded run that ends with the checker. One summary line each."""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.config import Settings
from penstock.storage.scripts import source
from tests.ceph import Ceph
from tests.chaos.arena import Arena, Summary, open_arena, percentile
from tests.chaos.clients import jobs
from tests.chaos.history import Wanted
from tests.chaos.probe import probing
from tests.chaos.proxy import Mode

HAS_MANIFESTS = "durability" in Settings.model_fields


@dataclass(frozen=True, slots=True)
class Run:
    """How a scenario is to run."""

    folder: Path
    seed: int
    #: The sizes of the promise, or those of `make test`.
    full: bool = False
    durability: str = "manifest"
    #: Starts the S3 server, or returns the one that runs.
    ceph: Callable[[], Ceph] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def pick(self, short: int, full: int) -> int:
        """Return the size that is wanted."""
        return full if self.full else short

    def arena(self, **options: Any) -> Any:
        """Open the arena of this run."""
        patience_s = 1800.0 if self.full else 60.0
        chosen: dict[str, Any] = {"patience_s": patience_s, "durability": self.durability, **options, **self.options}
        return open_arena(self.folder, seed=self.seed, **chosen)

    def done(self, name: str, arena: Arena, begun: float, **counts: object) -> Summary:
        """Have the checker look and return the summary."""
        arena.verdict()
        back = arena.recoveries_s()
        if back:
            counts |= {"orphans": len(back), "back_p50_s": f"{percentile(back, 0.5):.1f}", "back_max_s": f"{max(back):.1f}"}
        wanted = len(arena.history.wanted)
        return Summary(name, self.seed, wanted, time.monotonic() - begun, counts)


def kill(number: float, limit: int) -> dict[str, Any]:
    """Return a failpoint that kills."""
    return {"action": "kill", "chance": number, "limit": limit}


def worker_kills(run: Run) -> Summary:
    """SIGKILL of workers, keeper and API at random and at every failpoint."""
    count, kills, each = run.pick(200, 10_000), run.pick(4, 100), run.pick(1, 10)
    chance = 30 * each / count
    worker = {
        name: kill(chance, each)
        for name in ("after_claim", "before_complete", "after_complete", "before_outcome", "after_outcome")
    } | {name: kill(0.2, each) for name in ("before_heartbeat", "after_heartbeat")}
    api = {
        name: kill(chance, each)
        for name in ("after_submit", "after_reserve", "before_request", "after_request", "after_confirm")
    }
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
        return run.done(
            "worker_kills", arena, begun, random_kills=len(struck), worker_deaths=workers,
            **{f"at_{name}": number for name, number in hits.items()},
        )  # fmt: skip


def valkey_kills(run: Run) -> Summary:
    """SIGKILL of Valkey under load; the API refuses in time while it is down."""
    count, kills = run.pick(200, 10_000), run.pick(3, 20)
    begun = time.monotonic()
    with run.arena() as arena, probing(arena.fleet.url, arena.history) as probe:
        arena.submit(jobs(count, arena.receiver, takes_s=0.05))
        killed = 0

        def strike() -> None:
            nonlocal killed
            arena.valkey.kill()
            arena.struck.append(time.time())
            # Every third outage is long enough for clients to notice.
            refused = probe.refused
            if killed % 3 == 0:
                arena.until(lambda: probe.refused >= refused + 3, within_s=20)
            arena.valkey.restart()
            killed += 1

        arena.repeat(strike, every_s=(0.5, 1.5), enough=lambda: killed >= kills)
        arena.finish()
        return run.done(
            "valkey_kills", arena, begun, kills=killed, refused=probe.refused,
            refusal_max_s=f"{probe.slowest_refusal_s:.1f}",
        )  # fmt: skip


def bad_network(run: Run) -> Summary:
    """A connection to Redis that is black-holed, reset, slow, and loses the answers of the calls that matter."""
    count, rounds = run.pick(150, 3000), run.pick(1, 8)
    begun = time.monotonic()
    with run.arena() as arena:
        marks = {name: _sha1(source(name)) for name in ("submit", "claim", "complete", "heartbeat", *_more_scripts())}
        arena.submit(jobs(count, arena.receiver, takes_s=0.05))
        for _ in range(rounds):
            for mark in marks.values():
                arena.redis.lose_replies(mark, 3)
            for mode, lasts_s in ((Mode.SLOW, 1.5), (Mode.BLACK_HOLE, 3.0), (Mode.REFUSE, 1.0)):
                arena.redis.set(mode, delay_s=0.02)
                arena.history.all_over.wait(lasts_s)
                arena.redis.set(Mode.PASS)
                arena.history.all_over.wait(0.5)
                arena.redis.cut()
        arena.finish()
        lost = {f"lost_{name}": arena.redis.lost.get(mark, 0) for name, mark in marks.items()}
        return run.done("bad_network", arena, begun, rounds=rounds, **lost)


def zombies(run: Run) -> Summary:
    """SIGSTOP past the lease, then SIGCONT: what the zombie still says is refused."""
    count, stops = run.pick(60, 2000), run.pick(2, 30)
    points = {f"worker{n}": {"before_complete": {"action": "stop", "chance": 1.0, "limit": 2}} for n in (0, 1)}
    begun = time.monotonic()
    with run.arena(failpoints=points, slots=1) as arena:
        first = _zombie_meets_heir(arena)
        arena.submit(jobs(count, arena.receiver, takes_s=0.05))
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
        return run.done("zombies", arena, begun, stops=stopped, met_its_heir=first)


def _zombie_meets_heir(arena: Arena) -> str:
    """Stop a worker before its complete, its job's next worker at the same moment, and wake them in this order."""
    arena.submit(jobs(1, arena.receiver))
    hits = arena.fleet.hits
    for number in (0, 1):
        arena.until(lambda number=number: (hits / f"before_complete.{number}").exists())
        arena.struck.append(time.time())
    workers = {worker.pid: worker for worker in arena.fleet.workers}
    for number in (0, 1):
        arena.until((hits / f"before_complete.{number}").read_text)
        workers[int((hits / f"before_complete.{number}").read_text())].signal(signal.SIGCONT)
        arena.history.all_over.wait(0.5)
    assert arena.history.wanted
    arena.finish()
    return "yes"


def poison(run: Run) -> Summary:
    """A job that kills its workers among good ones: dead after three starts, and nobody else waits for it."""
    count = run.pick(60, 1000)
    begun = time.monotonic()
    with run.arena(workers=2, max_crashes=3) as arena:
        bad = [_ends(end, "worker_lost") for end in (("abort", "oom") if run.full else ("abort",))]
        mixed = [*jobs(count, arena.receiver)]
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


def rolling_restarts(run: Run) -> Summary:
    """SIGTERM to one worker after the other: no attempt is consumed, nothing crashes."""
    count, rounds = run.pick(60, 1000), run.pick(2, 15)
    begun = time.monotonic()
    with run.arena(workers=3) as arena:
        arena.submit(jobs(count, arena.receiver, takes_s=0.6))
        restarted = 0

        def restart() -> None:
            nonlocal restarted
            victim = arena.fleet.workers[restarted % len(arena.fleet.workers)]
            before = len(victim.deaths)
            victim.signal(signal.SIGTERM)
            arena.until(lambda: len(victim.deaths) > before)
            restarted += 1

        arena.repeat(restart, every_s=(0.3, 0.6), enough=lambda: restarted >= rounds * 3)
        arena.finish()
        codes = {death.code for death in arena.deaths()}
        assert codes == {0}, f"workers ended with {codes}"
        assert set(arena.attempts()) == {1}, f"attempts were consumed: {arena.attempts()}"
        return run.done("rolling_restarts", arena, begun, restarts=restarted)


def flushall(run: Run) -> Summary:
    """FLUSHALL in the middle: every accepted job comes back from its manifest, no finished one runs again."""
    count = run.pick(150, 2000)
    begun = time.monotonic()
    with run.arena(durability="manifest") as arena:
        arena.submit(jobs(count, arena.receiver, takes_s=0.05), forgotten_model=True)
        for part in (3, 2):
            arena.until(lambda part=part: len(arena.history.over) > count // part - 20, within_s=arena.patience_s)
            arena.struck.append(time.time())
            arena.valkey.flush()
        arena.finish()
        return run.done("flushall", arena, begun, flushes=2)


def _more_scripts() -> tuple[str, ...]:
    return ("reserve", "confirm") if HAS_MANIFESTS else ()


def _sha1(text: str) -> bytes:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode()


SCENARIOS: Mapping[str, Callable[[Run], Summary]] = MappingProxyType(
    {
        scenario.__name__: scenario
        for scenario in (worker_kills, valkey_kills, bad_network, zombies, poison, rolling_restarts, flushall)
    }
)
