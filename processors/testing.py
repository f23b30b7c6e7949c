"""Conformance tests for IO processors, to be run by their authors."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from penstock.errors import MediaNotFound
from penstock.media_types import is_media_type
from penstock.models import Limits, media_references
from penstock.processors.base import CHECKPOINT_NAME, IOProcessor, Output, Prepared, Prompt, Result
from penstock.views import shown

#: A stand-in for the engine: reads prompts one by one and yields one output per prompt, in order.
Answer = Callable[[Iterator[Prompt]], Iterator[Output]]

#: Seconds that one of two interleaved jobs waits for the other before it continues alone.
_TURN_S = 30
#: Kinds of numpy dtypes that a prompt may hold: booleans, integers, real and complex numbers.
_NUMBERS = frozenset("biufc")
_HEAVY = ("numpy", "torch", "PIL", "rasterio", "transformers", "tokenizers")


class ConformanceError(AssertionError):
    """The processor breaks the contract."""


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Media that are local files."""

    files: Mapping[str, Path]
    #: Checkpoints of earlier attempts.
    saved: Mapping[str, Path] = field(default_factory=dict)

    def path(self, reference: str) -> Path:
        """Return the file of a reference; raise `MediaNotFound` for an unknown reference."""
        if reference not in self.files:
            raise MediaNotFound(f"the processor requested {reference!r}, which is not in the request")
        return self.files[reference]

    def source(self, reference: str) -> Path | bytes:
        """Return the file of a reference."""
        return self.path(reference)

    def etag(self, reference: str) -> str | None:  # noqa: ARG002  (the protocol names it)
        """Return None: local files have no etag."""
        return None

    def is_partial(self, reference: str) -> bool:  # noqa: ARG002  (the protocol names it)
        """Return False: local files are whole."""
        return False

    def fill(self, reference: str, ranges: Sequence[tuple[int, int]], *, later: bool = False) -> None:
        """Do nothing: local files are whole."""

    def fetch(self, reference: str, *, by_range: bool = False) -> None:  # noqa: ARG002  (the protocol names it)
        """Raise `MediaNotFound` for a file that is not among the files."""
        self.path(reference)

    def checkpoints(self, prefix: str) -> Mapping[str, Path]:
        """Return the checkpoints whose names start with `prefix`."""
        return {name: path for name, path in self.saved.items() if name.startswith(prefix)}


@dataclass(frozen=True, slots=True)
class FolderSink:
    """A sink that keeps artifacts, text and checkpoints in memory."""

    folder: Path
    artifacts: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    #: The checkpoints' bytes by name.
    saved: dict[str, bytes] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Return a path in the folder."""
        return self.folder / name

    def add(self, name: str, path: Path, *, media_type: str) -> None:
        """Read the finished file; raise `ConformanceError` for a used name or an invalid media type."""
        if name in self.artifacts:
            raise ConformanceError(f"the artifact {name!r} was added twice")
        if not is_media_type(media_type):
            raise ConformanceError(f"{media_type!r} of the artifact {name!r} is not a media type")
        self.artifacts[name] = media_type, path.read_bytes()

    def say(self, text: str) -> None:
        """Keep a part of the text."""
        self.said.append(text)

    def show(self, name: str, picture: bytes, *, media_type: str) -> None:
        """Ignore the preview: it is no part of the result."""

    def checkpoint(self, name: str, path: Path) -> None:
        """Read the file; raise `ConformanceError` for an invalid name."""
        if not CHECKPOINT_NAME.fullmatch(name):
            raise ConformanceError(f"{name!r} is not a valid name of a checkpoint")
        self.saved[name] = path.read_bytes()


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of a job: its result, and the media type and bytes of each artifact by name."""

    result: Result
    artifacts: Mapping[str, tuple[str, bytes]]
    #: The checkpoints' bytes by name. They are not compared.
    saved: Mapping[str, bytes] = field(default_factory=dict, compare=False)


