"""Processors in threads of the worker compared with IO processes: `python -m benchmarks.io_processes`.

Measures the rate of prompts in the worker while 1, 2 or 4 jobs create them concurrently. All rows are measured one
after the other in each round, and the medians of several rounds are reported, so that other load affects all rows
equally.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from PIL import Image

from benchmarks.io_makers import BANDS, MAKERS, TILE_PX
from penstock.intake.local_media import LocalMedia
from penstock.models import Model
from penstock.processors.base import Output
from penstock.processors.registry import Registry
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import InThread, Processing, Work

JOBS = (1, 2, 4)


def main(arguments: Sequence[str]) -> None:
    """Measure and print tables in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.io_processes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args(arguments).rounds
    processors = {name: f"benchmarks.io_makers:{maker.__name__}" for name, maker in MAKERS.items()}
    registry = Registry()
    for name, maker in MAKERS.items():
        registry = registry.register(name, maker)
    begun = time.monotonic()
    pool, threads = IOPool(max(JOBS), ForkOptions(4 * 2**30, processors=processors)), InThread(registry)
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(Path(folder))
        run(pool, work_of("images", files, 1), 1)
        say(f"the first job ends {time.monotonic() - begun:.2f} s after the pool was made\n")
        throughput(pool, threads, files, rounds)
        lateness(pool, threads, files, rounds)
        crossing(pool, threads, files, rounds)
        processes(pool, files, rounds)
    pool.close()


def throughput(pool: IOPool, threads: Processing, files: dict[str, Path], rounds: int) -> None:
    """Print prompts per second and processor time per prompt."""
    columns = " | ".join(f"{jobs} job{'s' * (jobs > 1)}" for jobs in JOBS)
    say(f"| prompts/s and CPU ms each, threads -> IO processes (ratio) | {columns} |\n| --- | --- | --- | --- |")
    for name, prompts in (("images", 60), ("tiles", 12), ("words", 60)):
        cells = []
        for jobs in JOBS:
            work = work_of(name, files, prompts)
            (a, cpu_a), (b, cpu_b) = interleaved(rounds, (threads, pool), pool, work, jobs)
            cells.append(f"{a:.0f} -> {b:.0f} ({b / a:.2f}), {cpu_a:.1f} -> {cpu_b:.1f} ms ({cpu_b / cpu_a:.2f})")
        say(f"| {MAKERS[name].__doc__} | {' | '.join(cells)} |")
    say("")


def lateness(pool: IOPool, threads: Processing, files: dict[str, Path], rounds: int) -> None:
    """Print the delay of a thread in the worker, such as the engine's scheduler, during the load."""
    say("| a thread that sleeps 1 ms comes late by, p50 / p99 | threads | IO processes |\n| --- | --- | --- |")
    for name, prompts in (("images", 60), ("tiles", 12), ("words", 60)):
        work = work_of(name, files, prompts)
        late: list[list[float]] = [[], []]
        for _ in range(rounds):
            for place, found in zip((threads, pool), late, strict=True):
                found += late_ms(lambda place=place, work=work: run(place, work, 2))
        cells = [f"{np.percentile(found, 50):.1f} / {np.percentile(found, 99):.1f} ms" for found in late]
        say(f"| beside 2 jobs of {name} | {' | '.join(cells)} |")
    say("")


def late_ms(busy: Callable[[], object]) -> list[float]:
    """Return the delays of a repeatedly sleeping thread until the load is done."""
    late, done = [], threading.Event()

    def sleep() -> None:
        while not done.is_set():
            begun = time.perf_counter()
            time.sleep(0.001)
            late.append((time.perf_counter() - begun) * 1000 - 1)

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    busy()
    done.set()
    sleeper.join()
    return late


def crossing(pool: IOPool, threads: Processing, files: dict[str, Path], rounds: int) -> None:
    """Print the additional cost of a prompt from another process."""
    say("| one prompt of | takes longer by | CPU | per MB, CPU |\n| --- | --- | --- | --- |")
    for size in (2**10, 2**16, 2**19, 2**22, 2**24):
        work = work_of("arrays", files, 100, size)
        (a, cpu_a), (b, cpu_b) = interleaved(rounds, (threads, pool), pool, work, 1)
        cost_us, cpu_us, mb = (1 / b - 1 / a) * 1e6, (cpu_b - cpu_a) * 1e3, size / 2**20
        say(f"| {mb:.3f} MB | {cost_us:.0f} us | {cpu_us:.0f} us | {cpu_us / mb:.0f} us |")
    say("")


