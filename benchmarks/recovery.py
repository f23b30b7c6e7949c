"""Recovery: the jobs per second that a keeper restores in an emptied Redis, and when the live ones are queued again.

    python -m benchmarks.recovery [--jobs 2000] [--live 200] [--s3]

Each ended job has a request, an outcome and an artifact in the object store: a local one, or Ceph with
`--s3`. Live jobs have a request.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import psutil

from benchmarks.retention import LIMITS, end_jobs, opened
from penstock.jobs import JobKey, Submission
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import queues, records
from penstock.workers.keeper.recovery import recover_if_lost


def submit_jobs(store: records.JobStore, objects: ObjectStore, count: int) -> None:
    """Submit jobs that wait."""
    both = Journal(store, objects)
    for number in range(count):
        submission = Submission(JobKey("default", str(uuid.uuid4())), "m", "live", {"n": number}, "f")
        both.run(journal.submit(submission, LIMITS))


def processor_s() -> Counter[str]:
    """Return the processor time of the keeper, which is this process, and of its services by their names."""
    spent = Counter({"keeper": time.process_time()})
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        spent[child.name()] += times.user + times.system
    return spent


def recover_all(store: records.JobStore, objects: ObjectStore, live: int) -> tuple[float, float]:
    """Empty Redis and recover; return the seconds until all live jobs were queued, and until all were restored."""
    store.client.flushall()
    queued_s = 0.0
    begun = time.monotonic()
    thread = threading.Thread(target=recover_if_lost, args=(store, objects))
    thread.start()
    while thread.is_alive():
        if not queued_s and store.run(queues.backlog()).get("live", 0) == live:
            queued_s = time.monotonic() - begun
        thread.join(0.02)
    seconds = time.monotonic() - begun
    return queued_s or seconds, seconds


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--live", type=int, default=200)
    parser.add_argument("--s3", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, opened(Path(name), s3=chosen.s3) as (store, objects):
        end_jobs(store, objects, chosen.jobs, Path(name))
        submit_jobs(store, objects, chosen.live)
        before = processor_s()
        queued_s, seconds = recover_all(store, objects, chosen.live)
        each_ms = {name: spent / (chosen.jobs + chosen.live) * 1000 for name, spent in (processor_s() - before).items()}
        rate = (chosen.jobs + chosen.live) / seconds
        where = "S3" if chosen.s3 else "local"
        sys.stdout.write(
            f"{where}: {chosen.live} live jobs queued after {queued_s:.1f} s; "
            f"with {chosen.jobs} ended ones {seconds:.1f} s, {rate:.0f} jobs/s\n"
            f"processor time of a job: {', '.join(f'{name} {ms:.2f} ms' for name, ms in each_ms.items())}\n"
        )


if __name__ == "__main__":
    main()
