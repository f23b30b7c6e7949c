"""A plugin for real workers: models whose loads end their process, and a processor of texts. Load it from a folder."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from penstock.models import Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.workers.engine.base import Runner, RunnerSpec
from penstock.workers.engine.fake import FakeRunner, FakeState

ROOT = Path(__file__).parents[2]
RECORD = """
[models.{name}]
title = "For tests of loads"
runner = "deadly"
processor = "said"
source = "{weights}"
revision = "1"
warm_up = {warm_up}
max_attempts = {max_attempts}
execution_timeout_s = {timeout_s}
options = {{ how = "{how}", tries = "{tries}", healed = "{healed}", gate = "{gate}" }}
"""


def install(folder: Path) -> dict[str, str]:
    """Write the plugin's entry points; return the variables of processes that have it."""
    info = folder / "deadly-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deadly\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[penstock.runners]\ndeadly = tests.support.deadly_runner:DEADLY\n"
        "[penstock.io_processors]\nsaid = tests.support.deadly_runner:Said\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def record(
    name: str, how: str, folder: Path, *, max_attempts: int = 2, warm_up: bool = True, timeout_s: int = 600
) -> str:
    """Return the record of a model; `folder` has its files: `NAME.tries`, `NAME.healed` and `NAME.gate`."""
    files = {each: folder / f"{name}.{each}" for each in ("tries", "healed", "gate")}
    flag = "true" if warm_up else "false"
    (weights := folder / f"{name}.weights").write_bytes(b"weights")
    return RECORD.format(
        name=name, how=how, max_attempts=max_attempts, warm_up=flag, timeout_s=timeout_s, weights=weights, **files
    )  # fmt: skip


def go_on() -> None:
    """Check nothing."""


def tries(folder: Path, how: str) -> int:
    """Return how often a model's load has begun."""
    file = folder / f"{how}.tries"
    return len(file.read_text().splitlines()) if file.exists() else 0


class SaidRequest(BaseModel):
    """A text."""

    text: str = "hello"


class Said:
    """Sends a text through the runner and returns it."""

    request = SaidRequest
    outputs = ()

    def __init__(self, model: Model) -> None:
        self._model = model

    def pre_process(self, request: SaidRequest, media: Media) -> Prepared[None]:  # noqa: ARG002
        prompt = Prompt({"bytes": np.frombuffer(request.text.encode(), np.uint8)})
        return Prepared(iter([prompt]), 1, 1, None, "texts")

    def post_process(self, outputs: Iterator[Output], context: None, sink: ArtifactSink) -> Result:  # noqa: ARG002
        [output] = outputs
        return Result(output.data["bytes"].tobytes().decode())

    def dummy(self, limits: object, folder: Path) -> Dummy:  # noqa: ARG002
        return Dummy({"text": "dummy"}, {})


@dataclass(frozen=True, slots=True)
class Waiting(FakeRunner):
    """A runner that holds prompts with the text `wait` until a file exists, without holding the device."""

    gate: Path = Path()

    def admit(self, prompt: Prompt) -> FakeState:
        while prompt.data["bytes"].tobytes() == b"wait" and not self.gate.exists():
            time.sleep(0.05)
        return FakeRunner.admit(self, prompt)


def load(model: Model) -> Runner:
    """End the process as the model's options say, unless its file `healed` exists."""
    options = model.options
    with Path(options["tries"]).open("a") as tries:
        tries.write(f"{os.getpid()}\n")
    if not Path(options["healed"]).exists():
        _die(options["how"])
    return Waiting(model.max_batch, gate=Path(options["gate"]))


def _die(how: str) -> None:
    if how != "well":
        print("the library is about to fail", flush=True)  # noqa: T201
        os.write(2, b"terminate called: no such symbol\n")
    if how == "abort":
        os.abort()
    if how == "segfault":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(0)
    if how == "oom":
        os.kill(os.getpid(), 9)
    if how == "hang":
        threading.Event().wait()
    if how == "raise":
        raise ValueError("a file is damaged")


DEADLY = RunnerSpec(load, lambda _model: None, expected_bytes=lambda _model: 0)
