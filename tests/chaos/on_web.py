"""Faults of the web servers from which jobs fetch their media."""

from __future__ import annotations

import signal
import time
import uuid

import httpx2

from penstock.intake.media import upload_key
from tests.chaos import checker
from tests.chaos.arena import Arena, Summary
from tests.chaos.clients import jobs, join_all, submit_all, watch_until_over
from tests.chaos.history import History, Wanted
from tests.chaos.processes import Kept
from tests.chaos.run import Run
from tests.chaos.slow_web import SlowWeb

#: The tenant whose servers drip; the others' is `default`.
HOSTILE = "hostile"


def slow_servers(run: Run) -> Summary:
    """Servers that drip, stall and redirect in a circle: jobs of another tenant with uploaded media go on meanwhile.

    Each worker gets a SIGTERM while it fetches. Afterwards the servers send their files, and these jobs end, too.
    """
    hostile, count = run.pick(12, 60), run.pick(20, 1000)
    begun = time.monotonic()
    with SlowWeb() as web, run.arena(tenants=("default", HOSTILE), allowed_hosts=(web.pair,)) as arena:
        bad = History()
        until = time.monotonic() + arena.patience_s
        key = arena.keys[HOSTILE]
        clients = submit_all(arena.fleet.url, bad, _slow_jobs(web, hostile), threads=4, until=until, key=key)
        join_all(clients)
        arena.until(lambda: web.open >= 2 * arena.fleet.settings.slots, within_s=arena.patience_s)
        for worker in arena.fleet.workers:
            _go_on(arena, count // 2)
            arena.until(lambda: _say_that_they_wait(arena, key), within_s=arena.patience_s)
            _end_softly(arena, worker)
        web.heal()
        watch_until_over(arena.fleet.url, bad, until=until, key=key)
        arena.finish()
        violations = [*checker.lost(bad), *checker.changed(bad), *checker.wrong_ends(bad)]
        assert not violations, "\n".join(violations)
        twice = sum(starts > 1 for starts in arena.starts())
        return run.done("slow_servers", arena, begun, hostile=hostile, open_at_once=web.most_open, twice=twice)


def _slow_jobs(web: SlowWeb, count: int) -> list[Wanted]:
    """Return jobs whose media drip, stall, and lead in a circle, in turn; the last ones can only fail."""
    found = []
    for number in range(count):
        kind = ("drip", "stall", "circle")[number % 3]
        wanted = {"text": f"{kind} {number}", "media": web.url(kind, number)}
        fails = kind == "circle"
        found.append(Wanted(str(uuid.uuid4()), wanted, ("failed",) if fails else ("succeeded",), "media_refused"))
    return found


def _go_on(arena: Arena, count: int) -> None:
    """Return when so many further jobs with uploaded media have ended."""
    arena.objects.put_bytes(upload_key("default", "up", "in.txt"), b"here", content_type="text/plain")
    wanted = jobs(count, takes_s=0.05, media="media://up/in.txt")
    arena.submit(wanted)
    names = {each.id for each in wanted}
    arena.until(lambda: names <= arena.history.over, within_s=arena.patience_s)


def _end_softly(arena: Arena, worker: Kept) -> None:
    """Send a SIGTERM to a worker, and return when it has ended."""
    deaths = len(worker.deaths) + 1
    arena.until(lambda: worker.handles(signal.SIGTERM), within_s=arena.patience_s)
    worker.signal(signal.SIGTERM)
    arena.until(lambda: len(worker.deaths) >= deaths, within_s=arena.patience_s)


def _say_that_they_wait(arena: Arena, key: str) -> bool:
    """Return True if jobs that wait for slow servers show it: by their phase, or by their message in the queue."""
    shown = httpx2.get(f"{arena.fleet.url}/v1/jobs?limit=200", headers={"Authorization": f"Bearer {key}"}, timeout=30)
    live = [job for job in shown.json()["jobs"] if job["status"] in ("queued", "running")]
    phases = {job["phase"] for job in live if job["status"] == "running"}
    messages = [str((job["progress"] or {}).get("message")) for job in live if job["status"] == "queued"]
    return phases == {"fetching"} and any("waiting to fetch its media" in message for message in messages)
