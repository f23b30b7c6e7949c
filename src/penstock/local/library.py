"""The library: runs models of the catalogue in this process, with the same processors and engine as a worker.

with penstock.Engine() as engine:
    result = engine.run("csmask", scene="scene.tif", out="result")
    print(result.data, result.artifacts["classes.tif"].path)
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any

import structlog

from penstock.client.local_files import with_beside
from penstock.config import Settings, load_settings
from penstock.errors import Canceled, InvalidInput, InvalidRequest, Issue, MediaNotFound, MediaRefused, MediaTooLarge
from penstock.intake.local_media import LocalMedia
from penstock.jobs import Phase, Progress
from penstock.local.installation import Installation, processing_here
from penstock.local.precision import Difference, compare
from penstock.media_types import is_reference
from penstock.models import CatalogueEntry, media_references
from penstock.observation.log import configure
from penstock.processors.base import Output
from penstock.requests import is_file
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.processing import Processed, Session, Work
from penstock.workers.warmup import WarmUpReport, dummy_of, warm

_SURROGATE = re.compile("[\ud800-\udfff]")

#: Receives each further part of a result's text.
Say = Callable[[str], None]
#: Receives the phase and progress of a run.
OnProgress = Callable[[Phase, Progress], None]


@dataclass(frozen=True, slots=True)
class File:
    """An artifact of a result."""

    path: Path
    media_type: str

    @property
    def size_bytes(self) -> int:
        """The size of the file in bytes."""
        return self.path.stat().st_size


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a model: text, JSON-ready data, and files by name; each may be missing."""

    text: str | None
    data: Mapping[str, Any] | None
    artifacts: Mapping[str, File]


class Stream(Iterator[str]):
    """A result's text in parts, and the whole result afterwards.

    Leaving the `with` block early ends the run.
    """

    def __init__(self, run: Callable[[Say, Callable[[], None]], Result]) -> None:
        """Start the run."""
        self._pieces: SimpleQueue[str | None] = SimpleQueue()
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(run,), name="penstock-stream", daemon=True)
        self._thread.start()

    def __next__(self) -> str:
        """Return the next part; raise the run's error."""
        piece = self._pieces.get()
        if piece is None:
            self._pieces.put(None)
            if self._error is not None and not self._ended.is_set():
                raise self._error
            raise StopIteration
        return piece

    @property
    def result(self) -> Result:
        """The whole result; waits until the run has ended."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101  (the thread sets one of the two)
        return self._result

    def close(self) -> None:
        """End the run, if it has not ended."""
        self._ended.set()
        self._thread.join()

    def __enter__(self) -> Stream:
        """Return the stream."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the run, if it has not ended."""
        self.close()

    def _work(self, run: Callable[[Say, Callable[[], None]], Result]) -> None:
        try:
            self._result = run(self._pieces.put, self._check)
        except BaseException as error:  # raised again in `__next__`
            self._error = error
        finally:
            self._pieces.put(None)

    def _check(self) -> None:
        if self._ended.is_set():
            raise Canceled


@dataclass(frozen=True, slots=True)
class _Callbacks:
    """The callbacks of a run: for text, for progress, and to end it."""

    say: Say = lambda _: None
    on_progress: OnProgress = lambda _phase, _progress: None
    check: Callable[[], None] = lambda: None


