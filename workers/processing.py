"""The seam between a job's thread, its IO processor and the engine.

`InThread` runs the processor in the calling thread, for `penstock run`, tests and debugging. Workers use IO processes
(`penstock.workers.io`), where a decoder that crashes, hangs or exhausts memory ends one attempt and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from pydantic import ValidationError

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.intake.local_media import LocalMedia
from penstock.json_body import issues
from penstock.models import CatalogueEntry, Model
from penstock.processors.base import IOProcessor, Media, Output, PartProcessor, Prepared, Prompt, Result, Value
from penstock.processors.notes import noting
from penstock.processors.registry import Registry
from penstock.workers.artifacts import Finished, Show, Sink, discard_preview
from penstock.workers.checkpoints import Checkpoints, NoCheckpoints
from penstock.workers.compatibility import checked_entry
from penstock.workers.engine.base import Check
from penstock.workers.engine.runners import Runners
from penstock.workers.job_log import AttemptLog
from penstock.workers.job_media import MediaRequests, NoRequests
from penstock.workers.software import loaded_software

#: Requests of a processor whose media are all local files.
NO_REQUESTS: MediaRequests = NoRequests()


@dataclass(frozen=True, slots=True)
class Work:
    """A job's input for its processor."""

    #: The model; its `source` is a local path.
    model: Model
    #: The job's `input`, not yet validated against the processor's `request`.
    input: Mapping[str, Any]
    #: The local file, or the bytes in memory, of every media reference in the input.
    media: Mapping[str, LocalMedia]
    #: Scratch space for artifacts; created if missing, removed by the caller.
    folder: Path
    #: The tenant whose job it is. Processes never see data of two tenants.
    tenant: str = ""
    #: Folder of all jobs of the tenant and the model, which contains `folder`: an IO process can change its files. Its
    #: path is absolute and without links, and `folder` is below it. None = `folder` alone.
    room: Path | None = None
    #: Log for the lines that the processor logs or prints in an IO process; None = nobody reads them.
    lines: AttemptLog | None = None
    #: Answers the processor's requests for further media and ranges.
    requests: MediaRequests = NO_REQUESTS
    #: First and last unit of the part of a job that is to be computed; None for the whole job.
    part: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Processed:
    """A processor's result for a job, and its artifacts as files by name."""

    result: Result
    files: Mapping[str, Finished]
    #: Versions of the software that the processor had loaded.
    software: Mapping[str, str] = field(default_factory=dict)
    #: The earlier job whose result the cache returned, and its provenance; None for a computed result.
    copied: tuple[str, Mapping[str, Any]] | None = None
    #: Units of the result that earlier attempts had saved.
    resumed: int = 0


#: Checkpoints of a run that is never resumed.
NO_CHECKPOINTS: Checkpoints = NoCheckpoints()


class Session(Protocol):
    """A job whose first half, `pre_process`, is done."""

    @property
    def prepared(self) -> Prepared[Any]:
        """The result of the first half. Any single thread may read its prompts while another one waits in `finish`."""
        ...

    @property
    def ready(self) -> bool:
        """True where nothing is lost if the prompts are drawn before any output is taken: in memory and few, or one."""
        ...

    def finish(self, outputs: Iterator[Output]) -> Processed:
        """Run the second half, `post_process`, on the prompts' outputs. Errors of `outputs` are raised again here."""
        ...


class Processing(Protocol):
    """Runs IO processors. Safe to use from many threads; a session belongs to the thread that opened it."""

    def open(
        self, work: Work, *, check: Check, say: Callable[[str], None], checkpoints: Checkpoints = NO_CHECKPOINTS,
        show: Show = discard_preview,
    ) -> AbstractContextManager[Session]:  # fmt: skip
        """Run the first half of a job and return its session; leaving the block frees all its resources.

        `check` is called repeatedly while the processor works; `say` gets its partial text, `show` its previews;
        `checkpoints` finds what earlier attempts saved. Raises the errors of these four, an `InputError` for invalid
        data of the job, `ModelUnavailable`, or the processor's own error.
        """
        ...

    def dummy(self, model: Model, folder: Path) -> Work:
        """Return the processor's dummy request for the model's limits as work; the media files lie in `folder`.

        Raises the processor's errors.
        """
        ...

    def entry(self, model: Model, *, check: Check = lambda: None) -> CatalogueEntry:
        """Return the model's catalogue entry; its `problem` says why the model's processor cannot be used.

        That includes a processor that the model's runner cannot serve; see `checked_entry`.

        Calls `check` as `open` does, and raises its errors.
        """
        ...

    def close(self) -> None:
        """Free everything."""
        ...


