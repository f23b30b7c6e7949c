"""The worker's side of a job in an IO process: messages about the job and about its prompts, checked before use."""

from __future__ import annotations

import base64
import binascii
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from penstock.errors import InputError, Interruption, PenstockError, ProcessorFailed
from penstock.functions.wire import Closed, Tick, Unsendable, Wire, WireError
from penstock.processors.base import MAX_FINDING_CHARS, MAX_FINDINGS, Divisible, Output, Prepared, Prompt, Value
from penstock.workers.artifacts import Sink
from penstock.workers.checkpoints import Checkpoints
from penstock.workers.engine.base import Check
from penstock.workers.io import reports
from penstock.workers.io.ends import failure
from penstock.workers.io.forks import IOProcess, Template
from penstock.workers.io.media_answers import fill_asked
from penstock.workers.job_media import MediaRequests
from penstock.workers.processing import Processed, checked_result
from penstock.workers.software import checked_software

T = TypeVar("T")

#: Seconds that a process has to clean up after a job; then it is ended.
SETTLE_S = 2.0
#: Characters of the unit of progress.
_MAX_UNIT = 40
#: Characters of the digest of a division.
_MAX_DIGEST = 100
#: Artifacts of one job.
_MAX_ARTIFACTS = 1000

#: Kinds of messages after which a process cleans up and reports that it is idle.
_FINAL_KINDS = frozenset({"result", "failed"})

LOADING, READING, WRITING = "loading the processor", "reading the input", "making the result"


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """The limits of a wait for a process: its longest silence in seconds, and a check that may end the wait sooner."""

    timeout_s: float
    check: Check
    #: The limit's name, for the error.
    name: str = "io_timeout_s"
    #: Returns True while the process may be waiting for this worker: such silence does not count.
    excused: Callable[[], bool] = _never

    def tick(self) -> Tick:
        """Return the tick of one wait that begins now."""
        ends = time.monotonic() + self.timeout_s

        def tick() -> None:
            nonlocal ends
            self.check()
            if self.excused():
                ends = time.monotonic() + self.timeout_s
            elif time.monotonic() > ends:
                raise ProcessorFailed(f"the model's processor did not respond for {self.timeout_s:g} s ({self.name})")

        return tick


def send_request(
    process: IOProcess, limits: WaitLimits, kind: str, values: Mapping[str, Value], *, descriptor: int | None = None,
    **fields: Any,
) -> None:  # fmt: skip
    """Send a process a request; its log lines carry the job's ids as the worker's own do."""
    try:
        process.wire.send(kind, values, tick=limits.tick(), descriptor=descriptor, log=_log_ids(), **fields)
    except Closed:
        raise process.death(LOADING) from None
    except Unsendable as error:
        raise failure(error) from error


def ask_template(template: Template, limits: WaitLimits, kind: str, **fields: Any) -> dict[str, Any]:
    """Return a template's answer; raise the error that it reports, or the cause of its end."""
    try:
        template.wire.send(kind, tick=limits.tick(), log=_log_ids(), **fields)
        message = template.wire.receive(tick=limits.tick())
    except Closed:
        raise template.death(LOADING) from None
    except WireError as error:
        raise failure(error) from error
    if message["kind"] == "failed":
        raise reports.from_json(message)
    return message


def _log_ids() -> dict[str, str]:
    return {name: str(value) for name, value in structlog.contextvars.get_contextvars().items()}


def receive(process: IOProcess, wire: Wire, limits: WaitLimits, doing: str) -> dict[str, Any]:
    """Return the next message; raise the error that the process reports, or the cause of its end."""
    try:
        message = wire.receive(tick=limits.tick())
    except Closed:
        raise process.death(doing) from None
    except ProcessorFailed:  # the process hangs: it may never finish
        process.end()
        raise
    except WireError as error:
        process.end()
        raise failure(error) from error
    kind = message["kind"]
    if wire is process.wire and kind in _FINAL_KINDS:
        process.settling = True
    if kind == "failed":
        raise reports.from_json(message)
    return message


def receive_plan(
    process: IOProcess, limits: WaitLimits, checkpoints: Checkpoints, requests: MediaRequests
) -> dict[str, Any]:
    """Return the plan of the first half; answer the process's requests for checkpoints and media before."""
    while True:
        message = receive(process, process.wire, limits, READING)
        match message:
            case {"kind": "checkpoints", "prefix": str(prefix)}:
                found = do_for_process(process, limits, lambda: checkpoints.found(prefix))
                send_answer(process, limits, READING, "found", files={name: str(path) for name, path in found.items()})
            case {"kind": "fill"} if (fill := fill_asked(requests, message)) is not None:
                do_for_process(process, limits, fill)
                send_answer(process, limits, READING, "filled")
            case {"kind": "fetch", "reference": str(reference), "by_range": bool(by_range)}:
                answer = do_for_process(process, limits, partial(_fetched, requests, reference, by_range))
                send_answer(process, limits, READING, "fetched", **answer)
            case _:
                return message