def check_processor(
    processor: IOProcessor[Any, Any],
    request: Any,
    files: Mapping[str, Path],
    *,
    engine: Answer,
    other: Any = None,
    limits: Limits | None = None,
    count_is_a_bound: bool = False,
) -> Finished:
    """Run a request through the processor in several ways and return its outcome.

    `request` and `other` are the processor's requests or their JSON data, and `files` has the media of both. As
    `other`, give a request with a different result: otherwise state that leaks between jobs may stay undetected.
    `limits` are the model's, for the warm-up request. `count_is_a_bound` allows fewer prompts than announced.

    Raises `ConformanceError` if

    * a prompt holds a value that cannot be sent to the engine, or the prompts cannot be closed early;
    * the number of prompts differs from the announced one, or they cost more than announced;
    * partial outputs, checkpoints (whole or damaged), a second run or a concurrent job change the result;
    * outputs are left unread, the processor's state changes, or two jobs share a context;
    * the result is not JSON, does not start with the text that was sent with `say`, or is not of the form of its views;
    * the request of `dummy` is invalid or fails.
    """
    run = _Runs(processor, engine, count_is_a_bound)
    mine = processor.request.model_validate(request)
    others = mine.model_copy(deep=True) if other is None else processor.request.model_validate(other)
    before = dict(vars(processor)) if hasattr(processor, "__dict__") else {}
    alone = run.alone(mine, files)
    if run.alone(mine, files) != alone:
        raise ConformanceError("the same request had a different result the second time")
    if replace(run, engine=_with_partials(engine)).alone(mine, files) != alone:
        raise ConformanceError("partial outputs changed the result: remove them with `final_outputs`")
    other_alone = run.alone(others, files)
    if run.interleaved((mine, others), files) != (alone, other_alone):
        raise ConformanceError("a job had a different result when another job ran at the same time")
    run.closed_early(mine, files)
    run.resumed(mine, files, alone)
    run.dummy(limits or Limits())
    if before != (dict(vars(processor)) if before else {}):
        raise ConformanceError("a request changed the processor's attributes: put state into the context")
    return alone


def check_request_module(processor: IOProcessor[Any, Any]) -> None:
    """Import the module of the processor's request in a new interpreter, as the API does.

    Raises `ConformanceError` if the import fails, or also imports numpy, torch or another heavy library.
    """
    module = processor.request.__module__
    program = f"import sys, {module}; print(*sorted(set({_HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConformanceError(f"the request's module {module} cannot be imported alone: {done.stderr.strip()}")
    if done.stdout.strip():
        raise ConformanceError(
            f"the request's module {module} imports {done.stdout.strip()}: move it to a light module"
        )


