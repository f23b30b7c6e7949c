"""The library: models of the catalogue run in this process, by the same processors and engine as in a worker.

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

from penstock.config import Settings, load_settings
from penstock.errors import Canceled, InvalidInput, InvalidRequest, MediaNotFound, MediaRefused, MediaTooLarge
from penstock.installation import Installation, processing_here
from penstock.jobs import Phase, Progress
from penstock.log import configure
from penstock.models import CatalogueEntry, media_references
from penstock.params import is_file, is_reference
from penstock.processors.base import Output
from penstock.reports import Issue
from penstock.storage.media import LocalMedia
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import FACTORIES
from penstock.workers.processing import Processed, Session, Work
from penstock.workers.warmup import Warmth, warm

_SURROGATE = re.compile("[\ud800-\udfff]")

#: Gets each further piece of a result's text.
Say = Callable[[str], None]
#: Gets where a run stands.
OnProgress = Callable[[Phase, Progress], None]


@dataclass(frozen=True, slots=True)
class File:
    """An artifact of a result."""

    path: Path
    media_type: str

    @property
    def size_bytes(self) -> int:
        """How large the file is."""
        return self.path.stat().st_size


@dataclass(frozen=True, slots=True)
class Result:
    """What a model answered: text, JSON-ready data, and files by name; each may be missing."""

    text: str | None
    data: Mapping[str, Any] | None
    artifacts: Mapping[str, File]


class Stream(Iterator[str]):
    """A result's text, piece by piece as it is made, and the whole result afterwards.

    Leaving the `with` block early ends the run.
    """

    def __init__(self, run: Callable[[Say, Callable[[], None]], Result]) -> None:
        """Begin to run."""
        self._pieces: SimpleQueue[str | None] = SimpleQueue()
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(run,), name="penstock-stream", daemon=True)
        self._thread.start()

    def __next__(self) -> str:
        """Return the next piece; raise what the run raised."""
        piece = self._pieces.get()
        if piece is None:
            self._pieces.put(None)
            if self._error is not None and not self._ended.is_set():
                raise self._error
            raise StopIteration
        return piece

    @property
    def result(self) -> Result:
        """The whole result; waits for it."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101  (the thread leaves one or the other)
        return self._result

    def close(self) -> None:
        """End the run, if it is still going."""
        self._ended.set()
        self._thread.join()

    def __enter__(self) -> Stream:
        """Return the stream."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the run, if it is still going."""
        self.close()

    def _work(self, run: Callable[[Say, Callable[[], None]], Result]) -> None:
        try:
            self._result = run(self._pieces.put, self._check)
        except BaseException as error:  # raised again where the pieces are taken
            self._error = error
        finally:
            self._pieces.put(None)

    def _check(self) -> None:
        if self._ended.is_set():
            raise Canceled


