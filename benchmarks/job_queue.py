"""What the job core costs, beside raw Celery on the same broker in the same run: `python -m benchmarks.job_queue`.

Not `queue.py`: beside `scenes.py`, which is run as a script, it would hide Python's own `queue`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from redis import Redis

from benchmarks.http_submit import http_rates
from benchmarks.rivals import DONE, MODEL, QUEUE, THREADS, celery_app
from penstock.jobs import JobKey, Submission, Webhook
from penstock.queue import HintSender
from penstock.storage import journal, records
from penstock.storage.journal import Journal
from penstock.storage.local import LocalStore
from penstock.storage.records import JobStore
from penstock.storage.scripts import source
from tests.valkey import ValkeyProcess, start_valkey

ROOT = Path(__file__).parents[1]
LIMITS = records.QueueLimits(max_queued=10**7, max_tenant_jobs=10**7, retention_s=3600, max_crashes=3)
HOOK = Webhook("http://nobody.invalid/")
DEPTHS = (10, 1_000, 100_000)
SAMPLES = 400


@dataclass(frozen=True, slots=True)
class Kind:
    """Which jobs, and how many a claim takes."""

    claims: int
    hook: Webhook | None = None
    durable: bool = False
    #: Every how many submits send a hint. The API sends one after each.
    hint_every: int = 1

    def __str__(self) -> str:
        words = [f"jobs, {self.claims} a claim"]
        words += ["each with a webhook row"] if self.hook else []
        words += ["manifests on the local store"] if self.durable else []
        words += [f"a hint for every {self.hint_every}th"] if self.hint_every > 1 else []
        return ", ".join(words)


KINDS = (Kind(1), Kind(16), Kind(16, HOOK), Kind(16, HOOK, hint_every=16), Kind(16, durable=True))
LIVE = "penstock:tenant:default:live"


def main(arguments: list[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.job_queue", description=__doc__)
    parser.add_argument("--jobs", type=int, default=4000, help="of each throughput run")
    parser.add_argument("--depths", type=int, nargs="*", default=DEPTHS)
    parser.add_argument("--profile", type=Path, help="write a profile of one slot to this file")
    parser.add_argument("--no-http", action="store_true")
    chosen = parser.parse_args(arguments)
    say("| what | figure | beside Celery |\n| --- | --- | --- |")
    throughputs(chosen.jobs, chosen.profile)
    with fresh_valkey() as valkey:
        say(f"| warm submit -> start, p50 | {start_p50_ms(valkey):.1f} ms | |")
    costs(chosen.depths)
    with fresh_valkey() as valkey:
        queued, finished = memory_bytes(valkey, 2000)
        say(f"| Redis memory of a queued / finished job | {queued:.0f} / {finished:.0f} bytes | |")
    if not chosen.no_http:
        for durability in ("redis", "manifest"):
            for line in http_rates(durability):
                say(line)


def throughputs(count: int, profile: Path | None) -> None:
    """Print how fast one producer and one worker are together, and the worker alone on a full queue."""
    with fresh_valkey() as valkey:
        raw = celery_rate(valkey, count)
        say(f"| raw Celery: no-op tasks, one producer, one worker | {raw:.0f}/s | 1.00 |")
    for kind in KINDS:
        with fresh_valkey() as valkey:
            rate = penstock_rate(valkey, count, kind)
            say(f"| {kind}, one producer, one worker | {rate:.0f}/s | {rate / raw:.2f} |")
    with fresh_valkey() as valkey:
        raw = celery_drain_rate(valkey, count)
        say(f"| raw Celery: worker alone on a full queue | {raw:.0f}/s | 1.00 |")
    for kind in (kind for kind in KINDS if kind.hint_every == 1):
        with fresh_valkey() as valkey:
            rate = penstock_drain_rate(valkey, count, kind, profile if kind == KINDS[1] else None)
            say(f"| {kind}, worker alone on a full queue | {rate:.0f}/s | {rate / raw:.2f} |")


@contextmanager
def fresh_valkey() -> Iterator[ValkeyProcess]:
    """Give a server without data, with the durability of production."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        server = start_valkey(Path(folder))
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def rival(*words: str, **environment: str) -> Iterator[None]:
    """Run a worker inside the block."""
    variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment}
    command = [sys.executable, "-m", "benchmarks.rivals", *words]
    process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def celery_rate(valkey: ValkeyProcess, count: int) -> float:
    """Return tasks per second from the first send to the last acknowledgement."""
    app = celery_app(valkey.url)
    with Redis.from_url(valkey.url) as client, rival("celery", valkey.url):
        app.send_task("noop", queue="noop")
        _wait_until(lambda: not client.exists("noop", "unacked"), pause_s=0.5)

        def produce() -> None:
            for _ in range(count):
                app.send_task("noop", queue="noop")

        return count / _timed(produce, lambda: not client.exists("noop", "unacked"))


def penstock_rate(valkey: ValkeyProcess, count: int, kind: Kind) -> float:
    """Return jobs per second from the first submit to the last completion; every submit sends its hint."""
    hints, folder = HintSender(valkey.url), str(valkey.folder / "objects")
    store = JobStore.open(valkey.url)
    with store.client as client, rival("penstock", valkey.url, str(kind.claims), folder):

        def produce(number: int = count) -> None:
            submit_many(store, folder, number, kind, hints)

        produce(1)
        _wait_until(lambda: not client.exists(LIVE), pause_s=0.2)
        return count / _timed(produce, lambda: not client.exists(LIVE))


