"""The contract between a model's IO processor, the engine and the pipeline.

The same contract serves text, images, rasters, audio and embeddings:

    request + media --pre_process--> prompts --engine--> outputs --post_process--> result + artifacts

A processor holds no request state: `pre_process` returns a context, and `post_process` receives this context. Prompts
and outputs are streams with a known count, so that memory does not grow with the input. Both methods of a job run in
the same IO process, and the engine runs in another one. Prompts and outputs therefore hold numpy arrays and plain
data, never objects with code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from penstock.errors import ProcessorFailed
from penstock.models import Limits

#: A tensor between processor and engine: a numpy array of booleans or numbers (no objects, no bfloat16).
Array = Any

#: A named value of a prompt or an output: an array, or JSON-ready data (text, token ids, chat messages).
Value = Any

#: Pattern of a checkpoint's name: one or two parts, with a slash between them.
CHECKPOINT_NAME = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]{0,99}(/[0-9A-Za-z_-][0-9A-Za-z._-]{0,99})?")

RequestT = TypeVar("RequestT", bound=BaseModel, contravariant=True)
ContextT = TypeVar("ContextT")
#: Characters of each of `Divisible.findings`, and their number.
MAX_FINDING_CHARS, MAX_FINDINGS = 65_536, 100


@dataclass(frozen=True, slots=True)
class Prompt:
    """One unit of work for the engine.

    `data` maps the model's input names to arrays without a batch axis (an image tile is float32 (C, H, W)) or to plain
    data. `cost` is in the model's unit of work (pixels for images and rasters, tokens for text).
    """

    data: Mapping[str, Value]
    cost: int = 1
    #: The job's tenant, set by the worker and never by a processor. Caches of a prompt are shared within a tenant only.
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """The engine's answer to one prompt.

    `data` maps the model's output names to arrays without a batch axis or to plain data. A runner of many steps may
    send `partial` outputs before the final one. A partial output holds the whole result so far (all tokens, the latest
    image), not the difference to the previous one. A slow reader receives only the latest partial output.
    """

    data: Mapping[str, Value]
    partial: bool = False
    #: Counters of the runner, such as `encoder_hits`. They are summed in the job's metrics; processors do not see them.
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One of the results that a processor can make."""

    name: str
    media_type: str
    description: str
    #: Made by default, where the request names no outputs.
    default: bool = True


class Media(Protocol):
    """The job's media: every reference in the request was fetched, or the job failed."""

    def path(self, reference: str) -> Path:
        """Return the local file of a media reference; the reference must be exactly the one in the request.

        The service made the file, and no other file is in its folder. Only the suffix of the name is the reference's.
        """
        ...

    def source(self, reference: str) -> Path | bytes:
        """Return the bytes of a small file that the service has in memory, else the local file as `path` does.

        Use this if your reader takes both: no file is written then. Raises the errors of `path`.
        """
        ...

    def etag(self, reference: str) -> str | None:
        """Return the source's etag, where it has one."""
        ...

    def is_partial(self, reference: str) -> bool:
        """Return True for a file with holes: fill the ranges that are read.

        Only TIFF files are partial, and only if the schema marks the reference (`penstock.models.BY_RANGE`, `SHARED`)
        or `fetch` asks for it. The file has its full size. A range that nobody filled reads as zeros.
        """
        ...

    def fill(self, reference: str, ranges: Sequence[tuple[int, int]], *, later: bool = False) -> None:
        """Have the worker fetch ranges (start, end) of a partial file, and wait until they are there.

        Call this before `pre_process` returns, or from `Prepared.prompts` while prompts are drawn, in any thread.
        With `later`, which is for `pre_process` alone, the call does not wait: the ranges may come when `pre_process`
        has returned, before the first prompt is drawn; they never come where other workers compute the job.
        A library that has opened the file before may keep zeros in its buffers: open it again to read new ranges.
        All ranges are those of one version of the source: a source that changes fails the job with `media_changed`.
        """
        ...

    def fetch(self, reference: str, *, by_range: bool = False) -> None:
        """Have the worker fetch a file that a document of the request names; then `path` returns it.

        The same rules apply as for references in the request. Call this before `pre_process` returns. With `by_range`,
        a large TIFF file is partial. Raises the `InputError` of a file that cannot be had: let it end the job, or go
        on without the file.
        """
        ...

    def checkpoints(self, prefix: str) -> Mapping[str, Path]:
        """Return the checkpoints of the job's earlier attempts whose names start with `prefix`: local files by name.

        A checkpoint may come from another machine, an older release or an interrupted attempt. Use a file only if its
        name and contents prove that this attempt would make the same one. Call this before `pre_process` returns.
        """
        ...


class ArtifactSink(Protocol):
    """Receiver of a processor's artifacts: files that are uploaded when they are finished."""

    def path(self, name: str) -> Path:
        """Return a path in the attempt's scratch folder to write to; nothing is visible until `add`."""
        ...

    def add(self, name: str, path: Path, *, media_type: str) -> None:
        """Add a finished file as the artifact `name`. Each name can be added once; the upload may start at once."""
        ...

    def say(self, text: str) -> None:
        """Send the next part of the result's text to the job's followers, while the result is being made."""
        ...

    def show(self, name: str, picture: bytes, *, media_type: str) -> None:
        """Send the job's followers a preview of the artifact `name`: an image file of a few kilobytes.

        Previews are not stored. Of several previews in quick succession only the latest is sent.
        """
        ...

    def checkpoint(self, name: str, path: Path) -> None:
        """Save a file for the job's later attempts under a name such as `<hash of its inputs>/<part>`.

        The checkpoint is durable when this method returns, and it counts as progress: a job that saves a checkpoint in
        every attempt is retried however often its workers die. If the store is unavailable, nothing is saved and no
        error is raised. The caller may delete the file afterwards. Names match `CHECKPOINT_NAME`.
        """
        ...