@dataclass(frozen=True, slots=True)
class Files:
    """A job's media as local files: the `Media` of its processor."""

    files: Mapping[str, LocalMedia]
    found: Callable[[str], Mapping[str, Path]]
    requests: MediaRequests = NO_REQUESTS
    #: Files that were fetched at the processor's request.
    fetched: dict[str, LocalMedia] = field(default_factory=dict)

    def path(self, reference: str) -> Path:
        """Return the local file of a reference; write the file of a medium in memory first."""
        return self._file(reference).file()

    def source(self, reference: str) -> Path | bytes:
        """Return the bytes of a medium in memory, else its local file."""
        return self._file(reference).source

    def etag(self, reference: str) -> str | None:
        """Return the source's etag, where it has one."""
        return self._file(reference).etag

    def is_partial(self, reference: str) -> bool:
        """Return True if the file has holes."""
        return self._file(reference).partial

    def fill(self, reference: str, ranges: Sequence[tuple[int, int]], *, later: bool = False) -> None:
        """Have the worker fetch ranges of a partial file."""
        if self.is_partial(reference):
            self.requests.fill(reference, ranges, later=later)

    def fetch(self, reference: str, *, by_range: bool = False) -> None:
        """Have the worker fetch a file that a document of the request names."""
        if reference not in self.files and reference not in self.fetched:
            self.fetched[reference] = self.requests.fetch(reference, by_range=by_range)

    @property
    def any_partial(self) -> bool:
        """True if a file has holes."""
        return any(file.partial for file in (*self.files.values(), *self.fetched.values()))

    def _file(self, reference: str) -> LocalMedia:
        self.fetch(reference)  # of a file that may be missing: the error is the processor's to judge
        return self.files.get(reference) or self.fetched[reference]

    def checkpoints(self, prefix: str) -> Mapping[str, Path]:
        """Return the checkpoints of earlier attempts whose names start with a prefix."""
        return self.found(prefix)


@dataclass(frozen=True, slots=True)
class ThreadSession:
    """A session in the calling thread."""

    processor: IOProcessor[Any, Any]
    prepared: Prepared[Any]
    sink: Sink
    notes: list[str]

    @property
    def ready(self) -> bool:
        """True for one prompt: while this thread makes it, there is nothing else to do for the job."""
        return self.prepared.count is not None and self.prepared.count <= 1

    def finish(self, outputs: Iterator[Output]) -> Processed:
        """Run the second half here."""
        with noting(self.notes):
            result = self.processor.post_process(outputs, self.prepared.context, self.sink)
        found = checked_result(result.text, with_notes(result.data, self.notes))
        return Processed(found, self.sink.files, loaded_software())


class InThread:
    """Runs processors in the calling thread, without isolation."""

    def __init__(self, registry: Registry, runners: Runners | None = None) -> None:
        """Use the processors of a registry, for models of these runners [the installed ones]."""
        self._registry = registry
        self._runners = runners or Runners.installed()
        #: Processors by their models' records: a warm-up makes one with small limits.
        self._processors: dict[str, IOProcessor[Any, Any]] = {}

    @contextmanager
    def open(
        self, work: Work, *, check: Check, say: Callable[[str], None], checkpoints: Checkpoints = NO_CHECKPOINTS,
        show: Show = discard_preview,
    ) -> Iterator[Session]:  # fmt: skip
        """Run the first half here; see `Processing.open`. `check` is called once: threads cannot be interrupted."""
        check()
        processor = self._processor(work.model)
        notes: list[str] = []
        with noting(notes):
            prepared = first_half(processor, work, Files(work.media, checkpoints.found, work.requests))
        sink = Sink(work.folder, say=say, save=checkpoints.save, show=show)
        try:
            noted = replace(prepared, prompts=_noted(prepared.prompts, notes))
            yield ThreadSession(processor, noted, sink, notes)
        finally:
            close = getattr(prepared.prompts, "close", None)
            if close is not None:
                close()

    def dummy(self, model: Model, folder: Path) -> Work:
        """Create the processor's dummy request here; see `Processing.dummy`."""
        return dummy_work(self._processor(model), model, folder)

    def entry(self, model: Model, *, check: Check = lambda: None) -> CatalogueEntry:
        """Import the processor here; see `Processing.entry`."""
        check()
        return checked_entry(self._registry, self._runners, model)

    def close(self) -> None:
        """Drop the loaded processors."""
        self._processors.clear()

    def _processor(self, model: Model) -> IOProcessor[Any, Any]:
        key = repr(model)
        if key not in self._processors:
            self._processors[key] = self._registry.processor_for(model)
        return self._processors[key]


