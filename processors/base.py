"""The contract between a model's IO processor, the engine and the pipeline.

One idea serves text, images, rasters, audio and embeddings:

    request + media --pre_process--> prompts --engine--> outputs --post_process--> result + artifacts

A processor holds no request state: what the second half needs travels in the context that the first half returns.
Prompts and outputs are streams with a known count, so that memory does not grow with the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel

#: A tensor as it crosses between processor and engine: a numpy array (C-contiguous; bf16 as uint16 views is not used).
Array = Any

RequestT = TypeVar("RequestT", bound=BaseModel, contravariant=True)
ContextT = TypeVar("ContextT")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One unit of work for the engine.

    `data` maps the model's input names to arrays without a batch axis (an image tile is float32 (C, H, W)).
    `cost` is in the model's unit of work (pixels for images and rasters, tokens for text).
    """

    data: Mapping[str, Array]
    cost: int = 1


@dataclass(frozen=True, slots=True)
class Output:
    """The engine's answer to one prompt: the model's output names to arrays, again without a batch axis."""

    data: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One of the results a processor can make of a forward pass."""

    name: str
    media_type: str
    description: str
    #: Made when the request does not say.
    default: bool = True


class Media(Protocol):
    """The job's media: every reference in the request was fetched, or the job failed."""

    def path(self, reference: str) -> Path:
        """Return the local file of a media reference exactly as it stands in the request.

        The file is alone in its folder and was made by the service; its name keeps the reference's suffix only.
        """
        ...

    def etag(self, reference: str) -> str | None:
        """Return the source's etag, where it has one."""
        ...


class ArtifactSink(Protocol):
    """Where a processor puts its artifacts: files that are uploaded when they are finished."""

    def path(self, name: str) -> Path:
        """Return a path in the attempt's scratch folder to write to; nothing is visible until `add`."""
        ...

    def add(self, name: str, path: Path, *, media_type: str) -> None:
        """Hand over a finished file as the artifact `name` (once a name; it may be uploaded at once)."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared(Generic[ContextT]):
    """What `pre_process` returns."""

    #: Drawn lazily while the engine works; making the next prompt may read the media.
    prompts: Iterator[Prompt]
    #: How many prompts there will be, if that is known before they are drawn: the total of the progress.
    count: int | None
    #: The whole job's work in the model's unit.
    cost: int
    #: Everything `post_process` needs.
    context: ContextT
    #: What progress counts, in the plural: what a prompt is to the job's owner.
    unit: str = "prompts"


@dataclass(frozen=True, slots=True)
class Result:
    """A job's immediate output: text, or JSON-ready data, or both. Artifacts went to the sink."""

    text: str | None = None
    data: Mapping[str, Any] | None = field(default=None)


class IOProcessor(Protocol[RequestT, ContextT]):
    """Turns a model's raw input into prompts, and its outputs into a finished result.

    An instance is made once per model and worker as `Processor(model)` from the model's catalogue record
    (`penstock.models.Model`) and must be safe to use from several threads. `request` is the pydantic model of the
    job's `input`; media references in it are fields of type `penstock.models.MediaReference`. It lives in a module
    that imports neither numpy nor the rest, because its JSON Schema is the API's.

    Errors: raise an `InputError` (see `penstock.errors`) for what is wrong with the data; anything else is taken as
    the processor's own fault.
    """

    request: type[BaseModel]
    outputs: tuple[OutputSpec, ...]

    def pre_process(self, request: RequestT, media: Media) -> Prepared[ContextT]:
        """Return the stream of prompts. No network and no storage: media are local files by now."""
        ...

    def post_process(self, outputs: Iterator[Output], context: ContextT, sink: ArtifactSink) -> Result:
        """Consume the outputs, which arrive in the prompts' order, and return the result."""
        ...
