"""The model of the chaos tests: nearly no work, a result that no two executions share, and deaths on demand."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from penstock.errors import FetchFailed, InvalidInput
from penstock.models import LINKS, MediaReference, Model
from penstock.processors.base import ArtifactSink, Divisible, Media, Output, OutputSpec, Prepared, Prompt, Result

MODEL = Model(
    name="chaos", title="Chaos", runner="fake", processor="chaos", source=".", revision="1",
    max_batch=8, max_attempts=20, execution_timeout_s=600, warm_up=False,
)  # fmt: skip
#: Larger than the limit that stands for a full disk.
ARTIFACT_BYTES = 8192


class ChaosRequest(BaseModel):
    """The output of a job, its duration, and its end."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    takes_s: float = 0.0
    end: Literal["well", "input", "retry", "abort", "oom"] = "well"
    #: Units of a job whose work can be shared; 0 = it cannot.
    units: int = 0
    #: A file that is fetched and not looked at.
    media: MediaReference | None = None
    #: A STAC item, which is not looked at.
    stac: dict[str, Any] | None = Field(default=None, json_schema_extra={LINKS: True})


@dataclass(frozen=True, slots=True)
class Context:
    """State for the second half: the request, and of a job in units, the files of saved units and the units to make."""

    request: ChaosRequest
    saved: Mapping[int, Path] = field(default_factory=dict)
    made: tuple[int, ...] = ()
    is_part: bool = False


def unit_text(text: str, unit: int) -> str:
    """Return what a job says for one unit; all executions say the same."""
    return hashlib.sha256(f"{text} {unit}".encode()).hexdigest()


def joined(text: str, units: int) -> str:
    """Return the result of a job in units."""
    return f"{text}:{hashlib.sha256(''.join(unit_text(text, unit) for unit in range(units)).encode()).hexdigest()}"


class Chaos:
    """Says the text with a mark of this execution, in the result and in an artifact."""

    request = ChaosRequest
    outputs = (OutputSpec("said", "text/plain", "said.txt: the text and the execution's mark"),)

    def __init__(self, model: Model) -> None:
        self._model = model

    def pre_process(self, request: ChaosRequest, media: Media) -> Prepared[Context]:
        if request.units:
            return self._in_units(request, media, range(request.units), is_part=False)
        match request.end:
            case "input":
                raise InvalidInput("the job asked for it")
            case "retry":
                raise FetchFailed("the job asked for it")
            case "abort":
                os.abort()
            case "oom":  # what the kernel does
                os.kill(os.getpid(), signal.SIGKILL)
            case "well":
                pass
        return Prepared(iter([Prompt({"x": np.zeros(1, np.uint8)})]), 1, 1, Context(request))

    def pre_process_part(self, request: ChaosRequest, media: Media, first: int, last: int) -> Prepared[Context]:
        return self._in_units(request, media, range(first, last + 1), is_part=True)

    def _in_units(self, request: ChaosRequest, media: Media, units: range, *, is_part: bool) -> Prepared[Context]:
        digest = hashlib.sha256(f"{request.text} {request.units}".encode()).hexdigest()[:32]
        found = media.checkpoints(f"{digest}/")
        saved = {int(name.rpartition("/")[2]): path for name, path in found.items()}
        made = tuple(unit for unit in units if unit not in saved)
        prompts = [Prompt({"x": np.zeros(1, np.uint8)}) for _ in made]
        division = Divisible(digest, tuple((unit, 1, int(unit not in saved)) for unit in range(request.units)))
        return Prepared(
            iter(prompts), len(made), len(made), Context(request, saved, made, is_part), done=len(units) - len(made),
            division=division,
        )  # fmt: skip

    def _say_units(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> str:
        request = context.request
        digest = hashlib.sha256(f"{request.text} {request.units}".encode()).hexdigest()[:32]
        texts = {unit: path.read_text() for unit, path in context.saved.items()}
        for unit, _ in zip(context.made, outputs, strict=True):
            threading.Event().wait(request.takes_s)
            path = sink.path(f"unit-{unit}")
            path.write_text(unit_text(request.text, unit))
            texts[unit] = path.read_text()
            sink.checkpoint(f"{digest}/{unit}", path)
            path.unlink()
        if context.is_part:
            return ""
        whole = "".join(texts[unit] for unit in range(request.units))
        return f"{request.text}:{hashlib.sha256(whole.encode()).hexdigest()}"

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        if context.request.units:
            said = self._say_units(outputs, context, sink)
            if context.is_part:
                return Result()
        else:
            for _ in outputs:
                threading.Event().wait(context.request.takes_s)
            said = f"{context.request.text}:{uuid.uuid4().hex}"
        path = sink.path("said.txt")
        path.write_text(said.ljust(ARTIFACT_BYTES))
        sink.add("said.txt", path, media_type="text/plain")
        return Result(text=said)
