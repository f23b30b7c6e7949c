"""Calibration of dry runs: the share of real jobs whose device seconds lie in the interval that was told before.

    python -m benchmarks.estimates [--jobs 40]

`penstock up` runs with the text model of `benchmarks.turns` and csmask. Before each job a dry run tells its interval;
then the job runs alone, and `/v1/usage` tells the device seconds that it used. The first jobs of a model, which are
told the widest interval or none, are left out. The goal: 80 % of the jobs, and an upper end of at most four times the
lower. Exits with 1 where a model misses it.

`scene`: csmask on scenes of 64 to 768 px. `text`: 16 tokens after prompts of 1 to 60 words.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine, say
from benchmarks.turns import STORIES, TEXT, ready_models
from penstock.client import Client
from penstock.processors.geo.sample import write_sample
from penstock.storage.redis.dry_runs import FEW_JOBS
from tests.support.polling import wait_for
from tests.support.stack import running

GOAL, MOST = 0.8, 4.0
#: Least and most pixels along a side of a scene, and words of a prompt.
PX, WORDS = (64, 768), (1, 60)


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table in Markdown, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.estimates", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=40, help="jobs of each model (default: 40)")
    jobs, missed = parser.parse_args(arguments).jobs, False
    draws = random.Random(1)  # noqa: S311
    with tempfile.TemporaryDirectory(prefix="bench-estimates-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        models = folder / "models.toml"
        models.write_text(TEXT.format(stories=STORIES) if STORIES.is_dir() else "")
        kinds: dict[str, Callable[[], dict[str, Any]]] = {"csmask": lambda: _scene(folder, draws)}
        if STORIES.is_dir():
            kinds["text"] = lambda: _prompt(draws)
        with running(folder / "data", config=f'models = ["{models}"]\n', model="csmask") as up, up.client() as client:
            wait_for(lambda: kinds.keys() <= ready_models(client), "the models are not ready", timeout_s=120)
            say(f"{machine()}\n\n| model | jobs | in the interval | upper end to lower, max | goal |")
            say("| --- | --- | --- | --- | --- |")
            for model, wanted in kinds.items():
                rows = list(_measure(client, model, wanted, jobs))
                inside = sum(low <= used <= high for low, high, used in rows) / len(rows)
                times = max(high / low for low, high, _ in rows)
                missed = missed or inside < GOAL or times > MOST * 1.001
                say(f"| {model} | {len(rows)} | {inside:.0%} | {times:.1f} | {GOAL:.0%}, {MOST:g} |")
    return 1 if missed else 0


def _measure(
    client: Client, model: str, wanted: Callable[[], dict[str, Any]], jobs: int
) -> Iterator[tuple[float, float, float]]:
    """Yield the interval that was told before each job, and the device seconds that the job used."""
    for number in range(jobs):
        job, before = wanted(), _used_s(client, model)
        told = client.estimate(model, **job).device_seconds
        done = client.wait(client.submit(model, **job).id)
        if not done.succeeded:
            raise RuntimeError(f"{model}: {done.error}")
        if number >= FEW_JOBS and told is not None:
            yield told["low"], told["high"], _used_s(client, model) - before


def _used_s(client: Client, model: str) -> float:
    return client.usage(model=model).total.device_s


def _scene(folder: Path, draws: random.Random) -> dict[str, Any]:
    path = folder / "scene.tif"
    write_sample(path, size_px=draws.randint(*PX))
    return {"files": {"scene": path}}


def _prompt(draws: random.Random) -> dict[str, Any]:
    words = " ".join(["once"] * draws.randint(*WORDS))
    return {"input": {"prompt": words, "max_new_tokens": 16}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