def _fetched(requests: MediaRequests, reference: str, by_range: bool) -> dict[str, Any]:
    """Return the answer to a process's request for a file, or the error of one that cannot be had.

    The processor decides what such a file means: the end of the job, or one date less.
    """
    try:
        file = requests.fetch(reference, by_range=by_range)
    except InputError as error:
        if error.retryable:
            raise
        return {"problem": reports.to_json(error, 0)}
    return {"path": str(file.path), "etag": file.etag, "partial": file.partial}


def only_prompts(prepared: Mapping[str, Any]) -> list[Prompt] | None:
    """Return the prompts of a job whose only one came with the plan, or that has none; None for other jobs."""
    match prepared.get("only"):
        case None:
            return None
        case [None]:
            return []
        case [int(cost)]:
            return [Prompt(prepared["value"], cost)]
        case _:
            raise ProcessorFailed("the processor's process sent an invalid message instead of its plan")


def _division(found: Any) -> Divisible | None:
    """Return the division of a message; raise `ProcessorFailed` for anything else."""
    match found:
        case None:
            return None
        case [str(digest), list(units), dict(findings)] if (
            len(digest) <= _MAX_DIGEST
            and all(map(_is_unit, units))
            and len(findings) <= MAX_FINDINGS
            and all(map(_is_finding, findings.items()))
        ):
            return Divisible(digest, tuple((number, prompts, left) for number, prompts, left in units), findings)
        case _:
            raise ProcessorFailed("the processor's process sent an invalid division of its work")


def _is_unit(found: Any) -> bool:
    match found:
        case [int(number), int(prompts), int(left)]:
            return number >= 0 and 0 <= left <= prompts
        case _:
            return False


def _is_finding(found: tuple[str, Any]) -> bool:
    digest, text = found
    return len(digest) <= _MAX_DIGEST and isinstance(text, str) and len(text) <= MAX_FINDING_CHARS


def do_for_process(process: IOProcess, limits: WaitLimits, act: Callable[[], T]) -> T:
    """Call `act` while a process waits for its result. If `act` fails, the job fails; the process can be reused."""
    try:
        return act()
    except Interruption:
        raise
    except PenstockError:
        with suppress(Closed):  # the process has ended already
            process.wire.send("stop", tick=limits.tick())
        process.settling = True  # the job failed, the process may be usable
        raise


def send_answer(
    process: IOProcess, limits: WaitLimits, doing: str, kind: str, values: Mapping[str, Value] | None = None, *,
    descriptor: int | None = None, **fields: Any,
) -> None:  # fmt: skip
    """Send an answer to a process; raise the cause if it has ended."""
    try:
        process.wire.send(kind, values, tick=limits.tick(), descriptor=descriptor, **fields)
    except Closed:
        raise process.death(doing) from None
    except Unsendable as error:
        raise failure(error) from error


def settle(process: IOProcess) -> None:
    """Wait until the process is ready for its next job; after `SETTLE_S` it counts as unusable."""
    ends = time.monotonic() + SETTLE_S

    def tick() -> None:
        if time.monotonic() > ends:
            raise TimeoutError

    with suppress(Closed, TimeoutError, WireError):
        while (message := process.wire.receive(tick=tick))["kind"] != "idle":
            pass  # sent before the process received the stop
        match message:
            case {"grown_bytes": int(grown)}:
                process.grown_bytes, process.idle = grown, True


