"""A worker of whichever release comes first on the path, with one model that says what it is told."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from penstock.config import load_settings
from penstock.errors import FetchFailed
from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, OutputSpec, Prepared, Prompt, Result
from penstock.processors.registry import Registry
from penstock.storage.objects.opening import open_own_store
from penstock.storage.redis.records import JobStore
from penstock.workers import app
from penstock.workers.processing import InThread

try:
    from penstock.catalogue.records import Catalogue
except ImportError:  # release 0.1.0
    from penstock.models import Catalogue  # type: ignore[attr-defined,no-redef]

MODEL = Model(
    name="chaos", title="Chaos", runner="fake", processor="chaos", source=".", revision="1",
    max_batch=8, max_attempts=20, execution_timeout_s=600, warm_up=False,
)  # fmt: skip


class SaidRequest(BaseModel):
    """The output of a job, its duration, and its end."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    takes_s: float = 0.0
    end: Literal["well", "retry"] = "well"


class Said:
    """Says the text with a mark of this execution, in the result and in an artifact."""

    request = SaidRequest
    outputs = (OutputSpec("said", "text/plain", "said.txt: the text and the execution's mark"),)

    def __init__(self, model: Model) -> None:
        self._model = model

    def pre_process(self, request: SaidRequest, media: Media) -> Prepared[SaidRequest]:  # noqa: ARG002
        if request.end == "retry":
            raise FetchFailed("the job asked for it")
        return Prepared(iter([Prompt({"x": np.zeros(1, np.uint8)})]), 1, 1, request)

    def post_process(self, outputs: Iterator[Output], context: SaidRequest, sink: ArtifactSink) -> Result:
        for _ in outputs:
            threading.Event().wait(context.takes_s)
        said = f"{context.text}:{uuid.uuid4().hex}"
        path = sink.path("said.txt")
        path.write_text(said)
        sink.add("said.txt", path, media_type="text/plain")
        return Result(text=said)


if __name__ == "__main__":
    settings = load_settings()
    sys.exit(
        app.run(
            settings,
            JobStore.open(settings.redis_address),
            catalogue=Catalogue({MODEL.name: MODEL}),
            processing=InThread(Registry().register("chaos", Said)),
            objects=open_own_store(settings),
        )
    )
