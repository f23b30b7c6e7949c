"""Where a job's IO processor works: the seam between a job's thread, its processor and the engine.

`InThread` runs it in the calling thread, for `penstock run`, for tests and for debugging. Workers use IO processes
(`penstock.workers.io`), where a decoder that crashes, hangs or eats memory ends one attempt and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from penstock.documents import issues
from penstock.errors import InvalidInput, ProcessorFailed
from penstock.models import CatalogueEntry, Model
from penstock.processors.base import IOProcessor, Output, Prepared, Prompt, Result
from penstock.processors.registry import Registry, export
from penstock.storage.media import LocalMedia
from penstock.workers.artifacts import Finished, Show, Sink, unseen
from penstock.workers.checkpoints import Checkpoints, NoCheckpoints
from penstock.workers.engine.base import Check


@dataclass(frozen=True, slots=True)
class Work:
    """What a job asks of its processor."""

    #: Its `source` is a local path.
    model: Model
    #: The job's `input`, not yet validated against the processor's `request`.
    input: Mapping[str, Any]
    #: The local file of every media reference in the input.
    media: Mapping[str, LocalMedia]
    #: Scratch space for artifacts; made if it is missing, removed by the caller.
    folder: Path


@dataclass(frozen=True, slots=True)
class Processed:
    """What a processor made of a job: its result, and its artifacts as files by name."""

    result: Result
    files: Mapping[str, Finished]


#: A run that nobody would continue.
NO_CHECKPOINTS: Checkpoints = NoCheckpoints()


class Session(Protocol):
    """A job whose first half is done."""

    @property
    def count(self) -> int | None:
        """See `Prepared.count`."""
        ...

    @property
    def cost(self) -> int:
        """See `Prepared.cost`."""
        ...

    @property
    def unit(self) -> str:
        """See `Prepared.unit`."""
        ...

    @property
    def done(self) -> int:
        """See `Prepared.done`."""
        ...

    @property
    def steps(self) -> int:
        """See `Prepared.steps`."""
        ...

    @property
    def repeatable(self) -> bool:
        """See `Prepared.repeatable`."""
        ...

    @property
    def prompts(self) -> Iterator[Prompt]:
        """The prompts, to be drawn by any one thread while another one waits in `finish`; has `close()`."""
        ...

    def finish(self, outputs: Iterator[Output]) -> Processed:
        """Run the second half on the prompts' outputs. Whatever `outputs` raises is raised again from here."""
        ...


class Processing(Protocol):
    """Runs IO processors. Safe to use from many threads; a session belongs to the thread that opened it."""

    def open(
        self, work: Work, *, check: Check, say: Callable[[str], None], checkpoints: Checkpoints = NO_CHECKPOINTS,
        show: Show = unseen,
    ) -> AbstractContextManager[Session]:  # fmt: skip
        """Run the first half of a job and return its session; leaving the block frees whatever it holds.

        `check` is called again and again while the processor is waited for; `say` gets its partial text, `show` its
        previews, and `checkpoints` is asked for what the job's attempts saved. Raises what these raise, an `InputError`
        for what is wrong with the job's data, `ModelUnavailable`, or what else the processor raised: its own fault.
        """
        ...

    def dummy(self, model: Model, folder: Path) -> Work:
        """Return the processor's dummy request for the model's limits as a job's work: its media lie in `folder`.

        Raises what the processor raised.
        """
        ...

    def entry(self, model: Model, *, check: Check = lambda: None) -> CatalogueEntry:
        """Return the model as the API serves it; what keeps its processor from being used is the entry's `problem`.

        Raises what `check` raises, which is called as in `open`.
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

    def path(self, reference: str) -> Path:
        """Return the local file of a reference."""
        return self.files[reference].path

    def etag(self, reference: str) -> str | None:
        """Return the source's etag, where it has one."""
        return self.files[reference].etag

    def checkpoints(self, prefix: str) -> Mapping[str, Path]:
        """Return what earlier attempts saved."""
        return self.found(prefix)


