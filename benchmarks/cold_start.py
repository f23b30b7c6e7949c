"""Cold start: the time from a submission without any worker to the result, compared with a bare program.

    python -m benchmarks.cold_start [picture] [scene] [library] [imports] [--standby 1] [--repeats 5]

`picture` and `scene` run on `penstock up --workers 0..1` with a Valkey, an object store, an API and a keeper, all in a
folder of its own. Before each submission the worker has left. The bare program is a Python process that imports the
model's libraries, loads its weights and runs it once. `library` measures `penstock.Engine` in a new process, `imports`
the processor time of the API's imports. The programs of one round run in turns, so that other load affects all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.measuring import in_turns, machine, say
from benchmarks.turns import PREPARATION, write_image
from penstock.client import Client
from penstock.processors.geo.sample import write_sample
from tests.support.polling import wait_for
from tests.support.stack import Stack, running

PARTS = ("picture", "scene", "library", "imports")
SCENE_PX = 256

#: Program that loads only the network of the scene and its weights, and runs one tile.
BARE_SCENE = """
import torch
from penstock.catalogue.records import read_catalogue
from penstock.workers.engine.torch.csmask import load_csmask
from penstock.workers.engine.weights import read_weights
network = load_csmask(read_weights(read_catalogue()["csmask"]))
with torch.inference_mode():
    network.module(torch.zeros(1, 6, 256, 256))
"""

#: Program that loads only the network of the picture, and runs it on one picture.
BARE_PICTURE = """
import sys, torch
from transformers import AutoModelForImageClassification
network = AutoModelForImageClassification.from_pretrained(sys.argv[1]).eval()
with torch.inference_mode():
    network(torch.zeros(1, 3, 224, 224))
"""

#: Program with the whole library: a scene to its finished artifacts.
LIBRARY = """
import sys, penstock
with penstock.Engine() as engine:
    engine.run("csmask", scene=sys.argv[1], out=sys.argv[2])