class Engine:
    """Runs models of the catalogue in this process. Loaded models stay loaded until `close`.

    Safe to use from many threads: their prompts share batches.
    """

    def __init__(
        self, *, catalogue: Sequence[str | Path] = (), settings: Settings | None = None, isolated: bool = False,
        log_level: str = "error",
    ) -> None:  # fmt: skip
        """Read the shipped catalogue, then the catalogues of the settings, then `catalogue`.

        Without `settings`, they are read from `PENSTOCK_*` and `penstock.toml`. Processors work in the thread that
        calls `run`; with `isolated` they work in separate processes, as in a worker, which log from `log_level` on.
        """
        if not structlog.is_configured():
            configure("warning", as_text=True)  # else structlog writes everything to standard output
        settings = settings or load_settings()
        with ExitStack() as stack:
            self._scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
            self._processing = processing_here(settings, isolated=isolated, log_level=log_level)
            stack.callback(self._processing.close)
            self.installation = Installation(settings, self._processing, catalogue=catalogue)
            self._engine = BatchingEngine(Runners.installed(), memory_bytes=settings.engine_memory_bytes)
            stack.callback(self._engine.close)
            self._open = stack.pop_all()

    def run(
        self,
        model: str,
        /,
        *,
        out: str | Path | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002  (the API's word)
        say: Say = lambda _: None,
        on_progress: OnProgress = lambda _phase, _progress: None,
        check: Callable[[], None] = lambda: None,
        **fields: Any,
    ) -> Result:
        """Run a model and return its result.

        Input fields are given by name, or together in `input`; media are paths of local files. Artifacts are written to
        `out`, which is created if missing, and replace files of the same names; without `out`, to a folder that is
        removed when the engine is closed. `say` and `check` are called in this thread; `check` may raise to stop.

        Raises `UnknownModel`, `ModelUnavailable`, an `InputError` for invalid input, or another `PenstockError`.
        """
        record, entry = self.installation.servable(model)
        document = with_beside(_plain({**(input or {}), **fields}), entry.input_schema)
        folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="result-", dir=self._scratch))
        # The scratch folder is beside the result, so that large files are moved on one disk.
        with _beside(folder) as scratch:
            media = _media(entry, document, Path(scratch) / "media")
            work = Work(record, document, media, Path(scratch) / "artifacts")
            processed = self._process(work, _Callbacks(say, on_progress, check))
            return Result(processed.result.text, processed.result.data, _publish(processed, folder))

    def stream(self, model: str, /, **arguments: Any) -> Stream:
        """Start to run a model and return its text in parts; the arguments are those of `run`."""
        return Stream(lambda say, check: self.run(model, say=say, check=check, **arguments))

    def warm_up(self, model: str) -> WarmUpReport:
        """Run the processor's dummy request through the model; return the durations and the largest batch."""
        record, _ = self.installation.servable(model)
        folder = Path(tempfile.mkdtemp(prefix="warm-up-", dir=self._scratch)) / "dummy"
        return warm(record, self._processing, self._engine, folder, check=_Callbacks().check)

    def compare(self, model: str, document: Mapping[str, Any] | None = None, *, sample: str = "noise") -> Difference:
        """Run a request in the record's number type and in float32; return how the outputs differ.

        Without a document, run the dummy request. `sample` names the input in the report. Raises the errors of `run`.
        """
        record, entry = self.installation.servable(model)
        with tempfile.TemporaryDirectory(prefix="compare-", dir=self._scratch) as scratch:
            folder = Path(scratch) / "request"
            if document is None:
                work = dummy_of(record, self._processing, folder)
            else:
                work = Work(record, plain := _plain(document), _media(entry, plain, folder / "media"), folder / "files")
            return compare(work, self._processing, self._engine, sample=sample, check=_Callbacks().check)

    def close(self) -> None:
        """Free the device, and remove results without a folder of their own."""
        self._open.close()

    def __enter__(self) -> Engine:
        """Return the engine."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        """Close the engine."""
        self.close()

    def _process(self, work: Work, callbacks: _Callbacks) -> Processed:
        callbacks.on_progress(Phase.PREPROCESSING, Progress())
        with self._processing.open(work, check=callbacks.check, say=callbacks.say) as session:
            # Loading follows the check of the input: it takes a minute for a large model.
            callbacks.on_progress(Phase.LOADING, Progress())
            self._engine.load(work.model, check=callbacks.check)
            count = _Count(session, callbacks)
            outputs = self._engine.run(
                work.model, session.prepared.prompts, check=count.check, cost=session.prepared.cost,
                on_batch=count.batched, ready=session.ready,
            )  # fmt: skip
            with closing(outputs):
                return session.finish(count.outputs(outputs))


class _Count:
    """Counts the progress of a run: by outputs, and between them by the device's steps."""

    def __init__(self, session: Session, callbacks: _Callbacks) -> None:
        self._steps, self._callbacks = session.prepared.steps, callbacks
        total = None if session.prepared.count is None else session.prepared.count * session.prepared.steps
        self._progress = Progress(0, total, session.prepared.unit)
        #: Progress in prompts. The engine's thread adds to it, this thread reads it.
        self._further = 0.0

    def batched(self, _prompts: int, further: float) -> None:
        """Add the progress of a batch."""
        self._further += further

    def check(self) -> None:
        """Report the progress; raise the error that ends the run."""
        self._callbacks.check()
        if self._steps > 1:
            self._tell(int(self._further * self._steps + 1e-6))  # a twentieth, added twenty times, must count as one

    def outputs(self, outputs: Iterator[Output]) -> Iterator[Output]:
        """Yield outputs and count them."""
        done = 0
        self._callbacks.on_progress(Phase.INFERRING, self._progress)
        for output in outputs:
            if not output.partial:
                done += 1
                self._tell(done * self._steps)
            yield output
        self._callbacks.on_progress(Phase.POSTPROCESSING, self._progress)

    def _tell(self, done: int) -> None:
        if done > self._progress.done:
            self._progress = replace(self._progress, done=done)
            self._callbacks.on_progress(Phase.INFERRING, self._progress)


