"""Faults of what stands around us: clients that press, object stores, receivers, disks."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx2
from redis import Redis

from tests.chaos.arena import Arena, Summary
from tests.chaos.clients import AGAIN, jobs
from tests.chaos.flood import Flood, flooded
from tests.chaos.history import Answer, Look, Wanted
from tests.chaos.proxy import Mode
from tests.chaos.receiver import Receiver
from tests.chaos.run import CannotRun, Run
from tests.chaos.waits import Span

#: Seconds that a client of an object store waits at most: 3 to connect, 30 to read, three tries.
S3_PATIENCE_S = 100.0
#: Bytes of the small disk: a base, and per job a manifest, an outcome and an artifact, in 4 kB blocks
DISK_BYTES, JOB_BYTES = 12 << 20, 40_000


def one_key(run: Run) -> Summary:
    """200 concurrent submits with one key are one job; another body under it is refused."""
    begun = time.monotonic()
    together = 200
    with run.arena() as arena, ThreadPoolExecutor(together) as pool:
        key, gate = uuid.uuid4().hex, threading.Barrier(together)
        text = {"text": "the one"}
        trust = ssl.create_default_context()  # one for all: each client would load the authorities by itself

        def press(_: int) -> str:
            with httpx2.Client(base_url=arena.fleet.url, timeout=30, verify=trust) as client:
                gate.wait(30)
                return _submit_with_key(arena, client, key, text)

        (job_id,) = set(pool.map(press, range(together)))
        arena.history.want([Wanted(job_id, text)])
        arena.history.accepted.add(job_id)
        arena.finish()
        other = httpx2.post(
            f"{arena.fleet.url}/v1/jobs", json=_body({"text": "other"}), headers={"Idempotency-Key": key}
        )
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
        listed = httpx2.get(f"{arena.fleet.url}/v1/jobs").json()["jobs"]
        assert [job["id"] for job in listed] == [job_id]
        # A burst of 200 on one process is served one after the other: how long that takes is no promise.
        return run.done("one_key", arena, begun, api_patience_s=60, concurrent=together)


def _submit_with_key(arena: Arena, client: httpx2.Client, key: str, text: dict[str, str]) -> str:
    for _ in range(100):
        began = time.monotonic()
        answer = client.post("/v1/jobs", json=_body(text), headers={"Idempotency-Key": key})
        ended = time.monotonic()
        arena.history.answers.append(Answer(time.time(), "submit", key, answer.status_code, ended - began, "1"))
        if answer.status_code in (200, 202):
            arena.history.saw(answer.json()["id"], Look.at(answer.json()), began_s=began, ended_s=ended)
            return str(answer.json()["id"])
        assert answer.status_code in AGAIN, answer.text
        threading.Event().wait(0.1)
    raise AssertionError("the key stayed in progress")


def _body(text: dict[str, str]) -> dict[str, object]:
    return {"model": "chaos", "input": text}


#: A flood of so many jobs per second is several times what the API takes; their clients leave after so many seconds.
FLOOD_PER_S, LEAVES_AFTER_S = 2000.0, 2.0
#: Jobs of the flood that wait at a time; further ones are refused with 429.
FLOOD_JOBS = 300


def flood(run: Run) -> Summary:
    """Many times the load that the API takes, from clients that leave: others' jobs are accepted, and all end."""
    count, lasts_s = run.pick(60, 1000), run.pick(5, 60)
    begun = time.monotonic()
    with run.arena(max_tenant_jobs=FLOOD_JOBS) as arena, ThreadPoolExecutor(1) as pool:
        load = Flood(arena.fleet.port, FLOOD_PER_S, lasts_s, LEAVES_AFTER_S)
        arena.submit(jobs(count, arena.receiver))
        arena.until(lambda: len(arena.history.accepted) >= count // 10, within_s=arena.patience_s)
        flooding = pool.submit(asyncio.run, flooded(load))
        answered = flooding.result()
        statuses = answered.statuses
        arena.finish()
        arena.until(lambda: set(_states(arena)) == {"succeeded"}, within_s=arena.patience_s)
        accepted, refused = statuses["202"], statuses["503"] + statuses["429"]
        assert set(statuses) <= {"202", "429", "503", "not connected", "lost"}, statuses
        assert refused > accepted > 0, statuses
        assert _states(arena)["succeeded"] >= accepted + count
        return run.done("flood", arena, begun, flood_accepted=accepted, flood_refused=refused, flood_left=answered.left)


def _states(arena: Arena) -> Counter[str]:
    """Return the numbers of all jobs in Redis by their states."""
    with Redis.from_url(arena.valkey.url, decode_responses=True) as client:
        keys = client.scan_iter("penstock:tenant:*:job:*", count=1000, _type="hash")
        return Counter(str(client.hget(key, "state")) for key in keys)


def s3_trouble(run: Run) -> Summary:
    """An S3 server that answers 503, resets in the middle of a body, is slow, refuses and stalls."""
    if run.ceph is None:
        raise CannotRun("no S3 server")
    count, rounds = run.pick(40, 1000), run.pick(1, 8)
    begun = time.monotonic()
    with run.arena(ceph=run.ceph()) as arena:
        arena.submit(jobs(count, arena.receiver, takes_s=0.05))
        for _ in range(rounds):
            for mode in (Mode.UNAVAILABLE, Mode.RESET_MID_BODY, Mode.SLOW, Mode.REFUSE, Mode.BLACK_HOLE):
                arena.s3.set(mode, delay_s=0.1, after_bytes=200)
                arena.history.all_over.wait(1.0)
                arena.s3.set(Mode.PASS)
                arena.history.all_over.wait(0.4)
        arena.finish()
        tried_again = sum(attempt > 1 for attempt in arena.attempts())
        return run.done(
            "s3_trouble", arena, begun, api_patience_s=S3_PATIENCE_S, rounds=rounds, tried_again=tried_again
        )


def store_away(run: Run) -> Summary:
    """The folder of the object store is away for seconds at a time: what runs waits, and nothing is computed twice."""
    count, rounds = run.pick(40, 1000), run.pick(1, 10)
    begun = time.monotonic()
    with run.arena(workers=3) as arena:
        root = Path(unquote(urlsplit(arena.fleet.settings.store_url).path))
        arena.submit(jobs(count, arena.receiver, takes_s=0.2))
        away_s = 0.0
        for number in range(rounds):
            _loaded(arena, over=count * number // (rounds + 1) + 3)
            elsewhere = root.rename(root.with_name("elsewhere"))
            left_s = time.time()
            arena.history.all_over.wait(arena.draws.uniform(*((5, 20) if run.full else (2, 4))))
            elsewhere.rename(root)
            arena.store_away.append(Span(left_s, time.time()))
            away_s += time.time() - left_s
        arena.finish()
        twice = sum(starts > 1 for starts in arena.starts())
        assert not twice, f"{twice} jobs were computed more than once"
        assert not root.with_name("elsewhere").exists()
        return run.done("store_away", arena, begun, rounds=rounds, away_s=f"{away_s:.0f}", computed_twice=twice)


def _loaded(arena: Arena, *, over: int) -> None:
    """Return once so many jobs are over and others run."""
    arena.until(lambda: len(arena.history.over) >= over and arena.running(), within_s=arena.patience_s)


def bad_receivers(run: Run) -> Summary:
    """A webhook receiver that is down, slow, and leads to a private address: jobs end, and are told later."""
    count = run.pick(20, 1000)
    begun = time.monotonic()
    with run.arena() as arena, Receiver() as private:
        receiver = arena.receiver
        refused = httpx2.post(
            f"{arena.fleet.url}/v1/jobs", json={**_body({"text": "x"}), "webhook": {"url": private.url}}
        )
        assert refused.status_code == 422, "a webhook to a private address was accepted"
        receiver.status = 500
        arena.submit(jobs(count, receiver, webhook_every=1))
        # After five failures in a row a receiver rests.
        arena.until(lambda: len(receiver.got) >= 5, within_s=arena.patience_s)
        receiver.status, receiver.location = 302, private.url
        _tried_again(arena, 5)
        receiver.status, receiver.location, receiver.delay_s = 200, None, 0.5
        _tried_again(arena, 5)
        receiver.delay_s = 0.0
        arena.until(lambda: _delivered(arena) == count, within_s=arena.patience_s)
        arena.finish()
        assert not private.got, "a redirect to a private address was followed"
        return run.done("bad_receivers", arena, begun, tries=len(receiver.got))


def _tried_again(arena: Arena, times: int) -> None:
    wanted = len(arena.receiver.got) + times

    def tried() -> bool:
        arena.hurry_webhooks(waiting_over_s=1)  # again and again: a try that was under way makes its receiver rest
        return len(arena.receiver.got) >= wanted

    arena.until(tried)


def _delivered(arena: Arena) -> int:
    arena.hurry_webhooks(waiting_over_s=1)
    with Redis.from_url(arena.valkey.url, decode_responses=True) as client:
        keys = list(client.scan_iter("penstock:tenant:*:job:*", count=1000, _type="hash"))
        return sum(client.hget(key, "delivery") == "delivered" for key in keys)


def disk_full(run: Run) -> Summary:
    """A full disk under workers and objects: jobs are tried again until there is room."""
    count = run.pick(40, 1000)
    begun = time.monotonic()
    with (
        small_disk(run.folder / "fleet" / "data", DISK_BYTES + count * JOB_BYTES) as disk,
        run.arena(data=str(disk)) as arena,
    ):
        ballast = disk / "ballast"
        arena.submit(jobs(count, arena.receiver, takes_s=0.05))
        arena.until(lambda: len(arena.history.over) >= 3, within_s=arena.patience_s)
        _fill(ballast)
        arena.history.all_over.wait(3)
        ballast.unlink()
        arena.finish()
        tried_again = sum(attempt > 1 for attempt in arena.attempts())
        return run.done("disk_full", arena, begun, tried_again=tried_again)


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a disk inside the block; `CannotRun` where that is not allowed."""
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={size_bytes}", "penstock-chaos", str(folder)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        raise CannotRun("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
