"""The model of the chaos tests: nearly no work, a result that no two executions share, and deaths on demand."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from penstock.errors import FetchFailed, InvalidInput
from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, OutputSpec, Prepared, Prompt, Result

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


class Chaos:
    """Says the text with a mark of this execution, in the result and in an artifact."""

    request = ChaosRequest
    outputs = (OutputSpec("said", "text/plain", "said.txt: the text and the execution's mark"),)

    def __init__(self, model: Model) -> None:
        self._model = model

    def pre_process(self, request: ChaosRequest, media: Media) -> Prepared[ChaosRequest]:  # noqa: ARG002
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
        return Prepared(iter([Prompt({"x": np.zeros(1, np.uint8)})]), 1, 1, request)

    def post_process(self, outputs: Iterator[Output], context: ChaosRequest, sink: ArtifactSink) -> Result:
        for _ in outputs:
            threading.Event().wait(context.takes_s)
        said = f"{context.text}:{uuid.uuid4().hex}"
        path = sink.path("said.txt")
        path.write_text(said.ljust(ARTIFACT_BYTES))
        sink.add("said.txt", path, media_type="text/plain")
        return Result(text=said)