def processes(pool: IOPool, files: dict[str, Path], rounds: int) -> None:
    """Print the cost of a job's process: new, used again, and with transformers in the template."""
    processors = {name: f"benchmarks.io_makers:{maker.__name__}" for name, maker in MAKERS.items()}
    options = ForkOptions(4 * 2**30, processors=processors, reuse=False)
    say("| a job of one small prompt | processor time | takes |\n| --- | --- | --- |")
    again = job_cost(pool, files, rounds)
    with closing(IOPool(max(JOBS), options)) as fresh:
        new = job_cost(fresh, files, rounds)
    say(f"| in a process that is used again | {again[0]:.2f} ms | {again[1]:.2f} ms |")
    say(f"| in a new process | {new[0]:.2f} ms | {new[1]:.2f} ms |")
    with closing(IOPool(max(JOBS), replace(options, preload=["transformers", "torch"]))) as heavy:
        large = job_cost(heavy, files, rounds)
    say(f"| in a new process, transformers and torch in its template | {large[0]:.2f} ms | {large[1]:.2f} ms |\n")
    server = psutil.Process(pool.server.pid)
    templates = ", ".join(f"{pss_mb(child.pid):.0f}" for child in server.children())
    used = ", ".join(f"{pss_mb(child.pid):.0f}" for each in server.children() for child in each.children())
    say(f"PSS: fork server {pss_mb(server.pid):.0f} MB, templates {templates} MB, IO processes {used} MB")


def job_cost(pool: IOPool, files: dict[str, Path], rounds: int) -> tuple[float, float]:
    """Return the medians of a job's milliseconds: processor time of all processes, and of the clock."""
    work, rows = work_of("arrays", files, 1), []
    run(pool, work, 1)
    for _ in range(rounds):
        before, begun = cpu_s(pool), time.monotonic()
        for _ in range(20):
            run(pool, work, 1)
        rows.append(((cpu_s(pool) - before) * 50, (time.monotonic() - begun) * 50))
    return median(spent for spent, _ in rows), median(taken for _, taken in rows)


def interleaved(
    rounds: int, places: Sequence[Processing], pool: IOPool, work: Work, jobs: int
) -> list[tuple[float, float]]:
    """Return the medians of prompts/s and CPU ms per prompt for threads and processes, measured in turns."""
    for place in places:
        run(place, work, jobs)  # from here on the processor is loaded
    rows = []
    for _ in range(rounds):
        for place in places:
            before = cpu_s(pool)
            rate = run(place, work, jobs)
            rows.append((rate, (cpu_s(pool) - before) / jobs / work.input["prompts"] * 1000))
    columns = [rows[number :: len(places)] for number in range(len(places))]
    return [(median(rate for rate, _ in column), median(cpu for _, cpu in column)) for column in columns]


def cpu_s(pool: IOPool) -> float:
    """Return the processor time of this process and the IO processes."""
    family = psutil.Process(pool.server.pid)
    times = [each.cpu_times() for each in (family, *family.children(recursive=True))]
    return time.process_time() + sum(map(sum, times))  # with those of processes that have ended


def run(processing: Processing, work: Work, jobs: int) -> float:
    """Return the prompts per second of concurrent jobs, each drawn by its own thread."""
    with tempfile.TemporaryDirectory() as folder:
        works = [replace(work, folder=Path(folder, str(number))) for number in range(jobs)]
        begun = time.monotonic()
        threads = [threading.Thread(target=drain, args=(processing, work)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return jobs * work.input["prompts"] / (time.monotonic() - begun)


def drain(processing: Processing, work: Work) -> None:
    """Run one job on an engine that returns immediately."""
    with processing.open(work, check=lambda: None, say=lambda _: None) as session:
        session.finish(Output({}) for _ in session.prompts)


def work_of(name: str, files: dict[str, Path], prompts: int, size_bytes: int = 0) -> Work:
    """Return a job of one processor."""
    model = Model(name=name, title=name, runner="fake", processor=name, source=".", revision="1")
    path = files.get(name, files["images"])
    request = {"prompts": prompts, "size_bytes": size_bytes}
    return Work(model, request, {"media://file": LocalMedia(path)}, path.parent, room=Path(tempfile.gettempdir()))


def make_files(folder: Path) -> dict[str, Path]:
    """Write an image of 1024 x 768 and a scene of 1536 x 1536 with 6 bands."""
    from penstock.processors.geo.read.gdal import rasterio, without_georeference

    draw = np.random.default_rng(1)
    smooth = Image.fromarray(draw.integers(0, 255, (48, 64, 3), np.uint8)).resize((1024, 768), Image.Resampling.BICUBIC)
    smooth.save(folder / "image.jpg", quality=90)
    side = 2 * TILE_PX
    band = np.asarray(smooth.resize((side, side)).convert("L"), np.uint16) * 39
    with without_georeference():
        options = {"tiled": True, "blockxsize": 256, "blockysize": 256, "compress": "deflate", "predictor": 2}
        scene = rasterio.open(
            folder / "scene.tif", "w", driver="GTiff", width=side, height=side, count=BANDS, dtype="uint16", **options
        )
        with scene:
            for number in range(BANDS):
                scene.write(band + draw.integers(0, 50, band.shape, np.uint16), number + 1)
    return {"images": folder / "image.jpg", "tiles": folder / "scene.tif"}


def say(text: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def pss_mb(pid: int) -> float:
    """Return the proportional set size of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    main(sys.argv[1:])
