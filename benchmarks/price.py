"""Price of a function: what a job costs that runs a user's function, beside the same job built in.

    python -m benchmarks.price [nothing] [picture] [--turns 3] [--quick]

`penstock up` runs as in `benchmarks.turns`: one API, one worker of four slots, the keeper, Valkey, a folder as object
store. Each turn runs the built-in model and the function. The processor time is that of our own processes, all but
Valkey: the API, the worker, its IO processes, the model process, the keeper and `penstock up`. The client is not
counted. The time in the worker is that of an attempt, from its claim to its end, of jobs one after another.

`nothing`: a function that returns its text, and the processor that does so. `picture`: a JPEG of 224 px, and a vision
transformer of 5.5 million parameters, in `image-classification`, and in a function with the network's image processor.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.cold_start import RECORD, write_network
from benchmarks.measuring import in_turns, machine, median_ratio, processor_s, say, tree
from benchmarks.turns import NOOP, ROOT, SLOTS, Service, ready_models, write_image, write_plugin
from tests.support.polling import wait_for
from tests.support.stack import running

#: Jobs of a turn that are pressed, and jobs one after another.
JOBS: Mapping[str, int] = {"nothing": 400, "picture": 100}
SINGLE = 40
#: The built-in model of each kind.
BUILT_IN: Mapping[str, str] = {"nothing": "noop", "picture": "picture"}
#: Milliseconds of processor time of a no-op, and the ratio of a picture's price to the built-in one, at most.
NOTHING_MS, PICTURE_RATIO = 8.0, 1.1
ROLES = ("api", "worker", "IO processes", "model process", "keeper")

FUNCTIONS = '''
import penstock
from penstock import Image, Labels


@penstock.model(name="nothing-function")
def nothing(text: str) -> str:
    """Return the text."""
    return text


@penstock.model(name="picture-function", max_batch=8)
class Picture:
    """Classify a picture."""

    def load(self) -> None:
        from transformers import AutoImageProcessor, AutoModelForImageClassification

        self.prepare = AutoImageProcessor.from_pretrained({source!r}, use_fast=False)
        self.network = AutoModelForImageClassification.from_pretrained({source!r}).eval()

    def predict(self, images: list[Image]) -> list[Labels]:
        import torch

        with torch.inference_mode():
            rows = self.network(**self.prepare(images, return_tensors="pt")).logits.softmax(1).tolist()
        return [Labels({{self.network.config.id2label[at]: score for at, score in enumerate(row)}}) for row in rows]
'''


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a job: milliseconds of each role's processor time, and of an attempt in the worker."""

    roles_ms: Mapping[str, float]
    attempt_ms: float

    @property
    def processor_ms(self) -> float:
        """Milliseconds of processor time of all of our processes."""
        return sum(self.roles_ms.values())


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.price", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=[*JOBS, []], help="kinds of jobs (default: all)")
    parser.add_argument("--turns", type=int, default=3, help="turns of both models (default: 3)")
    parser.add_argument("--quick", action="store_true", help="few jobs: shows only that all runs")
    chosen = parser.parse_args(arguments)
    kinds = chosen.kinds or list(JOBS)
    say(f"{machine()}, {chosen.turns} turns\n")
    with ExitStack() as stack:
        service = start(stack, kinds)
        divisor = 20 if chosen.quick else 1
        say(f"| job | {' | '.join(ROLES)} | processor time | in the worker | goal |")
        say("| --- " * (len(ROLES) + 4) + "|")
        for kind in kinds:
            service.rest()
            jobs, single = max(1, JOBS[kind] // divisor), max(3, SINGLE // divisor)
            measures: dict[str, Callable[[], Cost]] = {
                model: partial(measure, service, model, jobs, single) for model in _models(kind)
            }
            for line in rows(kind, in_turns(measures, chosen.turns)):
                say(line)


def start(stack: ExitStack, kinds: Sequence[str]) -> Service:
    """Start a service whose models have run some jobs; it ends with the stack."""
    made = tempfile.TemporaryDirectory(prefix="bench-price-", ignore_cleanup_errors=True)
    folder = Path(stack.enter_context(made))
    path = f"{ROOT}:{write_plugin(folder)}"
    config = _config(folder, kinds)
    up = stack.enter_context(running(folder / "data", config=config, model="nothing-function", PYTHONPATH=path))
    with up.client() as client:
        wanted = {model for kind in kinds for model in _models(kind)}
        wait_for(lambda: wanted <= ready_models(client), "the models are not ready")
        media = client.upload(write_image(folder))
    given: Mapping[str, Any] = {"nothing": {"text": "nothing"}, "picture": {"images": media}}
    bodies = {model: {"model": model, "input": given[kind]} for kind in kinds for model in _models(kind)}
    service = Service(up, bodies)
    for model in bodies:  # starts the processes and fills the caches
        service.press(model, 2 * SLOTS)
    return service


def _models(kind: str) -> tuple[str, str]:
    """Return the built-in model of a kind, and the function."""
    return BUILT_IN[kind], f"{kind}-function"


def rows(kind: str, costs: Mapping[str, Sequence[Cost]]) -> Iterator[str]:
    """Yield the line of a kind's built-in model and that of its function: medians, and ratios of the turns."""
    built_in = costs[BUILT_IN[kind]]
    goal = f"<= {NOTHING_MS:g} ms" if kind == "nothing" else f"<= {PICTURE_RATIO:g} of built in"
    for model, found in costs.items():
        is_function = found is not built_in
        cells = [f"{median(cost.roles_ms[role] for cost in found):.1f} ms" for role in ROLES]
        for figure in (_processor_ms, _attempt_ms):
            now, before = [*map(figure, found)], [*map(figure, built_in)]
            cells.append(f"{median(now):.1f} ms" + (f" = {median_ratio(now, before):.2f}" if is_function else ""))
        yield f"| {model} | {' | '.join(cells)} | {goal if is_function else ''} |"


def measure(service: Service, model: str, jobs: int, single: int) -> Cost:
    """Run jobs of a model at once, then some one after another; return the cost of one."""
    before = _spent_s(service)
    service.press(model, jobs)
    after = _spent_s(service)
    roles_ms = {role: (after[role] - before[role]) / jobs * 1000 for role in ROLES}
    with service.stack.client() as client:
        seconds = []
        for _ in range(single):
            job = client.wait(client.submit(model, service.bodies[model]["input"]).id)
            seconds.append(_took_s(job.raw["attempts"][-1]))
    return Cost(roles_ms, median(seconds) * 1000)


def _spent_s(service: Service) -> dict[str, float]:
    """Return the processor seconds so far of each role; `penstock up` counts for the keeper."""
    found = {role: list[psutil.Process]() for role in ROLES}
    worker = {process.pid for process in tree([service.stack.pid("worker")])}
    for process in service.own():
        found[_role(process, service, worker)].append(process)
    return {role: processor_s(processes) for role, processes in found.items()}


def _role(process: psutil.Process, service: Service, of_worker: set[int]) -> str:
    if process.pid == service.stack.pid("worker"):
        return "worker"
    if process.pid in of_worker:
        return "model process" if "penstock.functions.child" in process.cmdline() else "IO processes"
    return "api" if process.pid == service.stack.pid("api") else "keeper"


def _took_s(attempt: Mapping[str, Any]) -> float:
    begun, ended = (datetime.fromisoformat(attempt[name]) for name in ("started_at", "ended_at"))
    return (ended - begun).total_seconds()


def _processor_ms(cost: Cost) -> float:
    return cost.processor_ms


def _attempt_ms(cost: Cost) -> float:
    return cost.attempt_ms


def _config(folder: Path, kinds: Sequence[str]) -> str:
    source = write_network(folder) if "picture" in kinds else folder
    (folder / "models.toml").write_text(NOOP + (RECORD.format(source=source) if "picture" in kinds else ""))
    (folder / "functions.py").write_text(FUNCTIONS.format(source=str(source)))
    return (
        f'slots = {SLOTS}\nmodels = ["{folder / "models.toml"}", "{folder / "functions.py"}"]\n'
        "max_queued = 1000000\nmax_tenant_jobs = 1000000\nmax_tenant_running = 1000\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