def submit_many(store: JobStore, folder: str, count: int, kind: Kind, hints: HintSender | None = None) -> None:
    """Submit jobs one after the other, each with its hint if there is a sender."""
    desk = Journal(store, LocalStore(Path(folder)))
    limits = replace(LIMITS, durable=kind.durable)
    for number in range(count):
        desk.run(journal.submit(job(kind.hook), limits))
        if hints is not None and number % kind.hint_every == 0:
            hints.send(QUEUE)


def celery_drain_rate(valkey: ValkeyProcess, count: int) -> float:
    """Return tasks per second of a worker that finds its queue full."""
    app = celery_app(valkey.url)
    for _ in range(count):
        app.send_task("noop", queue="noop")
    with Redis.from_url(valkey.url) as client, rival("celery", valkey.url):
        return _drain_rate(lambda: int(client.llen("noop")) + int(client.hlen("unacked")))


def penstock_drain_rate(valkey: ValkeyProcess, count: int, kind: Kind, profile: Path | None) -> float:
    """Return jobs per second of a worker that finds its queue full and has a hint for each of its threads."""
    store, hints, folder = JobStore.open(valkey.url), HintSender(valkey.url), str(valkey.folder / "objects")
    submit_many(store, folder, count, kind)
    for _ in range(THREADS):
        hints.send(QUEUE)
    environment = {"BENCH_PROFILE": str(profile)} if profile else {}
    with store.client as client, rival("penstock", valkey.url, str(kind.claims), folder, **environment):
        return _drain_rate(lambda: int(client.scard(LIVE)))


def _drain_rate(left: Callable[[], int]) -> float:
    full = left()
    _wait_until(lambda: left() < full)
    begun, at_begin = time.perf_counter(), left()
    _wait_until(lambda: left() == 0)
    return at_begin / (time.perf_counter() - begun)


def start_p50_ms(valkey: ValkeyProcess) -> float:
    """Return the median time between a submit and its start by Redis' clock, one job at a time."""
    store, hints = JobStore.open(valkey.url), HintSender(valkey.url)
    took: list[float] = []
    with store.client as client, rival("penstock", valkey.url, "1", str(valkey.folder)):
        for _ in range(60):
            wanted = job()
            store.run(records.submit(wanted, LIMITS))
            hints.send(QUEUE)
            _wait_until(lambda: not client.exists(LIVE))
            found = store.run(records.read(wanted.key))
            took.append(((found.started_s or 0) - found.created_s) * 1000)
    return median(took[10:])


def costs(depths: Sequence[int]) -> None:
    """Print what a submit and a claim cost with this many jobs queued, client and server together."""
    with fresh_valkey() as valkey:
        store = JobStore.open(valkey.url)
        queued = 0
        for depth in depths:
            fill(store, depth - queued)
            queued = depth
            submits, claims = [], []
            for _ in range(SAMPLES):
                submits.append(_once_ms(lambda: store.run(records.submit(job(), LIMITS))))
                claims.append(_once_ms(lambda: complete_one(store)))
            figures = f"{median(submits):.2f} / {median(claims):.2f} ms"
            say(f"| submit / claim + complete with {depth} queued, p50 | {figures} | |")
        store.close()


def complete_one(store: JobStore) -> None:
    """Claim the next job and complete it."""
    command = records.claim(
        QUEUE, slot="s", nonce=uuid.uuid4().hex, n=1, lease_s=30, max_tenant_running=10**6, worker="w", models=[MODEL]
    )
    for claim in store.run(command):
        store.run(records.complete(claim, DONE))


def fill(store: JobStore, count: int) -> None:
    """Queue jobs, many in one round trip."""
    script = store.client.script_load(source("submit"))
    for begin in range(0, count, 500):
        with store.client.pipeline(transaction=False) as pipe:
            for _ in range(min(500, count - begin)):
                pipe.evalsha(script, 0, *(str(arg) for arg in records.submit(job(), LIMITS).args))
            pipe.execute()


def memory_bytes(valkey: ValkeyProcess, count: int) -> tuple[float, float]:
    """Return what a queued job and a finished one without webhook take in Redis."""
    store = JobStore.open(valkey.url)

    def used() -> int:
        return int(store.client.info("memory")["used_memory"])

    before = used()
    fill(store, count)
    queued = used() - before
    for _ in range(count):
        complete_one(store)
    _wait_until(lambda: not list(store.client.scan_iter("penstock:claim:*", count=10_000)), within_s=60, pause_s=0.5)
    finished = used() - before
    store.close()
    return queued / count, finished / count


def job(hook: Webhook | None = None) -> Submission:
    """Return a job like a small scene's."""
    key = JobKey("default", str(uuid.uuid4()))
    wanted = {"scene": "s3://scenes/2026/11/S2A_T32TQM_20261120.tif", "outputs": ["mask", "statistics"]}
    return Submission(key, MODEL, QUEUE, wanted, "f" * 64, webhook=hook)


def _timed(produce: Callable[[], None], over: Callable[[], bool]) -> float:
    begun = time.perf_counter()
    produce()
    _wait_until(over)
    return time.perf_counter() - begun


def _once_ms(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return (time.perf_counter() - begun) * 1000


def _wait_until(condition: Callable[[], bool], *, pause_s: float = 0.002, within_s: float = 600) -> None:
    ends = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError("the workers do not finish")
        threading.Event().wait(pause_s)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
