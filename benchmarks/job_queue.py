"""Cost of the job core compared with raw Celery on the same broker: `python -m benchmarks.job_queue`."""

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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import psutil
from redis import Redis

from benchmarks.http_submit import http_rates
from benchmarks.rivals import DONE, MODEL, QUEUE, THREADS, celery_app
from penstock.config import S3, load_settings
from penstock.jobs import JobKey, Phase, Submission, Webhook
from penstock.queue import HintSender
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import records
from penstock.storage.redis.records import JobStore
from penstock.storage.redis.scripts import source
from penstock.up.valkey import SMALL_RECORDS
from tests.support.ceph import missing_binaries, start_ceph
from tests.support.valkey import ValkeyProcess, start_valkey

ROOT = Path(__file__).parents[1]
LIMITS = records.QueueLimits(max_queued=10**7, max_tenant_jobs=10**7, retention_s=3600, max_crashes=3)
HOOK = Webhook("http://nobody.invalid/")
DEPTHS = (10, 1_000, 100_000)
SAMPLES = 400
#: The phases of a small job, with the microseconds to their start.
PHASES = tuple((phase, 100_000 * number) for number, phase in enumerate(Phase) if phase is not Phase.WAITING)


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of jobs, and jobs per claim."""

    claims: int
    hook: Webhook | None = None
    #: Object store of the manifests of durable jobs: `local` or `s3`.
    manifests: str | None = None
    #: Submissions per hint. The API sends one hint after each submission.
    hint_every: int = 1

    def __str__(self) -> str:
        words = [f"jobs, {self.claims} a claim"]
        words += ["each with a webhook row"] if self.hook else []
        words += (
            [f"manifests on {'S3 (Ceph)' if self.manifests == 's3' else 'the local store'}"] if self.manifests else []
        )
        words += [f"a hint for every {self.hint_every}th"] if self.hint_every > 1 else []
        return ", ".join(words)


KINDS = (
    Kind(1),
    Kind(16),
    Kind(16, HOOK),
    Kind(16, HOOK, hint_every=16),
    Kind(16, manifests="local"),
    Kind(16, manifests="s3"),
)
LIVE = "penstock:tenant:default:live"


def main(arguments: list[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.job_queue", description=__doc__)
    parser.add_argument("--jobs", type=int, default=4000, help="jobs per throughput run")
    parser.add_argument("--depths", type=int, nargs="*", default=DEPTHS)
    parser.add_argument("--profile", type=Path, help="write a profile of one slot to this file")
    parser.add_argument("--no-http", action="store_true")
    chosen = parser.parse_args(arguments)
    say("| what | figure | beside Celery |\n| --- | --- | --- |")
    throughputs(chosen.jobs, chosen.profile)
    with fresh_valkey() as valkey:
        say(f"| warm submit -> start, p50 | {start_p50_ms(valkey):.1f} ms | |")
    costs(chosen.depths)
    phases_cost()
    with fresh_valkey() as valkey:
        queued, finished = memory_bytes(valkey, 2000)
        say(f"| memory of a queued / finished job | {queued / 1000:.1f} / {finished / 1000:.1f} kB | |")
    with fresh_valkey() as valkey:
        with Redis.from_url(valkey.url) as client:
            for name, value in SMALL_RECORDS.items():
                client.config_set(name, value)
        queued, finished = memory_bytes(valkey, 2000)
        say(f"| the same with the bundled Valkey's settings | {queued / 1000:.1f} / {finished / 1000:.1f} kB | |")
    if not chosen.no_http:
        for durability in ("redis", "manifest"):
            for line in http_rates(durability):
                say(line)


def throughputs(count: int, profile: Path | None) -> None:
    """Print the rates of one producer with one worker, and of the worker alone on a full queue."""
    kinds = [kind for kind in KINDS if kind.manifests != "s3" or not missing_binaries()]
    together = "one producer, one worker"
    compare(together, celery_rate, penstock_rate, kinds, count)
    kinds = [kind for kind in kinds if kind.hint_every == 1]
    profiled = partial(penstock_drain_rate, profile=profile)
    compare("worker alone on a full queue", celery_drain_rate, profiled, kinds, count)


def compare(
    how: str,
    celery: Callable[[ValkeyProcess, int], Rate],
    penstock: Callable[[ValkeyProcess, int, Kind], Rate],
    kinds: Sequence[Kind],
    count: int,
) -> None:
    """Print the rate of each kind and of Celery, which is the mean of a first and a last run."""
    before = _with_valkey(celery, count)
    rates = {str(kind): _with_valkey(penstock, count, kind) for kind in kinds}
    after = _with_valkey(celery, count)
    raw = Rate((before.per_s + after.per_s) / 2, (before.cpu_ms + after.cpu_ms) / 2)
    say(f"| raw Celery: no-op tasks, {how} | {raw.per_s:.0f}/s, {raw.cpu_ms:.2f} ms | 1.00 |")
    for name, rate in rates.items():
        ratios = f"{rate.per_s / raw.per_s:.2f} (by processor time {raw.cpu_ms / rate.cpu_ms:.2f})"
        say(f"| {name}, {how} | {rate.per_s:.0f}/s, {rate.cpu_ms:.2f} ms | {ratios} |")


def _with_valkey(measure: Callable[..., Rate], *given: object) -> Rate:
    with fresh_valkey() as valkey:
        return measure(valkey, *given)


@dataclass(frozen=True, slots=True)
class Rate:
    """Jobs per second, and processor time of all processes per job, which depends less on other load."""

    per_s: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Meter:
    """Meter of the processor time of Valkey, a worker and optionally this process, from now on."""

    valkey: ValkeyProcess
    worker: psutil.Process
    producing: bool

    def cpu_s(self) -> float:
        """Return the processor time so far."""
        used = [psutil.Process(self.valkey.pid).cpu_times(), self.worker.cpu_times()]
        return sum(times.user + times.system for times in used) + (time.process_time() if self.producing else 0.0)


@dataclass(frozen=True, slots=True)
class Place:
    """Object store of a run's manifests, and its environment variables for the worker."""

    url: str
    s3: S3

    @property
    def objects(self) -> ObjectStore:
        """The object store."""
        return open_store(self.url, load_settings(s3=self.s3))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the worker."""
        secret = self.s3.secret_access_key
        said = self.s3.model_dump(exclude_none=True) | (
            {"secret_access_key": secret.get_secret_value()} if secret else {}
        )
        return {f"PENSTOCK_S3__{name.upper()}": str(value) for name, value in said.items()}


@contextmanager
def place(valkey: ValkeyProcess, kind: Kind) -> Iterator[Place]:
    """Yield the object store of a run; S3 is a Ceph cluster on this machine."""
    if kind.manifests != "s3":
        yield Place((valkey.folder / "objects").as_uri(), S3())
        return
    with tempfile.TemporaryDirectory(prefix="ceph-", ignore_cleanup_errors=True) as folder:
        ceph = start_ceph(Path(folder))
        try:
            yield Place(f"s3://{ceph.bucket()}", ceph.s3)
        finally:
            ceph.stop()


@contextmanager
def fresh_valkey() -> Iterator[ValkeyProcess]:
    """Yield an empty server with production durability."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        server = start_valkey(Path(folder))
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def rival(*words: str, **environment: str) -> Iterator[psutil.Process]:
    """Run a worker inside the block."""
    variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment}
    command = [sys.executable, "-m", "benchmarks.rivals", *words]
    process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def celery_rate(valkey: ValkeyProcess, count: int) -> Rate:
    """Return tasks per second from the first send to the last acknowledgement."""
    app = celery_app(valkey.url)
    with Redis.from_url(valkey.url) as client, rival("celery", valkey.url) as worker:
        app.send_task("noop", queue="noop")
        _wait_until(lambda: not client.exists("noop", "unacked"), pause_s=0.5)

        def produce() -> None:
            for _ in range(count):
                app.send_task("noop", queue="noop")

        return _timed(count, produce, lambda: not client.exists("noop", "unacked"), Meter(valkey, worker, True))


