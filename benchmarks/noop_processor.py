"""An IO processor that does nothing: a text in, the same text out, one prompt and no artifact."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import BaseModel, ConfigDict

from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, OutputSpec, Prepared, Prompt, Result


class NoopRequest(BaseModel):
    """A text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str


class Noop:
    """Returns the text of the request."""

    request = NoopRequest
    outputs: tuple[OutputSpec, ...] = ()

    def __init__(self, model: Model) -> None:
        """Take any model."""

    def pre_process(self, request: NoopRequest, media: Media) -> Prepared[str]:  # noqa: ARG002
        """Return one prompt of a byte."""
        return Prepared(iter([Prompt({"x": np.zeros(1, np.uint8)})]), 1, 1, request.text)

    def post_process(self, outputs: Iterator[Output], context: str, sink: ArtifactSink) -> Result:  # noqa: ARG002
        """Return the text."""
        for _ in outputs:
            pass
        return Result(text=context)