def first_half(processor: IOProcessor[Any, Any], work: Work, media: Media) -> Prepared[Any]:
    """Run the first half of a job, or of a part of one."""
    request = parse(processor, work)
    if work.part is None:
        return processor.pre_process(request, media)
    if not isinstance(processor, PartProcessor):
        raise ProcessorFailed("the model's processor computes no parts of jobs")
    return processor.pre_process_part(request, media, *work.part)


def parse(processor: IOProcessor[Any, Any], work: Work) -> Any:
    """Return the job's request as the processor's type; raise `InvalidInput` with every invalid place."""
    try:
        return processor.request.model_validate(dict(work.input))
    except ValidationError as error:
        found = issues(error.errors(include_url=False, include_context=False), work.input, under="/input")
        raise InvalidInput(f"the input does not fit model {work.model.name}", errors=found) from error


def _noted(prompts: Iterator[Prompt], notes: list[str]) -> Iterator[Prompt]:
    try:
        while True:
            with noting(notes):
                prompt = next(prompts, None)
            if prompt is None:
                return
            yield prompt
    finally:
        close = getattr(prompts, "close", None)
        if close is not None:
            close()


def with_notes(data: Any, notes: Sequence[str]) -> Any:
    """Return a result's JSON object with further notes; the same object without any, or if its own are no list."""
    if not notes or not isinstance(data, Mapping | None):
        return data
    own = (data or {}).get("notes", [])
    return {**(data or {}), "notes": [*own, *notes]} if isinstance(own, list) else data


def checked_result(text: Any, data: Any) -> Result:
    """Return a processor's result as JSON values; raise `ProcessorFailed` unless it is a text and a JSON object."""
    if not isinstance(text, str | None) or not isinstance(data, Mapping | None):
        raise ProcessorFailed("the processor's result is not JSON: it must be a text and an object, or None for either")
    try:
        if data is None and type(text) is str:
            text.encode()  # the only way in which a text is no JSON
            return Result(text)
        said = {"text": text, "data": None if data is None else dict(data)}
        plain = json.dumps(said, ensure_ascii=False, allow_nan=False).encode()
        return Result(**json.loads(plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProcessorFailed(f"the processor's result is not JSON: {error}") from error


def dummy_work(processor: IOProcessor[Any, Any], model: Model, folder: Path) -> Work:
    """Return a processor's dummy request as work; creates `folder` with media and scratch space."""
    media, scratch = folder / "media", folder / "artifacts"
    media.mkdir(parents=True)
    dummy = processor.dummy(model.limits, media)
    files = {reference: LocalMedia(path) for reference, path in dummy.files.items()}
    return Work(model, dummy.request, files, scratch)


def work_to_json(work: Work) -> dict[str, Any]:
    """Return a job's work without its model as JSON."""
    media = {reference: [str(file.path), file.etag, file.partial] for reference, file in work.media.items()}
    part = None if work.part is None else list(work.part)
    return {"input": dict(work.input), "media": media, "folder": str(work.folder), "part": part}


def held_media(work: Work) -> dict[str, Value]:
    """Return the bytes of the media in memory by reference, each as uint8 (bytes,)."""
    return {
        reference: np.frombuffer(file.data, np.uint8)
        for reference, file in work.media.items()
        if file.data is not None
    }  # fmt: skip


def work_from_json(model: Model, data: Mapping[str, Any], held: Mapping[str, Value] = MappingProxyType({})) -> Work:
    """Return the work from JSON and the media in memory; raise `KeyError`, `TypeError` or `ValueError` if invalid."""
    media = {
        reference: LocalMedia(Path(path), etag, partial, held[reference].tobytes() if reference in held else None)
        for reference, (path, etag, partial) in data["media"].items()
    }
    part = data.get("part")
    return Work(
        model, dict(data["input"]), media, Path(data["folder"]), part=None if part is None else (part[0], part[1])
    )