def penstock_rate(valkey: ValkeyProcess, count: int, kind: Kind) -> Rate:
    """Return jobs per second from the first submit to the last completion; every submit sends its hint."""
    hints, store = HintSender(valkey.url), JobStore.open(valkey.url)
    with (
        place(valkey, kind) as at,
        store.client as client,
        rival("penstock", valkey.url, str(kind.claims), at.url, **at.environment) as worker,
    ):
        desk = Journal(store, at.objects)

        def produce(number: int = count) -> None:
            submit_many(desk, number, kind, hints)

        produce(1)
        _wait_until(lambda: not client.exists(LIVE), pause_s=0.2)
        return _timed(count, produce, lambda: not client.exists(LIVE), Meter(valkey, worker, True))


def submit_many(desk: Journal, count: int, kind: Kind, hints: HintSender | None = None) -> None:
    """Submit jobs one after the other, each with its hint if there is a sender."""
    limits = replace(LIMITS, durable=kind.manifests is not None)
    for number in range(count):
        desk.run(journal.submit(job(kind.hook), limits))
        if hints is not None and number % kind.hint_every == 0:
            hints.send(QUEUE)


def celery_drain_rate(valkey: ValkeyProcess, count: int) -> Rate:
    """Return tasks per second of a worker that starts with a full queue."""
    app = celery_app(valkey.url)
    for _ in range(count):
        app.send_task("noop", queue="noop")
    with Redis.from_url(valkey.url) as client, rival("celery", valkey.url) as worker:
        left = lambda: int(client.llen("noop")) + int(client.hlen("unacked"))  # noqa: E731
        return _drain_rate(left, Meter(valkey, worker, False))


