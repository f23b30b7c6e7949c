"""The main loop of an IO process: one job at a time, both halves of its processor."""

from __future__ import annotations

import base64
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from contextvars import copy_context
from itertools import islice
from pathlib import Path
from typing import Any

import structlog

from penstock.errors import PenstockError
from penstock.functions.wire import Closed, Wire
from penstock.intake.local_media import LocalMedia, safe_name
from penstock.models import Model
from penstock.observation.listening import hear_prints, listening
from penstock.processors.base import IOProcessor, Output, Prepared, Prompt
from penstock.processors.decoding import enable
from penstock.processors.notes import noting
from penstock.workers.io import reports, sandbox
from penstock.workers.io.ends import end_to_worker
from penstock.workers.job_log import LineFile
from penstock.workers.processing import Files, checked_result, first_half, with_notes, work_from_json
from penstock.workers.software import loaded_software

#: Bytes of growth after a job from which unused memory is returned to the system.
WORTH_TRIMMING_BYTES = 64 * 2**20

log = structlog.get_logger(__name__)


class JobStopped(Exception):
    """The worker has stopped this job."""


class IOWorker:
    """Serves the worker at the other end of a socket until the socket closes."""

    def __init__(
        self, descriptor: int, model: Model, load: Callable[[], IOProcessor[Any, Any]], memory_bytes: int, *,
        loaded: bool,
    ) -> None:  # fmt: skip
        """Take over the socket of a confined process; `load` returns the model's processor, which may be `loaded`."""
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()  # without this all forks would draw the same numbers
        enable()
        self._wire = end_to_worker(descriptor, memory_bytes)
        #: All open conversations, including the running job's.
        self._conversations = {self._wire}
        os.register_at_fork(after_in_child=self._hang_up)  # else an open socket in a child hides this process's end
        self._model = model
        self._load = load
        self._loaded = loaded
        self._memory_bytes = memory_bytes
        self._fresh_bytes = sandbox.private_bytes()
        #: Descriptor of the memory for lines; None before the first job with lines.
        self._lines: int | None = None

    def work(self) -> None:
        """Answer requests until the worker closes the connection."""
        try:
            while True:
                message = self._wire.receive()
                self._take_lines(message["descriptor"])
                lines = self._lines if message["lines"] else None
                with structlog.contextvars.bound_contextvars(**message["log"]):
                    self._do_heard(message, lines)
                    del message  # else its arrays would live until the next job
                    # All lines are written by now: the worker reads them after this message.
                    self._wire.send("idle", grown_bytes=self._grown_bytes())
        except Closed:
            return

    def _take_lines(self, descriptor: int | None) -> None:
        """Replace the memory for lines, for this job and later ones, if the message brought a descriptor."""
        if descriptor is not None:
            if self._lines is not None:
                os.close(self._lines)
            self._lines = descriptor

    def _do_heard(self, message: Mapping[str, Any], lines: int | None) -> None:
        """Answer a request as `_do`, and write this context's log lines and prints into the worker's memory as well."""
        hear_prints()
        with ExitStack() as afterwards:
            file = None if lines is None else afterwards.enter_context(closing(LineFile(lines)))
            with listening(file):
                self._do(message)

    def _hang_up(self) -> None:
        """Close the conversations in a child that a processor forked: they belong to this process."""
        for wire in self._conversations:
            wire.close()

    def _do(self, message: Mapping[str, Any]) -> None:
        """Answer a request, then clean up: the worker shuts the prompts' socket only after it received the end."""
        notes: list[str] = []
        with ExitStack() as afterwards, noting(notes):
            try:
                self._run(message, afterwards, notes)
            except (Closed, JobStopped):
                return  # if the worker has ended, no further message arrives
            except BaseException as error:
                self._report(self._wire, error)

    def _run(self, message: Mapping[str, Any], afterwards: ExitStack, notes: list[str]) -> None:
        processor, work = self._load(), work_from_json(self._model, message, message["value"])
        _keep_temporary_files_in(work.folder)
        if not self._loaded:
            self._loaded = True
            self._wire.send("loaded")
        media = RemoteMedia(self._wire)
        files = Files(work.media, self._found, media)
        prepared = first_half(processor, work, files)
        left = self._announce(prepared, early=not media.waits, fills=files.any_partial)
        if left is not None:
            if files.any_partial:
                media.go_on(self._converse(afterwards))
            self._begin_to_feed(left, afterwards)
        result = processor.post_process(self._outputs(), prepared.context, RemoteSink(self._wire, work.folder))
        result = checked_result(result.text, with_notes(result.data, notes))
        self._wire.send("result", text=result.text, data=result.data, software=loaded_software())

    def _announce(self, prepared: Prepared[Any], *, early: bool, fills: bool) -> Iterator[Prompt] | None:
        """Send the plan of the first half; return the prompts, or None where the only one went with the plan.

        No prompt is drawn unless it may be so `early`. `fills`: further ranges of media may be asked for.
        """
        plan = {name: getattr(prepared, name) for name in ("count", "cost", "unit", "done", "steps", "repeatable")}
        work = prepared.division
        if work is not None:
            plan["division"] = [work.digest, [list(unit) for unit in work.units], dict(work.findings)]
        prompts, first = prepared.prompts, []
        if prepared.count == 1 and early:
            first = list(islice(prompts, 2))
            if len(first) < 2:
                _close(prompts)
                data, cost = (first[0].data, first[0].cost) if first else ({}, None)
                self._wire.send("prepared", data, only=[cost], **plan)
                return None
        self._wire.send("prepared", **plan, fills=fills)
        return _again(first, prompts)

    def _begin_to_feed(self, made: Iterator[Prompt], afterwards: ExitStack) -> None:
        """Send prompts on a socket of their own, from a thread that ends `afterwards`."""
        prompts = self._converse(afterwards)
        # In this context, so that the lines of the prompts have the ids of the job and go to its file.
        feeding = threading.Thread(target=copy_context().run, args=(self._feed, prompts, made), name="prompts")
        feeding.start()
        afterwards.callback(feeding.join)

    def _converse(self, afterwards: ExitStack) -> Wire:
        """Return the socket of a further conversation, which the worker sends now; it is closed `afterwards`."""
        descriptor = self._wire.receive()["descriptor"]
        if descriptor is None:
            raise JobStopped
        wire = end_to_worker(descriptor, self._memory_bytes)
        self._conversations.add(wire)
        afterwards.callback(self._conversations.discard, wire)
        afterwards.callback(wire.close)
        return wire

    def _feed(self, wire: Wire, prompts: Iterator[Prompt]) -> None:
        """Send a prompt for each request until the worker closes the connection."""
        try:
            while True:
                wire.receive()
                try:
                    self._send_next(wire, prompts)
                except Closed:
                    raise
                except BaseException as error:
                    self._report(wire, error)
        except Closed:
            _close(prompts)

    def _send_next(self, wire: Wire, prompts: Iterator[Prompt]) -> None:
        prompt = next(prompts, None)
        if prompt is None:
            wire.send("end")
        else:
            wire.send("prompt", prompt.data, cost=prompt.cost)

    def _outputs(self) -> Iterator[Output]:
        while True:
            self._wire.send("next")
            message = self._wire.receive()
            match message:
                case {"kind": "output", "value": data, "partial": partial}:
                    yield Output(data, partial)
                case {"kind": "end"}:
                    return
                case _:
                    raise JobStopped

    def _found(self, prefix: str) -> Mapping[str, Path]:
        files = ask(self._wire, "found", "checkpoints", prefix=prefix)["files"]
        return {name: Path(path) for name, path in files.items()}

    def _report(self, wire: Wire, error: BaseException) -> None:
        if not isinstance(error, PenstockError):
            log.exception("processor.failed")
        elif error.__cause__ is not None:
            log.info("processor.rejected", code=error.code, detail=error.detail, exc_info=error.__cause__)
        wire.send("failed", **reports.to_json(error, self._memory_bytes))

    def _grown_bytes(self) -> int:
        grown = sandbox.private_bytes() - self._fresh_bytes
        if grown < WORTH_TRIMMING_BYTES:
            return grown
        sandbox.trim()
        return sandbox.private_bytes() - self._fresh_bytes


