"""Recovery of an emptied Redis from the object store, and retention: the jobs per second of a keeper.

    python -m benchmarks.recovery [--jobs 2000] [--live 200] [--copies 1000000] [--s3]

Each ended job has a request, an outcome and an artifact in the object store: a folder, or Ceph with `--s3`. Live jobs
have a request. With `--copies`, requests and outcomes of ended jobs are copied in the folder until there are so many:
a million take 12 GB of disk and 3 GB of memory. All jobs are restored first; then `--jobs` of them are purged.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

from benchmarks.measuring import machine, peak_mb, say
from penstock.config import Settings
from penstock.jobs import JobKey, State, Submission
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import queues, records
from penstock.up.valkey import SMALL_RECORDS
from penstock.workers.artifacts import Finished, upload
from penstock.workers.keeper.keeper import SWEEP_EVERY_S, Duty, Keeper
from penstock.workers.keeper.purge import retire
from penstock.workers.keeper.recovery import recover_if_lost
from tests.support.ceph import start_ceph
from tests.support.valkey import start_valkey

LIMITS = records.QueueLimits(10**6, 10**6, 3600, 3, durable=True)
#: Seconds between two submissions during the recovery.
SUBMIT_EVERY_S = 1.0
#: Jobs that end at once while the benchmark is prepared.
TOGETHER = 8
JOBS = Path("data/objects/tenants/default/jobs")
COPIED = ("request.json", "outcome.json")
#: The keys in Redis of all jobs, and of those whose retention is counted.
ALL_JOBS, FINISHED = "penstock:tenant:default:jobs", "penstock:finished"


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2000, help="ended jobs that really ran, and that are purged")
    parser.add_argument("--live", type=int, default=200, help="jobs that wait")
    parser.add_argument("--copies", type=int, default=0, help="number of ended jobs in the folder, by copies")
    parser.add_argument("--s3", action="store_true", help="Ceph on this machine in place of a folder")
    chosen = parser.parse_args(arguments)
    if chosen.copies and chosen.s3:
        parser.error("--copies writes into a folder: leave --s3 out")
    say(f"{machine()}\n\n| what | figure |\n| --- | --- |")
    with tempfile.TemporaryDirectory(prefix="bench-recovery-") as name:
        folder = Path(name)
        with opened(folder, s3=chosen.s3) as (store, objects):
            end_jobs(store, objects, chosen.jobs, folder)
            submit_jobs(store, objects, chosen.live)
            copy_jobs(folder, chosen.copies)
            for line in rows(store, objects, max(chosen.jobs, chosen.copies), chosen.live, chosen.jobs):
                say(line)


def rows(store: records.JobStore, objects: ObjectStore, ended: int, live: int, purged: int) -> Iterator[str]:
    """Yield the lines of the recovery and of the retention of `purged` jobs."""
    queued_s, seconds, slowest_s, new = recover_all(store, objects, live)
    restored = ended + live + new
    if store.client.zcard(ALL_JOBS) != restored:
        raise RuntimeError(f"{store.client.zcard(ALL_JOBS)} of {restored} jobs were restored")
    yield f"| recovery: the {live} live jobs are queued | after {queued_s:.1f} s |"
    yield f"| recovery: slowest of {new} submissions meanwhile | {slowest_s:.2f} s |"
    yield f"| recovery: all {restored} jobs are restored | {seconds:.1f} s, {restored / seconds:.0f}/s |"
    yield f"| memory of Valkey for a job | {store.client.info('memory')['used_memory'] / restored / 1000:.2f} kB |"
    yield f"| peak memory of the keeper | {peak_mb():.0f} MB |"
    store.client.zadd(FINISHED, dict.fromkeys(store.client.zrange(FINISHED, 0, purged - 1), 0))
    seconds, sweep_s = purge(store, objects, kept=ended - purged)
    yield f"| retention: {purged} jobs are purged | {seconds:.1f} s, {purged / seconds:.0f}/s |"
    yield f"| slowest sweep of leases meanwhile | {sweep_s * 1000:.0f} ms |"


def recover_all(store: records.JobStore, objects: ObjectStore, live: int) -> tuple[float, float, float, int]:
    """Empty Redis and recover, and submit a job each `SUBMIT_EVERY_S` meanwhile.

    Return the seconds until all live jobs were queued, until all jobs were restored, and of the slowest submission; and
    the number of submissions.
    """
    store.client.flushall()
    queued_s, took_s, begun = 0.0, list[float](), time.monotonic()
    thread = threading.Thread(target=recover_if_lost, args=(store, objects))
    thread.start()
    while thread.is_alive():
        if not queued_s and store.run(queues.backlog()).get("live", 0) == live:
            queued_s = time.monotonic() - begun
        if time.monotonic() - begun >= len(took_s) * SUBMIT_EVERY_S:
            submit_s = time.monotonic()
            submit_jobs(store, objects, 1, queue="new")
            took_s.append(time.monotonic() - submit_s)
        thread.join(0.02)
    seconds = time.monotonic() - begun
    return queued_s or seconds, seconds, max(took_s), len(took_s)


def purge(store: records.JobStore, objects: ObjectStore, kept: int) -> tuple[float, float]:
    """Run a keeper until no job is due; return the seconds, and those of the slowest sweep of leases meanwhile."""
    done, slowest_s = threading.Event(), 0.0

    def step() -> bool:
        more = retire(store, objects)
        if not more:
            done.set()
        return more

    def sweep() -> None:
        nonlocal slowest_s
        begun = time.monotonic()
        store.run(records.sweep())
        slowest_s = max(slowest_s, time.monotonic() - begun)

    duties = [Duty("retire", 0.5, step), Duty("sweep", SWEEP_EVERY_S / 10, sweep, always=True)]
    keeper = Keeper(store, duties)
    thread = threading.Thread(target=keeper.run)
    begun = time.monotonic()
    thread.start()
    done.wait()
    seconds = time.monotonic() - begun - duties[0].every_s
    keeper.end()
    thread.join()
    if store.client.zcard(FINISHED) != kept:
        raise RuntimeError(f"{store.client.zcard(FINISHED)} ended jobs are left, not {kept}")
    return seconds, slowest_s


def end_jobs(store: records.JobStore, objects: ObjectStore, count: int, folder: Path) -> None:
    """Run jobs to their success, each with an artifact."""
    artifact = folder / "artifact"
    artifact.write_bytes(bytes(1000))
    both = Journal(store, objects)

    def end(number: int) -> None:
        submission = Submission(JobKey("default", str(uuid.uuid4())), "m", "default", {"n": number}, "f")
        both.run(journal.submit(submission, LIMITS))
        claiming = records.claim(
            "default", slot=str(number), nonce="n", lease_s=600, max_tenant_running=10**6, worker="w", models=["m"]
        )
        if (claim := store.run(claiming)) is None:
            raise RuntimeError(f"the job {submission.key} cannot be claimed")
        artifacts = upload(objects, claim, {"artifact": Finished(artifact, "application/octet-stream")})
        both.run(journal.complete(claim, records.Outcome(State.SUCCEEDED, artifacts=artifacts)))

    with ThreadPoolExecutor(TOGETHER) as pool:
        list(pool.map(end, range(count)))


def submit_jobs(store: records.JobStore, objects: ObjectStore, count: int, queue: str = "live") -> None:
    """Submit jobs that wait."""
    both = Journal(store, objects)
    for number in range(count):
        submission = Submission(JobKey("default", str(uuid.uuid4())), "m", queue, {"n": number}, "f")
        both.run(journal.submit(submission, LIMITS))


def copy_jobs(folder: Path, count: int) -> None:
    """Copy requests and outcomes until the folder has `count` ended jobs, each a millisecond older than the last."""
    made = [job for job in (folder / JOBS).iterdir() if (job / "outcome.json").exists()] if count else []
    texts = [(job.name, [(name, (job / name).read_text()) for name in COPIED]) for job in made]
    for number, (old, files) in zip(range(count - len(made)), cycle(texts), strict=False):
        new = str(uuid.uuid4())
        job = folder / JOBS / new
        job.mkdir()
        created_us = json.loads(files[0][1])["created_us"]
        for name, text in files:
            older = text.replace(f"{created_us}", f"{created_us - 1000 * (number + 1)}")
            (job / name).write_text(older.replace(old, new))


@contextmanager
def opened(folder: Path, *, s3: bool) -> Iterator[tuple[records.JobStore, ObjectStore]]:
    """Start a Valkey with the settings of the bundled one and, for S3, Ceph; open both stores."""
    with ExitStack() as stack:
        valkey = start_valkey(folder / "valkey")
        stack.callback(valkey.stop)
        settings = Settings(data=folder / "data", secret="benchmark")  # noqa: S106
        if s3:
            (folder / "ceph").mkdir()
            ceph = start_ceph(folder / "ceph")
            stack.callback(ceph.stop)
            settings = settings.model_copy(update={"object_store": f"s3://{ceph.bucket()}", "s3": ceph.s3})
        store = records.JobStore.open(valkey.url)
        stack.callback(store.close)
        for name, value in SMALL_RECORDS.items():
            store.client.config_set(name, value)
        yield store, open_store(settings.store_url, settings)


if __name__ == "__main__":
    main(sys.argv[1:])
