"""Faults of jobs that several workers share."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace

from redis import Redis

from tests.chaos.arena import Arena, Summary
from tests.chaos.clients import jobs
from tests.chaos.echo import joined
from tests.chaos.on_processes import deadly
from tests.chaos.run import Run

#: Units of a job, and seconds of a unit: a job lasts long enough to be struck in each of its parts.
UNITS, UNIT_S = 12, 0.1


def split_scenes(run: Run) -> Summary:
    """Jobs in parts: workers and keepers die, every fifth job is canceled, Redis is emptied; results are as of one."""
    count, kills = run.pick(10, 400), run.pick(3, 120)
    points = {
        "worker": deadly(("before_split", "after_split", "before_complete", "after_complete"), chance=0.05, limit=3),
        "keeper": deadly(("before_sweep", "after_sweep"), chance=0.05, limit=1),
    }
    begun = time.monotonic()
    settings = {"scene_sharing": "always", "scene_part_tiles": 2, "scene_parts": 4}  # shared although no worker is idle
    with run.arena(workers=3, slots=1, failpoints=points, **settings) as arena:
        wanted = [
            replace(job, ends=("succeeded", "canceled") if number % 5 == 0 else ("succeeded",))
            for number, job in enumerate(jobs(count, arena.receiver, takes_s=UNIT_S, units=UNITS))
        ]
        arena.submit(wanted, forgotten_model=True)
        canceling = arena.cancel([job.id for job in wanted[::5]])
        victims = [*arena.fleet.workers] * 2 + [arena.fleet.one("keeper")]
        struck = 0

        def strike() -> None:
            nonlocal struck
            arena.draws.choice(victims).signal(signal.SIGKILL)
            struck += 1
            if run.durability == "manifest" and struck == kills // 2:
                arena.struck.append(time.time())
                arena.valkey.flush()

        arena.repeat(strike, every_s=(0.5, 1.5), enough=lambda: struck >= kills)
        canceling.join()
        arena.finish()
        split = sum(parts > 1 for parts in _parts(arena))
        assert split > count // 4, f"only {split} jobs were split"
        wrong = [job.id for job in wanted if _said(arena, job.id) not in (None, joined(job.input["text"], UNITS))]
        assert not wrong, f"{len(wrong)} jobs have another result than of one worker: {wrong[:5]}"
        return run.done("split_scenes", arena, begun, kills=struck, split=split)


def _parts(arena: Arena) -> list[int]:
    with Redis.from_url(arena.valkey.url, decode_responses=True) as client:
        keys = client.scan_iter("penstock:tenant:*:job:*", count=1000, _type="hash")
        return [int(client.hget(key, "parts") or 0) for key in keys]


def _said(arena: Arena, job: str) -> str | None:
    """Return the text of a job that succeeded."""
    end = arena.history.end(job)
    if end is None or end.status != "succeeded":
        return None
    return str(json.loads(end.result)[0]["text"])