@dataclass(frozen=True, slots=True)
class _Watch:
    """Who is told of a run, and who may end it."""

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
        """Read the catalogue: the shipped one, those of the settings, and then the files named here.

        Without `settings` they are read as everywhere: `PENSTOCK_*` and `penstock.toml`. Processors work in the thread
        that calls `run`, or `isolated` in processes of their own, as a worker's do, which log from `log_level` on.
        """
        if not structlog.is_configured():
            configure("warning")  # else structlog writes everything to standard output
        settings = settings or load_settings()
        with ExitStack() as stack:
            self._scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
            self._processing = processing_here(settings, isolated=isolated, log_level=log_level)
            stack.callback(self._processing.close)
            self.installation = Installation(settings, self._processing, catalogue=catalogue)
            self._engine = BatchingEngine(FACTORIES, memory_bytes=settings.engine_memory_bytes)
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

        The input's fields are given by name, or as a whole in `input`; media are paths of local files. Artifacts lie in
        `out`, which is made and whose files of the same names are replaced; without one, in a folder that is removed
        when the engine is closed. `say` and `check` are called in this thread; `check` may raise to end the run.

        Raises `UnknownModel`, `ModelUnavailable`, an `InputError` for what is wrong with the input, or another
        `PenstockError`.
        """
        record, entry = self.installation.servable(model)
        document = _plain({**(input or {}), **fields})
        folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="result-", dir=self._scratch))
        # Beside the result, so that large files need not be copied from one disk to another.
        with _beside(folder) as scratch:
            media = _media(entry, document, Path(scratch) / "media")
            work = Work(record, document, media, Path(scratch) / "artifacts")
            processed = self._process(work, _Watch(say, on_progress, check))
            return Result(processed.result.text, processed.result.data, _publish(processed, folder))

    def stream(self, model: str, /, **arguments: Any) -> Stream:
        """Begin to run a model and return its text piece by piece; arguments as `run` takes them."""
        return Stream(lambda say, check: self.run(model, say=say, check=check, **arguments))

    def warm_up(self, model: str) -> Warmth:
        """Run the processor's dummy request through the model; return how long it took and how large batches may be."""
        record, _ = self.installation.servable(model)
        folder = Path(tempfile.mkdtemp(prefix="warm-up-", dir=self._scratch)) / "dummy"
        return warm(record, self._processing, self._engine, folder, check=_Watch().check)

    def close(self) -> None:
        """Free the device and remove the files of results that had no folder."""
        self._open.close()

    def __enter__(self) -> Engine:
        """Return the engine."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        """Close the engine."""
        self.close()

    def _process(self, work: Work, watch: _Watch) -> Processed:
        watch.on_progress(Phase.PREPROCESSING, Progress())
        with self._processing.open(work, check=watch.check, say=watch.say) as session:
            # After the input was found good: it takes a minute where the model is large.
            watch.on_progress(Phase.LOADING, Progress())
            self._engine.load(work.model, check=watch.check)
            count = _Count(session, watch)
            outputs = self._engine.run(
                work.model, session.prompts, check=count.check, cost=session.cost, on_batch=count.batched
            )
            with closing(outputs):
                return session.finish(count.outputs(outputs))


class _Count:
    """Counts a run: by its outputs, and between them by the steps that the device took."""

    def __init__(self, session: Session, watch: _Watch) -> None:
        self._steps, self._watch = session.steps, watch
        total = None if session.count is None else session.count * session.steps
        self._progress = Progress(0, total, session.unit)
        #: In prompts. The engine's thread adds to it, this one looks.
        self._further = 0.0

    def batched(self, _prompts: int, further: float) -> None:
        """Count what a batch did."""
        self._further += further

    def check(self) -> None:
        """Tell what was done meanwhile; raise what ends the run."""
        self._watch.check()
        if self._steps > 1:
            self._tell(int(self._further * self._steps + 1e-6))  # a twentieth, added twenty times, is one

    def outputs(self, outputs: Iterator[Output]) -> Iterator[Output]:
        """Pass outputs on and count them."""
        done = 0
        self._watch.on_progress(Phase.INFERRING, self._progress)
        for output in outputs:
            if not output.partial:
                done += 1
                self._tell(done * self._steps)
            yield output
        self._watch.on_progress(Phase.POSTPROCESSING, self._progress)

    def _tell(self, done: int) -> None:
        if done > self._progress.done:
            self._progress = replace(self._progress, done=done)
            self._watch.on_progress(Phase.INFERRING, self._progress)


def _plain(value: Any) -> Any:
    """Return JSON-ready data: paths become texts, tuples lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str) and _SURROGATE.search(value):
        raise InvalidInput("a text of the input is not Unicode: it has half of a surrogate pair")
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _media(entry: CatalogueEntry, document: Mapping[str, Any], folder: Path) -> dict[str, LocalMedia]:
    """Return the local file of each reference: a link, alone in its folder, so that no file beside it is read."""
    found = list(media_references(entry.input_schema, document))
    limit = entry.limits.max_items
    if limit is not None and len(found) > limit:
        raise InvalidInput(f"a job of {entry.name} may name {limit} media, this one names {len(found)}")
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
    """Return the file that a reference names here, within the model's limit."""
    at = [Issue(f"/input{place}", reference)]
    if is_reference(reference):
        raise MediaRefused("only local files are taken here; a service fetches others: `penstock submit`", errors=at)
    path = Path(reference).expanduser().resolve()
    if not is_file(str(path)):
        raise MediaNotFound("there is no such file", errors=at)
    size_bytes, limit = path.stat().st_size, entry.limits.max_bytes
    if limit is not None and size_bytes > limit:
        raise MediaTooLarge(f"{entry.name} takes {limit} bytes, the file has {size_bytes}", errors=at)
    return path


def _beside(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """Make a scratch folder in the nearest folder that is there already: a run that fails makes no other.

    Raises `InvalidRequest` where that cannot be, nor the folder later on.
    """
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    try:
        return tempfile.TemporaryDirectory(prefix=".penstock-", dir=there)
    except OSError as error:
        raise InvalidRequest(f"cannot make files in {folder}: {error.strerror}") from error


def _publish(processed: Processed, folder: Path) -> dict[str, File]:
    """Move the finished files into their folder."""
    if processed.files:
        folder.mkdir(parents=True, exist_ok=True)
    artifacts: dict[str, File] = {}
    for name, finished in processed.files.items():
        shutil.move(finished.path, folder / name)
        artifacts[name] = File(folder / name, finished.media_type)
    return artifacts