def penstock_drain_rate(valkey: ValkeyProcess, count: int, kind: Kind, *, profile: Path | None = None) -> Rate:
    """Return jobs per second of a worker that starts with a full queue and a hint for each thread."""
    store, hints = JobStore.open(valkey.url), HintSender(valkey.url)
    with place(valkey, kind) as at, store.client as client:
        submit_many(Journal(store, at.objects), count, kind)
        for _ in range(THREADS):
            hints.send(QUEUE)
        environment = at.environment | ({"BENCH_PROFILE": str(profile)} if profile and kind == KINDS[1] else {})
        with rival("penstock", valkey.url, str(kind.claims), at.url, **environment) as worker:
            return _drain_rate(lambda: int(client.scard(LIVE)), Meter(valkey, worker, False))


def _drain_rate(left: Callable[[], int], meter: Meter) -> Rate:
    full = left()
    _wait_until(lambda: left() < full)
    begun, at_begin, used = time.perf_counter(), left(), meter.cpu_s()
    _wait_until(lambda: left() == 0)
    return Rate(at_begin / (time.perf_counter() - begun), (meter.cpu_s() - used) * 1000 / at_begin)


def start_p50_ms(valkey: ValkeyProcess) -> float:
    """Return the median time between a submit and its start by Redis' clock, one job at a time."""
    store, hints = JobStore.open(valkey.url), HintSender(valkey.url)
    took: list[float] = []
    with store.client as client, rival("penstock", valkey.url, "1", valkey.folder.as_uri()):
        for _ in range(60):
            wanted = job()
            store.run(records.submit(wanted, LIMITS))
            hints.send(QUEUE)
            _wait_until(lambda: not client.exists(LIVE))
            found = store.run(records.read(wanted.key))
            took.append(((found.started_s or 0) - found.created_s) * 1000)
    return median(took[10:])


def costs(depths: Sequence[int]) -> None:
    """Print the latency of submit and claim with numbers of queued jobs, client and server together.

    Each depth has a server of its own, and they are asked in turns: other work on the machine changes all alike. The
    rewrite of the log that filling a queue causes is waited for: it says nothing about the depth.
    """
    with ExitStack() as stack:
        stores = {depth: _filled(stack, depth) for depth in depths}
        submits: dict[int, list[float]] = {depth: [] for depth in depths}
        claims: dict[int, list[float]] = {depth: [] for depth in depths}
        for _ in range(SAMPLES):
            for depth, store in stores.items():
                submits[depth].append(_once_ms(lambda store=store: store.run(records.submit(job(), LIMITS))))
                claims[depth].append(_once_ms(lambda store=store: complete_one(store)))
    for depth in depths:
        figures = f"{median(submits[depth]):.2f} / {median(claims[depth]):.2f} ms"
        say(f"| submit / claim + complete with {depth} queued, p50 | {figures} | |")


