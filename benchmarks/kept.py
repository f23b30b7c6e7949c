"""A million kept jobs: recovery of an emptied Redis, lists, sweeps and retention, beside the same with few.

    python -m benchmarks.kept [--jobs 10000 1000000] [--live 200] [--purged 5000]

A few jobs run to their end; the others are copies of their requests and outcomes in a folder, with ids of their own and
without their artifacts, which no recovery reads. The recovery is the first that Redis hears of them. A million take
12 GB of disk and 3 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from statistics import median

from benchmarks.recovery import recover_all, submit_jobs
from benchmarks.retention import end_jobs, opened, purge_all
from penstock.jobs import Status
from penstock.storage.redis import listing, records
from penstock.storage.redis.records import JobStore
from penstock.up.valkey import SMALL_RECORDS

#: Jobs that really run.
MADE = 50
#: Calls of each measurement.
CALLS = 50
#: Jobs between two lines about a recovery under way.
STEP = 50_000
JOBS = Path("data/objects/tenants/default/jobs")
COPIED = ("request.json", "outcome.json")


def copy_jobs(folder: Path, count: int) -> None:
    """Copy requests and outcomes of ended jobs until a folder has so many, each a millisecond older than the last."""
    made = [job for job in (folder / JOBS).iterdir() if (job / "outcome.json").exists()]
    texts = [(job.name, [(name, (job / name).read_text()) for name in COPIED]) for job in made]
    for number, (old, files) in zip(range(count - len(made)), cycle(texts), strict=False):
        new = str(uuid.uuid4())
        job = folder / JOBS / new
        job.mkdir()
        created_us = json.loads(files[0][1])["created_us"]
        for name, text in files:
            older = text.replace(f"{created_us}", f"{created_us - 1000 * (number + 1)}")
            (job / name).write_text(older.replace(old, new))


def measure(jobs: int, live: int, purged: int) -> dict[str, str]:
    """Return the figures of so many kept jobs, by their names."""
    with tempfile.TemporaryDirectory(prefix="bench-kept-") as name, opened(Path(name), s3=False) as (store, objects):
        for option, value in SMALL_RECORDS.items():
            store.client.config_set(option, value)
        end_jobs(store, objects, MADE, Path(name))
        submit_jobs(store, objects, live)
        begun = time.monotonic()
        copy_jobs(Path(name), jobs)
        say(f"{jobs} jobs made in {time.monotonic() - begun:.0f} s, load {os.getloadavg()[0]:.1f}")
        with told(store):
            queued_s, seconds = recover_all(store, objects, live)
        found = store.client.zcard("penstock:tenant:default:jobs")
        if found != jobs + live:
            raise RuntimeError(f"{found} of {jobs + live} jobs were restored")
        figures = {
            "recovery: the live jobs are queued": f"{queued_s:.1f} s",
            "recovery: all are restored": f"{seconds:.0f} s, {(jobs + live) / seconds:.0f}/s",
            "memory of Valkey for a kept job": f"{store.client.info('memory')['used_memory'] / jobs / 1000:.2f} kB",
            "most memory of the keeper so far": f"{peak_mb()} MB",
        }
        for what, command in lists(store).items():
            figures[what] = f"{milliseconds(command):.2f} ms"
        figures["sweep of leases"] = f"{milliseconds(lambda: store.run(records.sweep())):.2f} ms"
        kept = store.client.zrange("penstock:finished", 0, purged - 1)
        store.client.zadd("penstock:finished", dict.fromkeys(kept, 0))
        gone = purge_all(store, objects, len(kept), left=jobs + live - len(kept))
        figures["retention"] = (
            f"{gone.jobs / gone.seconds:.0f} jobs/s, slowest sweep {gone.slowest_sweep_s * 1000:.0f} ms"
        )
        say(f"{jobs} jobs: {figures}")  # removing the files of very many takes minutes
        return figures


def lists(store: JobStore) -> dict[str, Callable[[], object]]:
    """Return calls that list jobs of the tenant, by what they list."""
    oldest = store.client.zrange("penstock:tenant:default:jobs", 0, 200, withscores=True)[-1]
    cursor = f"{int(oldest[1])}-{oldest[0]}"
    return {
        "list: first page of 50": lambda: store.run(listing.list_jobs("default", limit=50)),
        "list: the last page but three": lambda: store.run(listing.list_jobs("default", limit=50, cursor=cursor)),
        "list: a page of failed jobs, of which there are none": lambda: store.run(
            listing.list_jobs("default", limit=50, status=Status.FAILED)
        ),
    }


def milliseconds(act: Callable[[], object]) -> float:
    """Return the median time of an action."""
    took = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        act()
        took.append(time.perf_counter() - begun)
    return median(took) * 1000


@contextmanager
def told(store: JobStore) -> Iterator[None]:
    """Say how far a recovery is, on the standard error stream, inside the block."""
    done, begun = threading.Event(), time.monotonic()

    def look() -> None:
        said = 0
        while not done.wait(1):
            found = int(store.client.zcard("penstock:tenant:default:jobs"))
            if found >= said + STEP:
                said = found
                sys.stderr.write(f"{found} jobs after {time.monotonic() - begun:.0f} s, keeper {peak_mb()} MB\n")

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def peak_mb() -> int:
    """Return the most memory that this process had, which is the keeper."""
    words = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()
    return int(words[0]) // 1000


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kept", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, nargs="+", default=[10_000, 1_000_000], help="kept jobs of each column")
    parser.add_argument("--live", type=int, default=200, help="jobs that wait")
    parser.add_argument("--purged", type=int, default=5000, help="jobs whose retention is over")
    chosen = parser.parse_args(arguments)
    columns = [measure(jobs, chosen.live, min(chosen.purged, jobs)) for jobs in chosen.jobs]
    say(f"| | {' | '.join(f'{jobs:,} kept jobs' for jobs in chosen.jobs)} |")
    say(f"| --- |{' --- |' * len(columns)}")
    for what in columns[0]:
        say(f"| {what} | {' | '.join(column[what] for column in columns)} |")


def say(line: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