def finding_name(digest: str) -> str:
    """Return the checkpoint name of what a job's first attempt found out about its media; see `Divisible.findings`."""
    return f"{digest}/finding"


@dataclass(frozen=True, slots=True)
class Divisible:
    """Work that several workers can share, because it is saved in units: each unit is a checkpoint."""

    #: Digest of everything that the contents of the checkpoints depend on.
    digest: str
    #: The units in order: the number of each, its prompts, and those of them that no checkpoint holds yet.
    units: tuple[tuple[int, int, int], ...]
    #: Texts about the media that this attempt found out, at most `MAX_FINDINGS` of at most `MAX_FINDING_CHARS` each, by
    #: the digest of what each is about. If workers share the job, they are the checkpoints `finding_name(digest)` of
    #: later attempts, which need not find them out again.
    findings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared(Generic[ContextT]):
    """The result of `pre_process`."""

    #: The prompts, read lazily while the engine works. Making the next prompt may read the media.
    prompts: Iterator[Prompt]
    #: Number of prompts, if it is known in advance: the total of the job's progress.
    count: int | None
    #: Cost of all prompts together, in the model's unit of work.
    cost: int
    #: Request state for `post_process`.
    context: ContextT
    #: Unit of the progress, in the plural: the user's word for a prompt.
    unit: str = "prompts"
    #: Number of further prompts that earlier attempts finished: they are not in `prompts`, and progress starts there.
    done: int = 0
    #: Number of `unit` per prompt, for a runner of many steps that reports each step.
    steps: int = 1
    #: True where the same request always has the same result; False for random results without a seed.
    repeatable: bool = True
    #: The work as units that can be shared; None where one worker must do it. Only of a `PartProcessor`.
    division: Divisible | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A job's immediate output: text, or JSON-ready data, or both. Artifacts go to the sink instead."""

    text: str | None = None
    data: Mapping[str, Any] | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Dummy:
    """A request for the warm-up, with its media: the result of `IOProcessor.dummy`."""

    #: JSON data that `request` accepts.
    request: Mapping[str, Any]
    #: The file of each media reference in it.
    files: Mapping[str, Path] = field(default_factory=dict)


class IOProcessor(Protocol[RequestT, ContextT]):
    """A processor: turns a model's raw input into prompts, and the model's outputs into a finished result.

    The worker makes one instance per model as `Processor(model)` from the model's catalogue record
    (`penstock.models.Model`). The instance must be safe to use from several threads. `request` is the pydantic model
    of the job's `input`; media references in it are fields of type `penstock.models.MediaReference`. Define `request`
    in a module that imports neither numpy nor other heavy libraries, because the API publishes its JSON Schema.

    An attribute `views`, a tuple of `penstock.views.View`, may say how people read the `data` of the results; they see
    JSON without it.

    Errors: raise an `InputError` (see `penstock.errors`) for invalid data. Every other exception counts as a failure
    of the processor.
    """

    @property
    def request(self) -> type[BaseModel]:
        """The pydantic model of a job's `input`; a class attribute is enough."""
        ...

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The results that the processor can make; a class attribute is enough."""
        ...

    def pre_process(self, request: RequestT, media: Media) -> Prepared[ContextT]:
        """Return the stream of prompts. Use neither network nor storage: all media are local files."""
        ...

    def post_process(self, outputs: Iterator[Output], context: ContextT, sink: ArtifactSink) -> Result:
        """Consume the outputs, which arrive in the prompts' order, and return the result.

        Only runners of many steps send partial outputs, each before the final output of its prompt. `final_outputs`
        removes them. Closing `outputs` cancels the engine's work on the remaining prompts.
        """
        ...

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return the largest ordinary request that `limits` allow, with media files written to `folder`.

        The warm-up: the worker runs this request through the processor and the engine before the model is ready.
        """
        ...


@runtime_checkable
class PartProcessor(Protocol[RequestT, ContextT]):
    """A processor whose jobs several workers can share; an `IOProcessor` as well.

    Each worker gets a range of units and saves all of them as checkpoints. Then one worker runs the whole job, which
    finds them; it also does what is missing. So a part that is lost costs time and nothing else.
    """

    def pre_process_part(self, request: RequestT, media: Media, first: int, last: int) -> Prepared[ContextT]:
        """Return the prompts of the units `first` to `last`, both included. `division` names the digest of the job.

        `post_process` then saves a checkpoint of each unit, adds no artifacts, and returns an empty result.
        """
        ...


def only_output(outputs: Iterator[Output]) -> Output:
    """Return the final output of a job of one prompt; raise `ProcessorFailed` for another number of outputs."""
    found = list(final_outputs(outputs))
    if len(found) != 1:
        raise ProcessorFailed(f"The engine answered {len(found)} times; expected once.")
    return found[0]


def final_outputs(outputs: Iterator[Output]) -> Iterator[Output]:
    """Yield one output per prompt, without the partial ones."""
    return (output for output in outputs if not output.partial)