"""

#: Program that writes a vision transformer of 5.5 million parameters (the size of DeiT-tiny) with random weights.
NETWORK = """
import sys
from transformers import ViTConfig, ViTForImageClassification
sizes = dict(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768)
ViTForImageClassification(ViTConfig(**sizes, num_labels=10)).save_pretrained(sys.argv[1])
"""

RECORD = """
[models.picture]
title = "A small classifier of pictures"
runner = "transformers"
processor = "image-classification"
source = "{source}"
revision = "1"
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A job, and the bare program with the same model."""

    title: str
    model: str
    field: str
    file: Path
    bare: tuple[str, ...]


def main(arguments: Sequence[str]) -> None:
    """Measure and print tables in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_start", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts to measure (default: all)")
    parser.add_argument("--standby", type=int, choices=(0, 1), default=0, help="standby workers of `penstock up`")
    parser.add_argument("--repeats", type=int, default=5, help="rounds after the first, which warms the disk cache")
    chosen = parser.parse_args(arguments)
    parts = chosen.parts or PARTS
    say(machine())
    with tempfile.TemporaryDirectory(prefix="bench-cold-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        cases = [make(folder) for part, make in (("picture", _picture), ("scene", _scene)) if part in parts]
        for line in with_service(folder, cases, chosen.repeats, standby=chosen.standby) if cases else ():
            say(line)
        for part, lines in (("library", library), ("imports", imports)):
            for line in lines(folder, chosen.repeats) if part in parts else ():
                say(line)


def with_service(folder: Path, cases: Sequence[Case], repeats: int, *, standby: int) -> Iterator[str]:
    """Yield a line for each case: medians of the service and of the bare program."""
    config = f'models = ["{folder / "models.toml"}"]\nidle_exit_s = 1\n'
    (folder / "models.toml").write_text(RECORD.format(source=write_network(folder)))
    options = ["--workers", "0..1", *(["--standby", str(standby)] if standby else [])]
    yield "\n| no worker: from the submission to the result | service | bare program | ratio | goal |"
    yield "| --- | --- | --- | --- | --- |"
    with running(folder / "up", config=config, options=options) as stack, stack.client() as client:
        for case in cases:
            bare, ours = _medians_s(
                repeats,
                lambda case=case: _python_s(*case.bare),
                lambda case=case: _cold_job_s(stack, client, case, standby=standby),
            )
            goal = "<= 1 s" if standby else "<= 1.2"
            title = f"{case.title}, `--standby {standby}`"
            yield f"| {title} | {ours:.2f} s | {bare:.2f} s | {ours / bare:.2f} | {goal} |"


def _cold_job_s(stack: Stack, client: Client, case: Case, *, standby: int) -> float:
    """Wait until no worker lives and the standby is ready; return the seconds from a submission to its result."""
    wait_for(lambda: _no_worker(stack) and client.queue().workers == 0, "the worker does not leave")
    if standby:
        wait_for(lambda: _standby_ready(stack), "the standby does not become ready")
    media = client.upload(case.file)
    begun = time.perf_counter()
    ended = client.wait(client.submit(case.model, {case.field: media}).id)
    if not ended.succeeded:
        raise RuntimeError(str(ended.error))
    return time.perf_counter() - begun


def _no_worker(stack: Stack) -> bool:
    """Return True when `up` has noticed the end of each worker that it started."""
    lines = stack.log.read_text().splitlines()
    ended = sum(line.startswith("worker ") and " left after " in line for line in lines)
    return 0 < sum(line.startswith("worker ") and "process " in line for line in lines) == ended


def _standby_ready(stack: Stack) -> bool:
    pid = json.loads((stack.data / "children.json").read_text()).get("standby", {}).get("pid")
    lines = (stack.data / "logs" / "standby.log").read_text().splitlines()
    found = (json.loads(line) for line in lines if line.startswith("{"))
    return any(record["event"] == "standby.ready" and record.get("pid") == pid for record in found)


def library(folder: Path, repeats: int) -> Iterator[str]:
    """Yield the row of the library: from the process start to the first result."""
    path = _small_scene(folder)
    bare, ours = _medians_s(
        repeats, lambda: _python_s(BARE_SCENE), lambda: _python_s(LIBRARY, str(path), str(folder / "out"))
    )
    yield f"\n| the library: process start to the first result, a scene of {SCENE_PX} px | figure | goal |"
    yield "| --- | --- | --- |"
    yield f"| `penstock.Engine` | {ours:.2f} s = {ours / bare:.2f} of bare ({bare:.2f} s) | <= 1.2 |"


def imports(_: Path, repeats: int) -> Iterator[str]:
    """Yield the row of imports."""
    nothing, api = _medians_s(repeats, lambda: _processor_s(""), lambda: _processor_s("import penstock.api.app"))
    yield "\n| imports | figure | goal |\n| --- | --- | --- |"
    yield f"| import penstock.api.app, processor time | {api - nothing:.2f} s | < 1 s |"


def _medians_s(repeats: int, *measured: Callable[[], float]) -> list[float]:
    """Measure in turns; the first turn, which warms the disk cache, does not count."""
    found = in_turns({str(number): measure for number, measure in enumerate(measured)}, repeats + 1)
    return [median(seconds[1:]) for seconds in found.values()]


def _python_s(program: str, *arguments: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True, env=_environment())
    return time.perf_counter() - begun


def _processor_s(program: str) -> float:
    """Return the processor time of a program: its duration on an idle machine, as imports are single-threaded."""
    before = os.times()
    _python_s(program)
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


def _picture(folder: Path) -> Case:
    bare = (BARE_PICTURE, str(write_network(folder)))
    title = "a picture of 224 px, vision transformer of 5.5 million parameters"
    return Case(title, "picture", "images", write_image(folder), bare)


def _scene(folder: Path) -> Case:
    return Case(f"a scene of {SCENE_PX} px, csmask", "csmask", "scene", _small_scene(folder), (BARE_SCENE,))


def write_network(folder: Path) -> Path:
    """Write the directory of a small vision transformer with random weights, once; return its path."""
    path = folder / "network"
    if not path.exists():
        _python_s(NETWORK, str(path))
        (path / "preprocessor_config.json").write_text(json.dumps(PREPARATION))
    return path


def _small_scene(folder: Path) -> Path:
    path = folder / "scene.tif"
    if not path.exists():
        write_sample(path, size_px=SCENE_PX)
    return path


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return kept | {"PENSTOCK_CONFIG": ""}


if __name__ == "__main__":
    main(sys.argv[1:])
