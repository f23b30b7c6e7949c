"""Scene with the library, in one process: `python -m benchmarks.library_scene CATALOGUE MODEL FIRST SCENE OUT`.

Maps the small scene FIRST to load everything, and then SCENE; classes only. Prints JSON: `seconds` and `processor_s` of
the second scene, `start_s` from process start to the end of the first scene, resident memory in MB (`idle_mb` between
the scenes, `peak_mb` in total), and the number of `tiles`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

_BEGUN = time.perf_counter()

import psutil  # noqa: E402

import penstock  # noqa: E402
from benchmarks.bare_scene import peak_mb  # noqa: E402
from penstock.jobs import Phase, Progress  # noqa: E402


def main(catalogue: Path, model: str, first: Path, scene: Path, out: Path) -> dict[str, float]:
    """Measure one scene."""
    tiles = 0

    def count(_: Phase, progress: Progress) -> None:
        nonlocal tiles
        tiles = progress.done

    with penstock.Engine(catalogue=[catalogue]) as engine:
        engine.run(model, scene=first, outputs=["classes"], out=out)
        idle_mb, start_s = psutil.Process().memory_info().rss / 1e6, time.perf_counter() - _BEGUN
        begun, before = time.perf_counter(), _processor_s()
        engine.run(model, scene=scene, outputs=["classes"], out=out, on_progress=count)
        seconds, processor_s = time.perf_counter() - begun, _processor_s() - before
    return {
        "seconds": seconds, "processor_s": processor_s, "start_s": start_s, "idle_mb": idle_mb, "peak_mb": peak_mb(),
        "tiles": tiles,
    }  # fmt: skip


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    catalogue, model, *paths = sys.argv[1:]
    sys.stdout.write(json.dumps(main(Path(catalogue), model, *map(Path, paths))))
