"""The conformance test that authors of IO processors run on their own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock.errors import MediaNotFound
from penstock.processors.base import IOProcessor, Output, Prepared, Prompt, Result

#: Stands in for the engine: gives one output per prompt, in order, and draws the prompts as it goes.
Answer = Callable[[Iterator[Prompt]], Iterator[Output]]

#: How long one of two interleaved jobs waits for the other before it goes on alone.
_TURN_S = 30


class ConformanceError(AssertionError):
    """The processor breaks the contract."""


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Media that are files already."""

    files: Mapping[str, Path]

    def path(self, reference: str) -> Path:
        """Return the file of a reference; raise `MediaNotFound` for one that is not known."""
        if reference not in self.files:
            raise MediaNotFound(f"the processor asked for {reference!r}, which is not in the request")
        return self.files[reference]

    def etag(self, reference: str) -> str | None:  # noqa: ARG002  (the protocol names it)
        """Files have none."""
        return None


@dataclass(frozen=True, slots=True)
class FolderSink:
    """A sink that keeps what it is given."""

    folder: Path
    artifacts: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Return a path in the folder."""
        return self.folder / name

    def add(self, name: str, path: Path, *, media_type: str) -> None:
        """Read the finished file; raise `ConformanceError` for a name that was used before."""
        if name in self.artifacts:
            raise ConformanceError(f"the artifact {name!r} was added twice")
        self.artifacts[name] = media_type, path.read_bytes()


@dataclass(frozen=True, slots=True)
class Finished:
    """What a job left behind: its result, and its artifacts' media types and bytes by name."""

    result: Result
    artifacts: Mapping[str, tuple[str, bytes]]


def check_processor(
    processor: IOProcessor[Any, Any], request: Any, files: Mapping[str, Path], *, engine: Answer, other: Any = None
) -> Finished:
    """Run a request through the processor in several ways and return what it made of it.

    `request` and `other` are the processor's requests or their JSON data, and `files` has the media of both. Give as
    `other` a request with different results: without one, state that leaks from job to job may not show.

    Raises `ConformanceError` when more prompts come than were announced, an output is left over, a request leaves a
    trace on the processor, two jobs share a context, results change from run to run or beside another job, or a result
    is not JSON.
    """
    mine = processor.request.model_validate(request)
    others = mine if other is None else processor.request.model_validate(other)
    before = dict(vars(processor)) if hasattr(processor, "__dict__") else {}
    alone = _run(processor, mine, files, engine)
    _check_result(alone)
    if _run(processor, mine, files, engine) != alone:
        raise ConformanceError("the same request gave another result the second time")
    other_alone = _run(processor, others, files, engine)
    if _run_interleaved(processor, (mine, others), files, engine) != (alone, other_alone):
        raise ConformanceError("a job gave another result beside another job than alone")
    if before != (dict(vars(processor)) if before else {}):
        raise ConformanceError("a request left a trace on the processor: state belongs into the context")
    return alone


def _run(processor: IOProcessor[Any, Any], request: Any, files: Mapping[str, Path], engine: Answer) -> Finished:
    return _finish(processor, processor.pre_process(request, LocalFiles(files)), engine, lambda: None)


def _run_interleaved(
    processor: IOProcessor[Any, Any], requests: tuple[Any, Any], files: Mapping[str, Path], engine: Answer
) -> tuple[Finished, ...]:
    """Run two jobs whose outputs are taken in turns."""
    prepared = [processor.pre_process(request, LocalFiles(files)) for request in requests]
    if prepared[0].context is prepared[1].context and prepared[0].context is not None:
        raise ConformanceError("two jobs share one context")
    turn = threading.Barrier(2)

    def take_turns() -> None:
        with suppress(threading.BrokenBarrierError):
            turn.wait(_TURN_S)

    def finish(job: Prepared[Any]) -> Finished:
        try:
            return _finish(processor, job, engine, take_turns)
        finally:
            turn.abort()

    with ThreadPoolExecutor(2) as pool:
        return tuple(pool.map(finish, prepared))


def _finish(
    processor: IOProcessor[Any, Any], prepared: Prepared[Any], engine: Answer, take_turns: Callable[[], None]
) -> Finished:
    def counted() -> Iterator[Prompt]:
        for drawn, prompt in enumerate(prepared.prompts, start=1):
            if prepared.count is not None and drawn > prepared.count:
                raise ConformanceError(f"{drawn} prompts came and {prepared.count} were announced")
            yield prompt

    def in_turns() -> Iterator[Output]:
        for output in engine(counted()):
            take_turns()
            yield output

    with TemporaryDirectory() as folder:
        sink, outputs = FolderSink(Path(folder)), in_turns()
        result = processor.post_process(outputs, prepared.context, sink)
        if next(outputs, None) is not None:
            raise ConformanceError("post_process left outputs behind")
        return Finished(result, sink.artifacts)


def _check_result(finished: Finished) -> None:
    try:
        json.dumps(finished.result.data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConformanceError(f"the result is not JSON: {error}") from error