def _plain(value: Any) -> Any:
    """Return JSON-ready data: paths become texts, tuples become lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str) and _SURROGATE.search(value):
        raise InvalidInput("a text of the input is not valid Unicode: it has a lone surrogate")
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _media(entry: CatalogueEntry, document: Mapping[str, Any], folder: Path) -> dict[str, LocalMedia]:
    """Return the local file of each reference: a link, alone in its folder, so that no other file can be read."""
    found = list(media_references(entry.input_schema, document))
    limit = entry.limits.max_items
    if limit is not None and len(found) > limit:
        raise InvalidInput(f"a job of {entry.name} may name {limit} media; this job names {len(found)}")
    media: dict[str, LocalMedia] = {}
    for number, (place, reference) in enumerate(found):
        if reference not in media:
            path = _local(entry, place, reference)
            link = folder / str(number) / f"media{Path(reference).suffix.lower()}"
            link.parent.mkdir(parents=True)
            link.symlink_to(path)
            media[reference] = LocalMedia(link)
    return media


def _local(entry: CatalogueEntry, place: str, reference: str) -> Path:
    """Return the local file of a reference, within the model's limit."""
    at = [Issue(f"/input{place}", reference)]
    if is_reference(reference):
        raise MediaRefused("only local files are allowed here; a service fetches others: `penstock submit`", errors=at)
    path = Path(reference).expanduser().resolve()
    if not is_file(str(path)):
        raise MediaNotFound("there is no such file", errors=at)
    size_bytes, limit = path.stat().st_size, entry.limits.max_bytes
    if limit is not None and size_bytes > limit:
        raise MediaTooLarge(f"{entry.name} accepts {limit} bytes; the file has {size_bytes}", errors=at)
    return path


def _beside(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """Create a scratch folder in the nearest existing folder: a failed run leaves no other folder behind.

    Raises `InvalidRequest` if this is not possible.
    """
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    try:
        return tempfile.TemporaryDirectory(prefix=".penstock-", dir=there)
    except OSError as error:
        raise InvalidRequest(f"cannot write files in {folder}: {error.strerror}") from error


def _publish(processed: Processed, folder: Path) -> dict[str, File]:
    """Move the finished files into the result's folder."""
    if processed.files:
        folder.mkdir(parents=True, exist_ok=True)
    artifacts: dict[str, File] = {}
    for name, finished in processed.files.items():
        shutil.move(finished.path, folder / name)
        artifacts[name] = File(folder / name, finished.media_type)
    return artifacts
