"""Processor time of a small job in each process, from the HTTP request to the stored result.

    python -m benchmarks.price [noop] [text] [picture] [raster] [--jobs 2000] [--durability manifest] [--store s3]

`penstock up` runs Valkey, one API, one worker with four slots and the keeper. A client in another process keeps jobs in
flight over eight connections and does not read them again; the time ends when the last job has ended. Runners do not
compute, except that of `text`, a network of 260,000 parameters that makes one token: the figures are the service's own
cost. Raw Celery (no-op tasks, the same Valkey settings, four threads) runs
before and after, as the baseline of the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import psutil
from redis import Redis

from benchmarks.flood import Connection, request_of
from benchmarks.job_queue import LIVE, celery_rate, fresh_valkey
from benchmarks.small_images import write_image, write_model
from penstock.client import Client
from penstock.up.valkey import recorded_url
from tests.support.ceph import start_ceph
from tests.support.geo.scenes import write_scene
from tests.support.hub import STORIES
from tests.support.stack import Stack, running, wait_for

ROOT = Path(__file__).parents[1]
KINDS = ("noop", "text", "picture", "raster")
CONNECTIONS, SLOTS = 8, 4
#: Jobs before the measurement: they start the IO processes and fill the caches.
FIRST = 100
#: Processor seconds of all processes in a second without jobs, at most.
QUIET_S = 0.15
#: Milliseconds of our own processes for each kind.
GOALS = {"noop": 4.0, "picture": 6.0, "raster": 60.0}

MODELS = """
[models.noop]
title = "Nothing"
runner = "fake"
processor = "noop"
source = "."
revision = "1"
max_batch = 8
warm_up = false

[models.picture]
title = "Ten classes, and a device that takes no time"
runner = "fake"
processor = "image-classification"
source = "{source}"
revision = "1"
max_batch = 8
options = {{ classes = 10, answer = "logits" }}

[models.raster]
title = "Two classes, and a device that takes no time"
runner = "fake"
processor = "raster-segmentation"
source = "."
revision = "1"

[models.raster.options]
tile_px = 256
halo_px = 8
bands = [{{ name = "one", mean = 100.0, std = 50.0 }}, {{ name = "other", mean = 120.0, std = 70.0 }}]
classes = [{{ id = 0, name = "a", colour = "#000000" }}, {{ id = 1, name = "b", colour = "#ffffff" }}]
default_radiometry = [{{ dtypes = ["uint8"], scale = 1.0 }}]
"""

TEXT = """
[models.text]
title = "One token of a very small network"
runner = "transformers"
processor = "text-generation"
source = "{stories}"
revision = "1"
max_batch = 8
device = "cpu"
"""


@dataclass(frozen=True, slots=True)
class Price:
    """Cost of the jobs of a kind: processor seconds by process, and the rate from the first request to the last end."""

    jobs: int
    took_s: float
    spent_s: Counter[str]

    @property
    def own_ms(self) -> float:
        """Milliseconds of our own processes for a job: all but Valkey."""
        return (self.spent_s.total() - self.spent_s["valkey"]) / self.jobs * 1000

    def parts(self) -> str:
        """Return the milliseconds of each process for a job."""
        return ", ".join(f"{name} {seconds / self.jobs * 1000:.2f}" for name, seconds in self.spent_s.most_common())


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.price", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="kinds of jobs (default: all)")
    parser.add_argument("--jobs", type=int, default=2000, help="no-op jobs; a tenth of it of rasters")
    parser.add_argument("--durability", choices=["manifest", "redis"], default="manifest")
    parser.add_argument("--store", choices=["folder", "s3"], default="folder", help="s3: Ceph on this machine")
    parser.add_argument("--no-celery", action="store_true", help="leave the baseline out")
    chosen = parser.parse_args(arguments)
    kinds = chosen.kinds or [kind for kind in KINDS if kind != "text" or STORIES.is_dir()]
    before = None if chosen.no_celery else _celery(chosen.jobs)
    say("| job | processor time of our own processes | goal | the parts, with Valkey | rate |")
    say("| --- | --- | --- | --- | --- |")
    with service(kinds, chosen.durability, chosen.store) as (stack, bodies):
        for kind in kinds:
            price = measure(stack, bodies[kind], chosen.jobs // (10 if kind == "raster" else 1))
            goal = f"<= {GOALS[kind]:.0f} ms" if kind in GOALS else ""
            say(f"| {kind} | {price.own_ms:.2f} ms | {goal} | {price.parts()} | {price.jobs / price.took_s:.0f}/s |")
    if before is not None:
        after = _celery(chosen.jobs)
        rates = ", ".join(f"{each[0]:.0f}/s, {each[1]:.2f} ms" for each in (before, after))
        say(f"| raw Celery, no-op, producer and Valkey included: before, after | {rates} | | | |")


def _celery(jobs: int) -> tuple[float, float]:
    with fresh_valkey() as valkey:
        rate = celery_rate(valkey, jobs)
    return rate.per_s, rate.cpu_ms


@contextmanager
def service(kinds: Sequence[str], durability: str, store: str) -> Iterator[tuple[Stack, dict[str, dict[str, Any]]]]:
    """Run the service; yield it and the request of each kind."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-price-", ignore_cleanup_errors=True))
        )
        config = f'slots = {SLOTS}\nmodels = ["{_catalogue(folder, kinds)}"]\ndurability = "{durability}"\n'
        config += "max_queued = 1000000\nmax_tenant_jobs = 1000000\nmax_tenant_running = 1000\n"
        variables = {"PYTHONPATH": f"{ROOT}:{write_plugin(folder)}"}
        if store == "s3":
            ceph = start_ceph(
                Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ceph-", ignore_cleanup_errors=True)))
            )
            stack.callback(ceph.stop)
            secret = ceph.s3.secret_access_key
            said = ceph.s3.model_dump(exclude_none=True) | (
                {"secret_access_key": secret.get_secret_value()} if secret else {}
            )
            variables |= {f"PENSTOCK_S3__{name.upper()}": str(value) for name, value in said.items()}
            variables["PENSTOCK_OBJECT_STORE"] = f"s3://{ceph.bucket()}"
        up = stack.enter_context(running(folder / "data", config=config, **variables))
        with up.client() as client:
            wait_for(lambda: {*kinds, "csmask"} <= _served(client), "the models are not served")
            yield up, {kind: _body(kind, client, folder) for kind in kinds}


