"""The contract between a model's IO processor, the engine and the pipeline.

One idea serves text, images, rasters, audio and embeddings:

    request + media --pre_process--> prompts --engine--> outputs --post_process--> result + artifacts

A processor holds no request state: what the second half needs travels in the context that the first half returns.
Prompts and outputs are streams with a known count, so that memory does not grow with the input. Both halves of a job
run in the same IO process, the engine in another one: prompts and outputs hold numpy arrays and plain data, never
objects with code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel

from penstock.models import Limits

#: A tensor as it crosses between processor and engine: a numpy array of booleans or numbers (no objects, no bfloat16).
Array = Any

#: What a prompt or an output may hold under a name: an array, or JSON-ready data (text, token ids, chat messages).
Value = Any

#: What a checkpoint may be called: one or two parts.
CHECKPOINT_NAME = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]{0,99}(/[0-9A-Za-z_-][0-9A-Za-z._-]{0,99})?")

RequestT = TypeVar("RequestT", bound=BaseModel, contravariant=True)
ContextT = TypeVar("ContextT")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One unit of work for the engine.

    `data` maps the model's input names to arrays without a batch axis (an image tile is float32 (C, H, W)) or to plain
    data. `cost` is in the model's unit of work (pixels for images and rasters, tokens for text).
    """

    data: Mapping[str, Value]
    cost: int = 1
    #: Whose it is. The worker says it, never a processor: what is kept of a prompt is found by the same tenant only.
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """The engine's answer to one prompt: the model's output names to arrays or plain data, again without a batch axis.

    A runner of many steps may answer in between: a `partial` output holds everything so far (all tokens, the latest
    image), not what is new since the last one. Of those that nobody took in time only the latest arrives.
    """

    data: Mapping[str, Value]
    partial: bool = False
    #: What the runner counted on the way, such as `encoder_hits`: added up in the job's metrics, kept from processors.
    counts: Mapping[str, int] = field(default_factory=dict)


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

    def checkpoints(self, prefix: str) -> Mapping[str, Path]:
        """Return what earlier attempts of this job saved under names with a prefix, as local files by their names.

        They may come from another machine or an older release, and from an attempt whose end nobody saw: take a file
        only if its name and its contents prove that it is what this attempt would make. To be asked for before
        `pre_process` returns.
        """
        ...


class ArtifactSink(Protocol):
    """Where a processor puts its artifacts: files that are uploaded when they are finished."""

    def path(self, name: str) -> Path:
        """Return a path in the attempt's scratch folder to write to; nothing is visible until `add`."""
        ...

    def add(self, name: str, path: Path, *, media_type: str) -> None:
        """Hand over a finished file as the artifact `name` (once a name; it may be uploaded at once)."""
        ...

    def say(self, text: str) -> None:
        """Tell the job's followers a further piece of the result's text while it is being made."""
        ...

    def show(self, name: str, picture: bytes, *, media_type: str) -> None:
        """Show the job's followers what the artifact `name` looks like so far: a picture of a few kilobytes.

        Of those that come quickly one after the other only the latest is told; they are not kept.
        """
        ...

    def checkpoint(self, name: str, path: Path) -> None:
        """Save a file for the job's later attempts under a name such as `<what it depends on>/<part>`.

        It is durable when this returns, and counts as progress: a job that advances by a checkpoint in every attempt is
        tried again however often its workers die. Where the store does not answer nothing is saved, and nothing fails.
        The caller may delete the file. Names match `CHECKPOINT_NAME`.
        """
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
    #: How many further prompts need not be drawn, because earlier attempts saved their results: progress begins there.
    done: int = 0
    #: How many of `unit` one prompt is: of a runner of many steps, which tells how many of them it took.
    steps: int = 1
    #: Whether the same request always has the same result; not so where chance decides, without a seed.
    repeatable: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """A job's immediate output: text, or JSON-ready data, or both. Artifacts went to the sink."""

    text: str | None = None
    data: Mapping[str, Any] | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Dummy:
    """A request that stands for real ones, with its media: what `IOProcessor.dummy` returns."""

    #: JSON data that `request` accepts.
    request: Mapping[str, Any]
    #: The file of each media reference in it.
    files: Mapping[str, Path] = field(default_factory=dict)


class IOProcessor(Protocol[RequestT, ContextT]):
    """Turns a model's raw input into prompts, and its outputs into a finished result.

    An instance is made once per model and worker as `Processor(model)` from the model's catalogue record
    (`penstock.models.Model`) and must be safe to use from several threads. `request` is the pydantic model of the
    job's `input`; media references in it are fields of type `penstock.models.MediaReference`. It lives in a module
    that imports neither numpy nor the rest, because its JSON Schema is the API's.

    Errors: raise an `InputError` (see `penstock.errors`) for what is wrong with the data; anything else is taken as
    the processor's own fault.
    """

    @property
    def request(self) -> type[BaseModel]:
        """The model of a job's `input`: an attribute of the class will do."""
        ...

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The results that can be made: an attribute will do here too."""
        ...

    def pre_process(self, request: RequestT, media: Media) -> Prepared[ContextT]:
        """Return the stream of prompts. No network and no storage: media are local files by now."""
        ...

    def post_process(self, outputs: Iterator[Output], context: ContextT, sink: ArtifactSink) -> Result:
        """Consume the outputs, which arrive in the prompts' order, and return the result.

        Partial outputs come before the output of their prompt; only runners of many steps make them, and
        `final_outputs` leaves them out. Closing `outputs` ends the work on what is still missing.
        """
        ...

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return the largest ordinary request that `limits` allow, with media made in `folder`.

        The worker runs it through both halves and the engine before it says that the model is ready.
        """
        ...


def final_outputs(outputs: Iterator[Output]) -> Iterator[Output]:
    """Yield one output per prompt: leave the partial ones out."""
    return (output for output in outputs if not output.partial)
