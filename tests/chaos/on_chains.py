"""Faults in the middle of chains: jobs that wait for each other, and read each other's files."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx2

from tests.chaos.arena import Arena, Summary
from tests.chaos.clients import jobs
from tests.chaos.history import Wanted
from tests.chaos.on_processes import API_MOMENTS, KEEPER_MOMENTS, WORKER_MOMENTS, deadly
from tests.chaos.run import Run

#: Jobs of a chain: a head, two that follow it, one of which reads its artifact, and one that follows both.
_LENGTH = 4


def chains(run: Run) -> Summary:
    """SIGKILL of workers, keeper, API and Valkey, and a FLUSHALL, in the middle of chains; some heads do not succeed.

    No follower begins before its upstreams have succeeded, and all followers of the other heads end with them.
    """
    count, kills = run.pick(24, 1200), run.pick(3, 60)
    points = {
        "worker": deadly(WORKER_MOMENTS, chance=8 / count, limit=run.pick(1, 10)),
        "api": deadly(API_MOMENTS, chance=8 / count, limit=run.pick(1, 10)),
        "keeper": deadly(KEEPER_MOMENTS, chance=0.1, limit=run.pick(1, 4)),
    }
    begun = time.monotonic()
    with run.arena(workers=3, durability="manifest", failpoints=points) as arena:
        made = [_chain(arena, number) for number in range(count)]
        canceled = [chain[0].id for number, chain in enumerate(made) if number % 6 == 1]
        # Clients try again while a job's upstream is not accepted yet, and after the FLUSHALL, which forgets the model.
        arena.submit([job for chain in made for job in chain], forgotten_model=True)
        canceling = arena.cancel(canceled)
        victims = itertools.cycle([*arena.fleet.workers, arena.fleet.one("keeper"), arena.fleet.one("api")])
        struck = 0

        def strike() -> None:
            nonlocal struck
            struck += 1
            if struck % 3 == 0:
                arena.valkey.kill()
                arena.struck.append(time.time())
                arena.valkey.restart()
            next(victims).signal(signal.SIGKILL)

        arena.repeat(strike, every_s=(0.3, 1.0), enough=lambda: struck >= kills)
        arena.struck.append(time.time())
        arena.valkey.flush()
        canceling.join()
        arena.finish()
        early = list(_early(arena, made))
        assert not early, f"{len(early)} jobs began before their upstreams had succeeded: {early[:5]}"
        ended = [arena.history.end(job.id) for chain in made for job in chain]
        assert {"succeeded", "failed"} <= {look.status for look in ended if look is not None}
        return run.done(
            "chains", arena, begun, chains=count, canceled_heads=len(canceled), kills=struck, flushes=1, early=0
        )


def _chain(arena: Arena, number: int) -> list[Wanted]:
    """Return the jobs of a chain: every sixth head fails, and every sixth is canceled."""
    head, reader, other, last = jobs(_LENGTH, arena.receiver, webhook_every=_LENGTH, takes_s=0.1)
    followers = [
        replace(reader, input=reader.input | {"media": f"job://{head.id}/said.txt"}),
        replace(other, after=(head.id,)),
        replace(last, after=(reader.id, other.id), webhook=arena.receiver.url),
    ]
    if number % 6 == 0:
        head = replace(head, input=head.input | {"end": "input"}, ends=("failed",), code="invalid_input")
        followers = [replace(job, ends=("failed",), code="upstream_failed") for job in followers]
    if number % 6 == 1:
        head, *followers = (replace(job, ends=("succeeded", "canceled")) for job in (head, *followers))
    return [head, *followers]


def _early(arena: Arena, made: list[list[Wanted]]) -> Iterator[str]:
    """Yield the jobs that began before one of their upstreams had succeeded, by the times of their documents."""
    with httpx2.Client(base_url=arena.fleet.url, timeout=30) as http:
        for chain in made:
            found = {job.id: http.get(f"/v1/jobs/{job.id}").raise_for_status().json() for job in chain}
            yield from (job["id"] for job in found.values() if _is_early(job, [found[name] for name in job["after"]]))


def _is_early(job: Mapping[str, Any], upstreams: Sequence[Mapping[str, Any]]) -> bool:
    began = min((attempt["started_at"] for attempt in job["attempts"]), default=None)
    return began is not None and any(
        upstream["status"] != "succeeded" or upstream["completed_at"] > began for upstream in upstreams
    )