def _filled(stack: ExitStack, depth: int) -> JobStore:
    """Return the store of a server with so many queued jobs; it ends with the stack."""
    store = JobStore.open(stack.enter_context(fresh_valkey()).url)
    stack.callback(store.close)
    fill(store, depth)
    _wait_until(lambda: not store.client.info("persistence")["aof_rewrite_in_progress"], pause_s=0.1)
    return store


def phases_cost() -> None:
    """Print the cost of the phases of an attempt, in turn with attempts without: time of the calls, and memory."""
    plain, phased = DONE, replace(DONE, phases=PHASES)
    with fresh_valkey() as valkey:
        store = JobStore.open(valkey.url)
        took: dict[int, list[float]] = {0: [], 1: []}
        for number in range(4 * SAMPLES):
            outcome = phased if number % 2 else plain
            store.run(records.submit(job(), LIMITS))
            took[number % 2].append(_once_ms(lambda done=outcome: complete_one(store, done)))
        store.close()
    without, with_phases = median(took[0]), median(took[1])
    memory = []
    for outcome in (plain, phased):
        with fresh_valkey() as valkey:
            memory.append(memory_bytes(valkey, 2000, outcome)[1])
    times, bytes_ = with_phases / without, memory[1] / memory[0]
    say(f"| claim + complete with the phases of an attempt, p50 | {with_phases:.2f} ms | {times:.2f} of one without |")
    say(f"| memory of a finished job with phases | {memory[1] / 1000:.1f} kB | {bytes_:.2f} of one without |")


def complete_one(store: JobStore, outcome: records.Outcome = DONE) -> None:
    """Claim the next job and complete it."""
    command = records.claim(
        QUEUE, slot="s", nonce=uuid.uuid4().hex, n=1, lease_s=30, max_tenant_running=10**6, worker="w", models=[MODEL]
    )
    for claim in store.run(command):
        store.run(records.complete(claim, outcome))


def fill(store: JobStore, count: int) -> None:
    """Queue jobs, many per round trip."""
    script = store.client.script_load(source("submit"))
    for begin in range(0, count, 500):
        with store.client.pipeline(transaction=False) as pipe:
            for _ in range(min(500, count - begin)):
                pipe.evalsha(script, 0, records.submit(job(), LIMITS).argument)
            pipe.execute()


def memory_bytes(
    valkey: ValkeyProcess, count: int, outcome: records.Outcome = DONE
) -> tuple[float, float]:  # fmt: skip
    """Return the Redis memory of a queued job and of a finished job without webhook."""
    store = JobStore.open(valkey.url)

    def used() -> int:
        return int(store.client.info("memory")["used_memory"])

    store.client.set("penstock:alive", "benchmark")  # as a keeper does: no event waits for its recovery
    fill(store, 100)
    for _ in range(100):  # scripts and connections are there, whatever the number of jobs
        complete_one(store, outcome)
    before = used()
    fill(store, count)
    queued = used() - before
    for _ in range(count):
        complete_one(store, outcome)
    _wait_until(lambda: not list(store.client.scan_iter("penstock:claim:*", count=10_000)), within_s=60, pause_s=0.5)
    finished = used() - before
    store.close()
    return queued / count, finished / count


def job(hook: Webhook | None = None) -> Submission:
    """Return a job similar to a small scene's."""
    key = JobKey("default", str(uuid.uuid4()))
    wanted = {"scene": "s3://scenes/2026/11/S2A_T32TQM_20261120.tif", "outputs": ["mask", "statistics"]}
    return Submission(key, MODEL, QUEUE, wanted, "f" * 64, webhook=hook)


def _timed(count: int, produce: Callable[[], None], over: Callable[[], bool], meter: Meter) -> Rate:
    begun, used = time.perf_counter(), meter.cpu_s()
    produce()
    _wait_until(over)
    return Rate(count / (time.perf_counter() - begun), (meter.cpu_s() - used) * 1000 / count)


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
    """Print a line immediately."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
