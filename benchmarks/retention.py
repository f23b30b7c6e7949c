"""Retention: the ended jobs that a keeper purges per second, and the time of a sweep of leases meanwhile.

    python -m benchmarks.retention [--jobs 2000] [--s3]

Each job has a request, an outcome and an artifact in the object store: a local one, or Ceph with `--s3`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.config import Settings
from penstock.jobs import JobKey, State, Submission
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import records
from penstock.workers.artifacts import Finished, upload
from penstock.workers.keeper.keeper import SWEEP_EVERY_S, Duty, Keeper
from penstock.workers.keeper.purge import retire
from tests.support.ceph import start_ceph
from tests.support.valkey import start_valkey

LIMITS = records.QueueLimits(10**6, 10**6, 3600, 3, durable=True)
#: Jobs that end at once while the benchmark is prepared.
TOGETHER = 8
#: Jobs of the goal: they must go in ten minutes.
GOAL = 100_000


@dataclass(frozen=True)
class Purged:
    """A purge of jobs, and the slowest sweep of leases meanwhile."""

    jobs: int
    objects: int
    seconds: float
    slowest_sweep_s: float

    def __str__(self) -> str:
        rate = self.jobs / self.seconds
        return (
            f"{self.jobs} jobs with {self.objects} objects purged in {self.seconds:.1f} s: {rate:.0f} jobs/s, "
            f"{GOAL} in {GOAL / rate / 60:.1f} minutes; slowest sweep of leases {self.slowest_sweep_s * 1000:.0f} ms"
        )


def end_jobs(store: records.JobStore, objects: ObjectStore, count: int, folder: Path) -> None:
    """Make jobs that have succeeded and whose retention is over."""
    artifact = folder / "artifact"
    artifact.write_bytes(bytes(1000))
    both = Journal(store, objects)

    def end(number: int) -> None:
        submission = Submission(JobKey("default", str(uuid.uuid4())), "m", "default", {"n": number}, "f")
        both.run(journal.submit(submission, LIMITS))
        claiming = records.claim(
            "default", slot=str(number), nonce="n", n=1, lease_s=600, max_tenant_running=10**6, worker="w", models=["m"]
        )
        [claim] = store.run(claiming)
        artifacts = upload(objects, claim, {"artifact": Finished(artifact, "application/octet-stream")})
        both.run(journal.complete(claim, records.Outcome(State.SUCCEEDED, artifacts=artifacts)))

    with ThreadPoolExecutor(TOGETHER) as pool:
        list(pool.map(end, range(count)))
    for name in store.client.zrange("penstock:finished", 0, -1):
        store.client.zadd("penstock:finished", {name: 0})


def purge_all(store: records.JobStore, objects: ObjectStore, jobs: int, left: int = 0) -> Purged:
    """Run a keeper's duty until nothing is due; `left` jobs are kept."""
    count = sum(1 for _ in objects.list("tenants/"))
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
    after = sum(1 for _ in objects.list("tenants/"))
    if store.client.zcard("penstock:finished") + store.client.zcard("penstock:queue:live:waiting") != left:
        raise RuntimeError(f"{after} objects are left")
    return Purged(jobs, count - after, seconds, slowest_s)


@contextmanager
def opened(folder: Path, *, s3: bool) -> Iterator[tuple[records.JobStore, ObjectStore]]:
    """Start a Valkey and, for S3, Ceph, and open both stores."""
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
        yield store, open_store(settings.store_url, settings)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--s3", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, opened(Path(name), s3=chosen.s3) as (store, objects):
        end_jobs(store, objects, chosen.jobs, Path(name))
        sys.stdout.write(f"{'S3' if chosen.s3 else 'local'}: {purge_all(store, objects, chosen.jobs)}\n")


if __name__ == "__main__":
    main()