class RemoteMedia:
    """The requests of a job in an IO process for media: the worker fetches them. Safe to use from several threads."""

    def __init__(self, wire: Wire) -> None:
        """Ask on the job's own connection, until `go_on`."""
        self._wire = wire
        self._asking = threading.Lock()
        #: True if some ranges may come after the first half, so that no prompt can be drawn in it.
        self.waits = False

    def go_on(self, wire: Wire) -> None:
        """Ask for further ranges on a connection that carries nothing else."""
        self._wire = wire

    def fetch(self, reference: str, *, by_range: bool) -> LocalMedia:
        """Have the worker fetch a file; only in the first half. Raises the error of a file that cannot be had."""
        with self._asking:
            answer = ask(self._wire, "fetched", "fetch", reference=reference, by_range=by_range)
        if (problem := answer.get("problem")) is not None:
            raise reports.from_json(problem)
        return LocalMedia(Path(answer["path"]), answer["etag"], answer["partial"])

    def fill(self, reference: str, ranges: Sequence[tuple[int, int]], *, later: bool) -> None:
        """Have the worker fetch ranges of a partial file."""
        self.waits |= later
        wanted = [list(each) for each in ranges]
        with self._asking:
            ask(self._wire, "filled", "fill", reference=reference, ranges=wanted, later=later)


