"""Post-processors: steps that change a network's outputs before the IO processor makes the result.

A model's record names its post-processors. Each receives one output and returns one output, so that the order of the
stream stays. Several post-processors run one after the other in the IO process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel

from penstock.errors import ConfigError, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, IOProcessor, Media, Output, OutputSpec, Prepared, Result
from penstock.processors.io_signature import IOSignature, declared

#: Group of entry points. Each names a class that is called with a `Model` and the step's options and makes a
#: `PostProcessor`.
STEPS = "penstock.post_processors"


class PostProcessor(Protocol):
    """A step on a network's outputs. There is one instance per model and worker, used from several threads."""

    # Optional, see `IOSignature`: `reads`, the values that it needs of an output, and `makes`, those that it adds.

    def process(self, output: Output) -> Output:
        """Return the changed output, with the same `partial` and a new mapping. Unchanged arrays may be reused."""
        ...


@dataclass(frozen=True, slots=True)
class Chain:
    """An IO processor that receives the outputs of post-processors."""

    processor: IOProcessor[Any, Any]
    steps: Sequence[PostProcessor]

    @property
    def request(self) -> type[BaseModel]:
        """The inner processor's request model."""
        return self.processor.request

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The inner processor's outputs."""
        return self.processor.outputs

    @property
    def io_signatures(self) -> tuple[IOSignature, ...] | None:
        """The inner processor's signatures, with the outputs that the first post-processor needs of the network."""
        needed = declared(self.processor)
        return None if needed is None else tuple(self._before(one) for one in needed)

    def pre_process(self, request: Any, media: Media) -> Prepared[Any]:
        """Return the prompts of the inner processor."""
        return self.processor.pre_process(request, media)

    def post_process(self, outputs: Iterator[Output], context: Any, sink: ArtifactSink) -> Result:
        """Run all steps on the outputs and return the inner processor's result."""
        return self.processor.post_process(self._stepped(outputs), context, sink)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return the inner processor's warm-up request."""
        return self.processor.dummy(limits, folder)

    def _before(self, signature: IOSignature) -> IOSignature:
        """Return a signature of the inner processor as it is before the steps; a step may make any output."""
        output = dict(signature.output)
        for step in reversed(self.steps):
            reads: Mapping[str, str] | None = getattr(step, "reads", None)
            makes: Mapping[str, str] = getattr(step, "makes", {})
            output = (
                {} if reads is None else {**reads, **{name: kind for name, kind in output.items() if name not in makes}}
            )
        return signature.model_copy(update={"output": output})

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
    """Temperature scaling: divides `logits` by the option `by`, so that scores are calibrated (Guo et al., 2017).

    https://arxiv.org/abs/1706.04599
    """

    reads: Mapping[str, str] = MappingProxyType({"logits": "array"})
    makes: Mapping[str, str] = MappingProxyType({})

    def __init__(self, model: Model, options: Mapping[str, Any]) -> None:
        """Read the option `by`; raise `ConfigError` for other options and unless it is a number above 0."""
        found = options.get("by")
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < inf or len(options) > 1:
            raise ConfigError(
                f"model {model.name!r}: wrong options of the post-processor 'temperature': {dict(options)}; "
                "it takes one option, `by`, a number above 0"
            )
        self._by = np.float32(found)

    def process(self, output: Output) -> Output:
        """Return the output with scaled logits, float32."""
        if "logits" not in output.data:
            raise ProcessorFailed(
                f"the post-processor 'temperature' needs the output `logits`; the network has: {', '.join(output.data)}"
            )
        logits = np.asarray(output.data["logits"], np.float32) / self._by
        return Output({**output.data, "logits": logits}, partial=output.partial)
