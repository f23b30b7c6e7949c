"""Post-processors: small steps on a network's outputs, named by a model, before its IO processor makes the result.

A step sees one output and returns one, so that streams stay streams and the order stays. Several are run one after the
other, in the IO process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel

from penstock.errors import ConfigError, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, IOProcessor, Media, Output, OutputSpec, Prepared, Result

#: Entry points of this group name a class that is called with a `Model` and the step's options, and gives a
#: `PostProcessor`.
STEPS = "penstock.post_processors"


class PostProcessor(Protocol):
    """A step on a network's outputs. Made once per model and worker, and safe to use from several threads."""

    def process(self, output: Output) -> Output:
        """Return the output changed, `partial` as it was: what it holds is a new mapping; arrays may be the same."""
        ...


@dataclass(frozen=True, slots=True)
class Chain:
    """An IO processor that sees outputs after some steps."""

    processor: IOProcessor[Any, Any]
    steps: Sequence[PostProcessor]

    @property
    def request(self) -> type[BaseModel]:
        """The processor's."""
        return self.processor.request

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The processor's."""
        return self.processor.outputs

    def pre_process(self, request: Any, media: Media) -> Prepared[Any]:
        """Return what the processor does."""
        return self.processor.pre_process(request, media)

    def post_process(self, outputs: Iterator[Output], context: Any, sink: ArtifactSink) -> Result:
        """Return what the processor makes of the outputs after all steps; closing it closes the engine's work too."""
        return self.processor.post_process(self._stepped(outputs), context, sink)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return the processor's."""
        return self.processor.dummy(limits, folder)

    def _stepped(self, outputs: Iterator[Output]) -> Iterator[Output]:
        try:
            for output in outputs:
                for step in self.steps:
                    output = step.process(output)
                yield output
        finally:
            close = getattr(outputs, "close", None)
            if close is not None:
                close()


class Temperature:
    """Divides `logits` by the option `by`: scores that are as sure as the network is right (Guo et al., 2017).

    https://arxiv.org/abs/1706.04599
    """

    def __init__(self, model: Model, options: Mapping[str, Any]) -> None:
        """Read the option; raise `ConfigError` for none, for others, and for what is no number above 0."""
        found = options.get("by")
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < inf or len(options) > 1:
            raise ConfigError(
                f"model {model.name!r}: the post-processor 'temperature' has one option, `by`, a number above 0; "
                f"it has: {dict(options)}"
            )
        self._by = np.float32(found)

    def process(self, output: Output) -> Output:
        """Return the output with other logits, float32."""
        if "logits" not in output.data:
            raise ProcessorFailed(
                f"the post-processor 'temperature' takes `logits`; there are: {', '.join(output.data)}"
            )
        logits = np.asarray(output.data["logits"], np.float32) / self._by
        return Output({**output.data, "logits": logits}, partial=output.partial)