@dataclass(frozen=True, slots=True)
class ThreadSession:
    """A session in the calling thread."""

    processor: IOProcessor[Any, Any]
    prepared: Prepared[Any]
    sink: Sink

    @property
    def count(self) -> int | None:
        """See `Prepared.count`."""
        return self.prepared.count

    @property
    def cost(self) -> int:
        """See `Prepared.cost`."""
        return self.prepared.cost

    @property
    def unit(self) -> str:
        """See `Prepared.unit`."""
        return self.prepared.unit

    @property
    def done(self) -> int:
        """See `Prepared.done`."""
        return self.prepared.done

    @property
    def steps(self) -> int:
        """See `Prepared.steps`."""
        return self.prepared.steps

    @property
    def repeatable(self) -> bool:
        """See `Prepared.repeatable`."""
        return self.prepared.repeatable

    @property
    def prompts(self) -> Iterator[Prompt]:
        """The processor's own iterator."""
        return self.prepared.prompts

    def finish(self, outputs: Iterator[Output]) -> Processed:
        """Run the second half here."""
        result = self.processor.post_process(outputs, self.prepared.context, self.sink)
        return Processed(checked_result(result.text, result.data), self.sink.files)


class InThread:
    """Runs processors in the calling thread, without any protection from what they do."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._processors: dict[tuple[str, str], IOProcessor[Any, Any]] = {}

    @contextmanager
    def open(
        self, work: Work, *, check: Check, say: Callable[[str], None], checkpoints: Checkpoints = NO_CHECKPOINTS,
        show: Show = unseen,
    ) -> Iterator[Session]:  # fmt: skip
        """Run the first half here; see `Processing.open`. `check` is called once: threads cannot be interrupted."""
        check()
        processor = self._processor(work.model)
        prepared = processor.pre_process(parse(processor, work), Files(work.media, checkpoints.found))
        try:
            yield ThreadSession(processor, prepared, Sink(work.folder, say=say, save=checkpoints.save, show=show))
        finally:
            close = getattr(prepared.prompts, "close", None)
            if close is not None:
                close()

    def dummy(self, model: Model, folder: Path) -> Work:
        """Make the processor's dummy request here; see `Processing.dummy`."""
        return dummy_work(self._processor(model), model, folder)

    def entry(self, model: Model, *, check: Check = lambda: None) -> CatalogueEntry:
        """Import the processor here; see `Processing.entry`."""
        check()
        return export(self._registry, model)

    def close(self) -> None:
        """Forget the processors."""
        self._processors.clear()

    def _processor(self, model: Model) -> IOProcessor[Any, Any]:
        key = model.name, model.revision
        if key not in self._processors:
            self._processors[key] = self._registry.processor_for(model)
        return self._processors[key]


def parse(processor: IOProcessor[Any, Any], work: Work) -> Any:
    """Return the job's request as the processor takes it; raise `InvalidInput` with every place that does not fit."""
    try:
        return processor.request.model_validate(dict(work.input))
    except ValidationError as error:
        found = issues(error.errors(include_url=False, include_context=False), work.input, under="/input")
        raise InvalidInput(f"the input does not fit model {work.model.name}", errors=found) from error


def checked_result(text: Any, data: Any) -> Result:
    """Return a processor's result as it will be stored; raise `ProcessorFailed` unless it is a text and JSON."""
    if not isinstance(text, str | None) or not isinstance(data, Mapping | None):
        raise ProcessorFailed("the processor's result is not JSON: a text and an object, or None in place of either")
    said = {"text": text, "data": None if data is None else dict(data)}
    try:
        plain = json.dumps(said, ensure_ascii=False, allow_nan=False).encode()
        return Result(**json.loads(plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProcessorFailed(f"the processor's result is not JSON: {error}") from error


def dummy_work(processor: IOProcessor[Any, Any], model: Model, folder: Path) -> Work:
    """Return a processor's dummy request as work, with media and scratch space in `folder`, which is made."""
    media, scratch = folder / "media", folder / "artifacts"
    media.mkdir(parents=True)
    dummy = processor.dummy(model.limits, media)
    files = {reference: LocalMedia(path) for reference, path in dummy.files.items()}
    return Work(model, dummy.request, files, scratch)