@dataclass(frozen=True, slots=True)
class _Runs:
    """Test runs of a processor."""

    processor: IOProcessor[Any, Any]
    engine: Answer
    count_is_a_bound: bool

    def alone(self, request: Any, files: Mapping[str, Path]) -> Finished:
        return self._finish(self._prepare(request, files), lambda: None)

    def interleaved(self, requests: tuple[Any, Any], files: Mapping[str, Path]) -> tuple[Finished, ...]:
        """Run two jobs whose outputs are read in turns."""
        prepared = [self._prepare(request, files) for request in requests]
        if prepared[0].context is prepared[1].context and prepared[0].context is not None:
            raise ConformanceError("two jobs share one context")
        turn = threading.Barrier(2)

        def take_turns() -> None:
            with suppress(threading.BrokenBarrierError):
                turn.wait(_TURN_S)

        def finish(job: Prepared[Any]) -> Finished:
            try:
                return self._finish(job, take_turns)
            finally:
                turn.abort()

        with ThreadPoolExecutor(2) as pool:
            return tuple(pool.map(finish, prepared))

    def closed_early(self, request: Any, files: Mapping[str, Path]) -> None:
        """Cancel a job after its first prompt, and another before any prompt."""
        for drawn in (1, 0):
            prompts = self._prepare(request, files).prompts
            for _ in range(drawn):
                next(prompts, None)
            try:
                close = getattr(prompts, "close", None)
                if close is not None:
                    close()
            except Exception as error:
                raise ConformanceError(f"closing the prompts after {drawn} of them failed: {error!r}") from error

    def resumed(self, request: Any, files: Mapping[str, Path], alone: Finished) -> None:
        """Run a job with all checkpoints of an earlier attempt, with half of them, and with damaged ones."""
        whole = dict(alone.saved)
        variants = {
            "whole": whole,
            "the first half of": dict(sorted(whole.items())[: len(whole) // 2]),
            "damaged": {name: data[: len(data) // 2] for name, data in whole.items()},
            "emptied": dict.fromkeys(whole, b""),
        }
        for kind, saved in variants.items() if whole else ():
            with TemporaryDirectory() as folder:
                paths = {name: Path(folder, str(number)) for number, name in enumerate(saved)}
                for name, path in paths.items():
                    path.write_bytes(saved[name])
                again = self._finish(self._prepare(request, files, saved=paths), lambda: None)
            if again != alone:
                raise ConformanceError(f"with {kind} checkpoints of an earlier attempt the result differs")

    def dummy(self, limits: Limits) -> None:
        """Run the warm-up request."""
        with TemporaryDirectory() as folder:
            dummy = self.processor.dummy(limits, Path(folder))
            try:
                request = self.processor.request.model_validate(dict(dummy.request))
            except ValidationError as error:
                raise ConformanceError(f"the dummy's request is not valid: {error}") from error
            schema = self.processor.request.model_json_schema()
            for pointer, reference in media_references(schema, dict(dummy.request)):
                if reference not in dummy.files or not dummy.files[reference].is_file():
                    raise ConformanceError(f"the dummy names {reference!r} at {pointer} but wrote no file for it")
            try:
                self.alone(request, dummy.files)
            except ConformanceError:
                raise
            except Exception as error:
                raise ConformanceError(f"the dummy request fails: {error!r}") from error

    def _prepare(
        self, request: Any, files: Mapping[str, Path], saved: Mapping[str, Path] = MappingProxyType({})
    ) -> Prepared[Any]:
        return self.processor.pre_process(request, LocalFiles(files, saved))

    def _finish(self, prepared: Prepared[Any], take_turns: Callable[[], None]) -> Finished:
        def in_turns() -> Iterator[Output]:
            for output in self.engine(self._counted(prepared)):
                take_turns()
                yield output

        with TemporaryDirectory() as folder:
            sink, outputs = FolderSink(Path(folder)), in_turns()
            result = self.processor.post_process(outputs, prepared.context, sink)
            if next(outputs, None) is not None:
                raise ConformanceError("post_process left outputs unread: read all of them, or close the iterator")
            _check_result(result, sink)
            _check_views(self.processor, result)
            return Finished(result, sink.artifacts, sink.saved)

    def _counted(self, prepared: Prepared[Any]) -> Iterator[Prompt]:
        drawn, cost = 0, 0
        for drawn, prompt in enumerate(prepared.prompts, start=1):
            cost += prompt.cost
            if prepared.count is not None and drawn > prepared.count:
                raise ConformanceError(f"there are {drawn} prompts, but {prepared.count} were announced")
            for name, value in prompt.data.items():
                if problem := _problem(value):
                    raise ConformanceError(f"prompt {drawn} holds under {name!r} {problem}")
            yield prompt
        if prepared.count is not None and drawn < prepared.count and not self.count_is_a_bound:
            raise ConformanceError(f"there are {drawn} prompts, but {prepared.count} were announced")
        if cost > prepared.cost:
            raise ConformanceError(f"the prompts cost {cost} together, more than the announced {prepared.cost}")


def _with_partials(engine: Answer) -> Answer:
    """Return an engine that sends every output twice: first as a partial one."""

    def answer(prompts: Iterator[Prompt]) -> Iterator[Output]:
        for output in engine(prompts):
            if not output.partial:
                yield replace(output, partial=True)
            yield output

    return answer


def _problem(value: Any) -> str:
    """Return the reason why a value cannot be sent to the engine, or an empty text."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if kind is not None and type(value).__module__ == "numpy":
        return "" if kind in _NUMBERS else f"an array of {value.dtype}: only booleans and numbers are possible"
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        return f"a {name}, which is neither a numpy array nor plain data: {error}"
    return ""


def _check_views(processor: IOProcessor[Any, Any], result: Result) -> None:
    for part in shown(getattr(processor, "views", ()), result.data):
        if not part.fits:
            raise ConformanceError(f"a view promises {part.form}, but the result has {json.dumps(part.items)[:200]}")


def _check_result(result: Result, sink: FolderSink) -> None:
    try:
        json.dumps(result.data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConformanceError(f"the result is not JSON: {error}") from error
    said = "".join(sink.said)
    if said and not (result.text or "").startswith(said):
        raise ConformanceError(f"the text sent with `say`, {said!r}, is not the beginning of the result's text")