class RemotePrompts:
    """The prompts of a job, made in its process one ahead of the engine. One thread reads, any may close."""

    def __init__(self, process: IOProcess, wire: Wire, limits: WaitLimits) -> None:
        self._process = process
        self._wire = wire
        self._limits = limits
        self._drawing = threading.Lock()
        #: True while a prompt that was asked for has not come.
        self._asked = False
        self._closed = False

    def __iter__(self) -> Iterator[Prompt]:
        return self

    def __next__(self) -> Prompt:
        with self._drawing:
            if self._closed:
                raise StopIteration
            try:
                return self._next()
            except BaseException:
                # Closed while waiting: then the process has not ended.
                if self._closed:
                    raise StopIteration from None
                raise

    def close(self) -> None:
        """Read no more prompts."""
        self._closed = True
        self._wire.shut()
        with self._drawing:
            self._wire.close()

    def _next(self) -> Prompt:
        self._ask()
        message = receive(self._process, self._wire, self._limits, READING)
        self._asked = False
        match message:
            case {"kind": "prompt", "cost": int(cost), "value": data}:
                self._ask()  # the process makes the next prompt while the engine computes this one
                return Prompt(data, cost)
            case {"kind": "end"}:
                raise StopIteration
            case _:
                raise ProcessorFailed("the processor's process sent an invalid message instead of a prompt")

    def _ask(self) -> None:
        """Ask for a prompt unless one is still to come."""
        if self._asked:
            return
        try:
            self._wire.send("next", tick=self._limits.tick())
        except Closed:
            raise self._process.death(READING) from None
        self._asked = True


class RemoteSession:
    """A job whose first half is done, in its process: a `Session`."""

    def __init__(
        self, process: IOProcess, prompts: Iterator[Prompt], limits: WaitLimits, prepared: Mapping[str, Any],
        sink: Sink, folder: Path, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        match prepared:
            case {
                "kind": "prepared", "count": int() | None as count, "cost": int(cost), "unit": str(unit),
                "done": int(done), "steps": int(steps), "repeatable": bool(repeatable),
            }:  # fmt: skip
                self.prepared: Prepared[Any] = Prepared(
                    prompts, count, cost, None, unit[:_MAX_UNIT], done, max(1, steps), repeatable,
                    _division(prepared.get("division")),
                )  # fmt: skip
            case _:
                raise ProcessorFailed("the processor's process sent an invalid message instead of its plan")
        self._process = process
        self._limits = limits
        self._sink = sink
        #: The job's folder, not resolved now: a process may have replaced the folder by a link out of its room.
        self._folder = folder
        self._say = say

    @property
    def ready(self) -> bool:
        """See `Session.ready`."""
        return not isinstance(self.prepared.prompts, RemotePrompts)

    def finish(self, outputs: Iterator[Output]) -> Processed:
        """Answer the process's requests until it sends a result."""
        while True:
            message = receive(self._process, self._process.wire, self._limits, WRITING)
            match message:
                case {"kind": "next"}:
                    self._answer(outputs)
                case {"kind": "say", "text": str(text)}:
                    self._say(text)
                case {"kind": "show", "name": str(name), "picture": str(picture), "media_type": str(media_type)}:
                    self._sink.show(name, _bytes(picture), media_type=media_type)
                case {"kind": "checkpoint", "name": str(name), "path": str(path)}:
                    self._save(name, self._own_file(path))
                case {"kind": "artifact", "name": str(name), "path": str(path), "media_type": str(media_type)}:
                    self._add(name, path, media_type)
                case {"kind": "result", "text": text, "data": data}:
                    software = checked_software(message.get("software"))
                    return Processed(checked_result(text, data), self._sink.files, software)
                case _:
                    raise ProcessorFailed("the processor's process sent an invalid message instead of a result")

    def _add(self, name: str, path: str, media_type: str) -> None:
        if len(self._sink.files) == _MAX_ARTIFACTS:
            raise ProcessorFailed(f"the processor wrote more than {_MAX_ARTIFACTS} artifacts")
        self._sink.add(name, self._own_file(path), media_type=media_type)

    def _answer(self, outputs: Iterator[Output]) -> None:
        output = do_for_process(self._process, self._limits, lambda: next(outputs, None))
        if output is None:
            send_answer(self._process, self._limits, WRITING, "end")
        else:
            send_answer(self._process, self._limits, WRITING, "output", output.data, partial=output.partial)

    def _save(self, name: str, path: Path) -> None:
        do_for_process(self._process, self._limits, lambda: self._sink.checkpoint(name, path))
        send_answer(self._process, self._limits, WRITING, "saved")

    def _own_file(self, path_text: str) -> Path:
        """Return the path of an artifact or checkpoint; raise `ProcessorFailed` unless it is a file of the job."""
        path = Path(path_text)
        try:
            inside = path.parent.resolve().is_relative_to(self._folder)
            plain = stat.S_ISREG(os.lstat(path).st_mode)
        except (OSError, ValueError) as error:
            raise ProcessorFailed("the processor named an artifact that does not exist") from error
        if not (inside and plain):
            raise ProcessorFailed("the processor named an artifact that is not a plain file in its job's folder")
        return path


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ProcessorFailed("the processor's process sent an invalid preview") from error
