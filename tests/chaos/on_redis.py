"""Faults of Redis and of the way to it."""

from __future__ import annotations

import hashlib
import time

from redis import Redis

from penstock.storage.redis.scripts import source
from tests.chaos.arena import Arena, Summary, percentile
from tests.chaos.clients import jobs
from tests.chaos.probe import probing
from tests.chaos.proxy import Mode
from tests.chaos.run import Run


def valkey_kills(run: Run) -> Summary:
    """SIGKILL of Valkey under load; the API refuses in time while it is down."""
    count, kills = run.pick(100, 10_000), run.pick(2, 20)
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


def failovers(run: Run) -> Summary:
    """SIGKILL of a primary that Sentinels watch: the API refuses until the replica is promoted; nothing is lost.

    The replica lacks the last writes: what the manifests say is restored.
    """
    count, kills = run.pick(150, 4000), run.pick(2, 8)
    begun = time.monotonic()
    with run.arena(watched=True) as arena, probing(arena.fleet.url, arena.history) as probe:
        for share in range(kills):
            over = len(arena.history.over)
            arena.submit(jobs(count // kills, arena.receiver, takes_s=0.05), forgotten_model=share > 0)
            arena.until(lambda over=over: len(arena.history.over) > over, within_s=arena.patience_s)
            arena.valkey.kill()
            arena.struck.append(time.time())
            arena.valkey.restart()
        arena.finish()
        away_s = [end_s - begin_s for begin_s, end_s in arena.valkey.downs]
        return run.done(
            "failovers", arena, begun, failovers=kills, refused=probe.refused,
            refusal_max_s=f"{probe.slowest_refusal_s:.1f}", without_primary_max_s=f"{max(away_s):.1f}",
        )  # fmt: skip


#: Scripts whose answers are lost.
SCRIPTS = ("submit", "confirm", "claim", "heartbeat", "complete", "commit")


def bad_network(run: Run) -> Summary:
    """A connection to Redis that is black-holed, reset, slow, and loses the answers of the calls that matter."""
    count, rounds = run.pick(80, 3000), run.pick(1, 8)
    begun = time.monotonic()
    with run.arena() as arena:
        marks = {name: _sha1(source(name)) for name in SCRIPTS}
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


def valkey_hangs(run: Run) -> Summary:
    """SIGSTOP of Valkey while many submit: nobody waits longer than the API's patience, and all jobs go on after it."""
    count, hangs, submitters = run.pick(200, 3000), run.pick(1, 8), 60
    begun = time.monotonic()
    with run.arena(proxied=False) as arena, probing(arena.fleet.url, arena.history) as probe:
        for _ in range(hangs):
            arena.submit_from_a_crowd(jobs(count // hangs, arena.receiver), clients=submitters)
            accepted = len(arena.history.accepted)
            arena.until(lambda accepted=accepted: len(arena.history.accepted) > accepted, within_s=arena.patience_s)
            refused = probe.refused
            with arena.valkey.hanging():
                arena.struck.append(time.time())
                # The first waits for the time-out, the second for nothing, the third for a probe's time-out.
                arena.until(lambda refused=refused: probe.refused >= refused + 10)
        arena.finish()
        waits_s = [answer.took_s for answer in list(arena.history.answers) if answer.status == 503]
        return run.done(
            "valkey_hangs", arena, begun, hangs=hangs, submitters=submitters, refused=len(waits_s),
            refusal_p50_s=f"{percentile(waits_s, 0.5):.3f}", refusal_max_s=f"{max(waits_s):.1f}",
            client_lag_max_s=f"{arena.history.client_lag_s:.1f}",
        )  # fmt: skip


def flushall(run: Run) -> Summary:
    """FLUSHALL in the middle: every accepted job comes back from its manifest, no finished one runs again."""
    count = run.pick(90, 2000)
    begun = time.monotonic()
    with run.arena(durability="manifest") as arena:
        arena.submit(jobs(count, arena.receiver, takes_s=0.05), forgotten_model=True)
        for share in (3, 2):
            enough = count // share - 20
            while len(arena.history.over) < enough and not arena.history.all_over.wait(0.05):
                pass
            arena.struck.append(time.time())
            arena.valkey.flush()
        arena.finish()
        return run.done("flushall", arena, begun, flushes=2)


def _sha1(text: str) -> bytes:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode()


def redis_full(run: Run) -> Summary:
    """Redis out of memory: submits are refused for a while, and what runs ends and is told."""
    count = run.pick(40, 2000)
    begun = time.monotonic()
    with run.arena() as arena, Redis.from_url(arena.valkey.url) as client:
        arena.submit(jobs(count // 2, arena.receiver, takes_s=0.2))
        arena.until(lambda: len(arena.history.accepted) >= count // 2, within_s=arena.patience_s)
        client.config_set("maxmemory", 1)  # less than it takes, whatever a closed connection gives back
        running = arena.running()
        arena.submit(jobs(count - count // 2, arena.receiver))
        arena.until(lambda: _refusals(arena) >= 5)
        arena.until(lambda: arena.running() == 0)
        client.config_set("maxmemory", 0)
        arena.finish()
        return run.done("redis_full", arena, begun, refused=_refusals(arena), ran_on=running)


def _refusals(arena: Arena) -> int:
    return sum(answer.status == 503 for answer in list(arena.history.answers))