class RemoteSink:
    """The sink of a job in an IO process: files lie in the job's folder already, text and previews are sent."""

    def __init__(self, wire: Wire, folder: Path) -> None:
        self._wire = wire
        self._folder = folder

    def path(self, name: str) -> Path:
        """Return a path in the scratch folder to write to."""
        return self._folder / safe_name(name)

    def add(self, name: str, path: Path, *, media_type: str) -> None:
        """Report a finished file to the worker."""
        self._wire.send("artifact", name=name, path=str(path), media_type=media_type)

    def say(self, text: str) -> None:
        """Stream a further part of the result's text."""
        self._wire.send("say", text=text)

    def show(self, name: str, picture: bytes, *, media_type: str) -> None:
        """Show an image of an unfinished artifact."""
        said = base64.b64encode(picture).decode()
        self._wire.send("show", name=name, picture=said, media_type=media_type)

    def checkpoint(self, name: str, path: Path) -> None:
        """Have the worker save a file as a checkpoint."""
        ask(self._wire, "saved", "checkpoint", name=name, path=str(path))


def _keep_temporary_files_in(folder: Path) -> None:
    """Have Python and C libraries make temporary files in a job's folder: no other is writable, and it is removed."""
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


def ask(wire: Wire, expected: str, kind: str, **fields: Any) -> dict[str, Any]:
    """Send the worker a request about the job and return its answer; raise `JobStopped` if the job was stopped."""
    wire.send(kind, **fields)
    message = wire.receive()
    if message["kind"] != expected:
        raise JobStopped
    return message


def _again(first: list[Prompt], others: Iterator[Prompt]) -> Iterator[Prompt]:
    """Yield prompts that were drawn already, then the others, which are closed at the end."""
    try:
        yield from first
        yield from others
    finally:
        _close(others)


def _close(prompts: Iterator[Prompt]) -> None:
    close = getattr(prompts, "close", None)
    try:
        if close is not None:
            close()
    except Exception:
        log.exception("processor.prompts_not_closed")