def measure(stack: Stack, body: dict[str, Any], jobs: int) -> Price:
    """Return the cost of jobs, after some that are not measured."""
    _press(stack, body, FIRST)
    _wait_until_quiet(stack)
    before, begun = _processor_s(stack), time.perf_counter()
    _press(stack, body, jobs)
    took_s = time.perf_counter() - begun
    return Price(jobs, took_s, _processor_s(stack) - before)


def _wait_until_quiet(stack: Stack) -> None:
    """Wait until all processes together have used little for a second: other models are warmed up by then."""

    def quiet() -> bool:
        before = _processor_s(stack).total()
        time.sleep(1)
        return _processor_s(stack).total() - before < QUIET_S

    wait_for(quiet, "the service does not rest")


def _press(stack: Stack, body: dict[str, Any], jobs: int) -> None:
    """Submit jobs and wait until they have ended; raise `RuntimeError` unless all succeeded."""
    asyncio.run(_in_a_process(stack.port, body, jobs))
    with Redis.from_url(recorded_url(stack.data / "valkey") or "") as client:
        wait_for(lambda: not client.exists(LIVE), "the jobs do not end", timeout_s=600)
    with stack.client() as client:
        if any(not job.succeeded for job in client.jobs(limit=100).jobs):
            raise RuntimeError("a job did not succeed")


async def _in_a_process(port: int, body: dict[str, Any], jobs: int) -> None:
    order = json.dumps({"port": port, "body": body, "jobs": jobs}).encode()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.price", "--send", stdin=PIPE, cwd=ROOT
    )  # fmt: skip
    await process.communicate(order)
    if process.returncode:
        raise RuntimeError(f"the client ended with {process.returncode}")


async def send(port: int, body: dict[str, Any], jobs: int) -> None:
    """Submit jobs, one after the other on each connection."""
    data, numbers = json.dumps(body).encode(), iter(range(jobs))

    async def keep_posting() -> None:
        connection = Connection(port)
        for _ in numbers:
            request = request_of(port, "/v1/jobs", "", data)
            while (asked := await connection.ask(request))[0] == 503:  # too busy beside other work
                await asyncio.sleep(0.1)
            status, _, answer = asked
            if status not in (200, 202):
                raise RuntimeError(answer.decode())
        connection.close()

    await asyncio.gather(*(keep_posting() for _ in range(CONNECTIONS)))


def _processor_s(stack: Stack) -> Counter[str]:
    """Return the processor time so far of the API, the worker, its IO processes, Valkey and the rest."""
    root = psutil.Process(stack.process.pid)
    names = {stack.pid(name): name for name in ("api", "worker", "keeper", "valkey")}
    found: Counter[str] = Counter()
    for process in (root, *root.children(recursive=True)):
        try:
            below, times = {parent.pid for parent in process.parents()}, process.cpu_times()
        except psutil.NoSuchProcess:  # it has just ended, and counts for its parent
            continue
        name = names.get(process.pid) or ("IO processes" if stack.pid("worker") in below else "up")
        found[name] += times.user + times.system
        # Processes that have ended count for the one that waited for them.
        found["IO processes" if name in ("worker", "IO processes") else name] += (
            times.children_user + times.children_system
        )
    return found


def _catalogue(folder: Path, kinds: Sequence[str]) -> Path:
    source = write_model(folder)
    path = folder / "models.toml"
    path.write_text(MODELS.format(source=source) + (TEXT.format(stories=STORIES) if "text" in kinds else ""))
    return path


def write_plugin(folder: Path) -> Path:
    """Write an installed package's entry point, which names the processor; return the folder for `sys.path`."""
    place = folder / "plugin"
    info = place / "penstock_noop-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-noop\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[penstock.io_processors]\nnoop = benchmarks.noop_processor:Noop\n")
    return place


def _body(kind: str, client: Client, folder: Path) -> dict[str, Any]:
    match kind:
        case "noop":
            wanted: dict[str, Any] = {"text": "nothing"}
        case "text":
            wanted = {"prompt": "Once upon a time", "max_new_tokens": 1}
        case "picture":
            wanted = {"images": client.upload(write_image(folder))}
        case _:
            scene = write_scene(folder / "scene.tif", np.full((2, 32, 32), 100, np.uint8))
            wanted = {"scene": client.upload(scene)}
    return {"model": kind, "input": wanted}


def _served(client: Client) -> set[str]:
    return {model.name for model in client.models() if model.problem is None}


def say(line: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:] == ["--send"]:
        asyncio.run(send(**json.load(sys.stdin)))
    else:
        main(sys.argv[1:])
