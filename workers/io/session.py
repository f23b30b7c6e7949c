"""The worker's side of a job in an IO process: the two conversations, and what is believed of them."""

from __future__ import annotations

import base64
import binascii
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from penstock.errors import Interruption, PenstockError, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.artifacts import Sink
from penstock.workers.checkpoints import Checkpoints
from penstock.workers.engine.base import Check
from penstock.workers.io import reports
from penstock.workers.io.channel import Channel, Gone, Message, Tick
from penstock.workers.io.forks import IOProcess
from penstock.workers.processing import Processed, checked_result

T = TypeVar("T")

#: What a process may take to tidy up after a job before it is ended instead.
SETTLE_S = 2.0
#: Of the word for what progress counts.
_MAX_UNIT = 40
#: Of one job.
_MAX_ARTIFACTS = 1000

#: After these a process tidies up by itself.
_LAST_WORDS = frozenset({"result", "failed", "entry", "dummy"})

LOADING, READING, WRITING = "the processor was loaded", "reading the input", "making the result"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a process may be silent, and who may end the wait sooner."""

    timeout_s: float
    check: Check

    def tick(self) -> Tick:
        """Return the tick of one wait that begins now."""
        ends = time.monotonic() + self.timeout_s

        def tick() -> None:
            self.check()
            if time.monotonic() > ends:
                raise ProcessorFailed(f"the model's processor did nothing for {self.timeout_s:g} s (io_timeout_s)")

        return tick


def tell(process: IOProcess, patience: Patience, kind: str, model: Model, **fields: Any) -> None:
    """Ask a process for something of a model; what it logs meanwhile names the job as our own lines do."""
    bound = {name: str(value) for name, value in structlog.contextvars.get_contextvars().items()}
    try:
        process.channel.send(kind, tick=patience.tick(), model=model.model_dump(mode="json"), log=bound, **fields)
    except Gone:
        raise process.death(LOADING) from None


def hear(process: IOProcess, channel: Channel, patience: Patience, doing: str) -> Message:
    """Return the next message; raise what the process reports, or why it left."""
    try:
        message = channel.receive(tick=patience.tick())
    except Gone:
        raise process.death(doing) from None
    except ProcessorFailed:  # it hangs, or sends nonsense: it may not even finish what it does
        process.end()
        raise
    if channel is process.channel and message.kind in _LAST_WORDS:
        process.settling = True
    if message.kind == "failed":
        raise reports.from_json(message.header)
    return message


def hear_plan(process: IOProcess, patience: Patience, checkpoints: Checkpoints) -> Message:
    """Return what the first half says at its end, after it was given the checkpoints that it asked for."""
    while True:
        message = hear(process, process.channel, patience, READING)
        match message.kind, message.header:
            case "checkpoints", {"prefix": str(prefix)}:
                found = for_process(process, patience, lambda: checkpoints.found(prefix))
                answer(process, patience, READING, "found", files={name: str(path) for name, path in found.items()})
            case _:
                return message


def for_process(process: IOProcess, patience: Patience, act: Callable[[], T]) -> T:
    """Do what a process waits for. If it fails, so does the job; the process is told, and is still good."""
    try:
        return act()
    except Interruption:
        raise
    except PenstockError:
        with suppress(Gone):  # then there is nobody to stop
            process.channel.send("stop", tick=patience.tick())
        process.settling = True  # the job failed, the process may still be good
        raise


def answer(process: IOProcess, patience: Patience, doing: str, kind: str, data: Any = None, **fields: Any) -> None:
    """Tell a process something in its conversation; raise why it left."""
    try:
        process.channel.send(kind, data, tick=patience.tick(), **fields)
    except Gone:
        raise process.death(doing) from None


def settle(process: IOProcess) -> None:
    """Wait until the process is ready for its next job; one that is not soon stays unfit for any."""
    ends = time.monotonic() + SETTLE_S

    def tick() -> None:
        if time.monotonic() > ends:
            raise TimeoutError

    with suppress(Gone, TimeoutError, ProcessorFailed):
        while (message := process.channel.receive(tick=tick)).kind != "idle":
            pass  # what it said before it heard that nobody wants it
        process.grown_bytes = int(message.header["grown_bytes"])
        process.idle = True


class RemotePrompts:
    """The prompts of a job, made in its process while they are drawn. One thread draws, any may close."""

    def __init__(self, process: IOProcess, channel: Channel, patience: Patience) -> None:
        self._process = process
        self._channel = channel
        self._patience = patience
        self._drawing = threading.Lock()
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
                # Closed while we waited: then it was not the process that went.
                if self._closed:
                    raise StopIteration from None
                raise

    def close(self) -> None:
        """Draw no more."""
        self._closed = True
        self._channel.shut()
        with self._drawing:
            self._channel.close()

    def _next(self) -> Prompt:
        self._ask()
        message = hear(self._process, self._channel, self._patience, READING)
        self._asked = False
        match message.kind, message.header:
            case "prompt", {"cost": int(cost)}:
                self._ask()  # the next is made while the engine takes this one
                return Prompt(message.data, cost)
            case "end", _:
                raise StopIteration
            case _:
                raise ProcessorFailed("the processor's process sent nonsense instead of a prompt")

    def _ask(self) -> None:
        if self._asked:
            return
        try:
            self._channel.send("next", tick=self._patience.tick())
        except Gone:
            raise self._process.death(READING) from None
        self._asked = True


class RemoteSession:
    """A job whose first half is done, in its process."""

    def __init__(
        self, process: IOProcess, prompts: RemotePrompts, patience: Patience, prepared: Message, sink: Sink,
        folder: Path, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        match prepared.kind, prepared.header:
            case "prepared", {
                "count": int() | None as count, "cost": int(cost), "unit": str(unit), "done": int(done),
                "steps": int(steps), "repeatable": bool(repeatable),
            }:  # fmt: skip
                self._count, self._cost, self._unit, self._done = count, cost, unit[:_MAX_UNIT], done
                self._repeatable = repeatable
                self._steps = max(1, steps)
            case _:
                raise ProcessorFailed("the processor's process sent nonsense instead of its plan")
        self._process = process
        self._prompts = prompts
        self._patience = patience
        self._sink = sink
        self._folder = folder.resolve()
        self._say = say

    @property
    def count(self) -> int | None:
        """See `Prepared.count`."""
        return self._count

    @property
    def cost(self) -> int:
        """See `Prepared.cost`."""
        return self._cost

    @property
    def unit(self) -> str:
        """See `Prepared.unit`."""
        return self._unit

    @property
    def done(self) -> int:
        """See `Prepared.done`."""
        return self._done

    @property
    def steps(self) -> int:
        """See `Prepared.steps`."""
        return self._steps

    @property
    def repeatable(self) -> bool:
        """See `Prepared.repeatable`."""
        return self._repeatable

    @property
    def prompts(self) -> Iterator[Prompt]:
        """The prompts, made ahead of the engine as far as it draws them."""
        return self._prompts

    def finish(self, outputs: Iterator[Output]) -> Processed:
        """Answer the process's requests until it has a result."""
        while True:
            message = hear(self._process, self._process.channel, self._patience, WRITING)
            match message.kind, message.header:
                case "next", _:
                    self._answer(outputs)
                case "say", {"text": str(text)}:
                    self._say(text)
                case "show", {"name": str(name), "picture": str(picture), "media_type": str(media_type)}:
                    self._sink.show(name, _bytes(picture), media_type=media_type)
                case "checkpoint", {"name": str(name), "path": str(path)}:
                    self._save(name, self._own_file(path))
                case "artifact", {"name": str(name), "path": str(path), "media_type": str(media_type)}:
                    self._add(name, path, media_type)
                case "result", {"text": text, "data": data}:
                    return Processed(checked_result(text, data), self._sink.files)
                case _:
                    raise ProcessorFailed("the processor's process sent nonsense instead of a result")

    def _add(self, name: str, path: str, media_type: str) -> None:
        if len(self._sink.files) == _MAX_ARTIFACTS:
            raise ProcessorFailed(f"the processor handed over more than {_MAX_ARTIFACTS} artifacts")
        self._sink.add(name, self._own_file(path), media_type=media_type)

    def _answer(self, outputs: Iterator[Output]) -> None:
        output = for_process(self._process, self._patience, lambda: next(outputs, None))
        if output is None:
            answer(self._process, self._patience, WRITING, "end")
        else:
            answer(self._process, self._patience, WRITING, "output", output.data, partial=output.partial)

    def _save(self, name: str, path: Path) -> None:
        for_process(self._process, self._patience, lambda: self._sink.checkpoint(name, path))
        answer(self._process, self._patience, WRITING, "saved")

    def _own_file(self, said: str) -> Path:
        """Return an artifact's or a checkpoint's path; raise `ProcessorFailed` unless it is a plain file of the job."""
        path = Path(said)
        try:
            inside = path.parent.resolve().is_relative_to(self._folder)
            plain = stat.S_ISREG(os.lstat(path).st_mode)
        except (OSError, ValueError) as error:
            raise ProcessorFailed("the processor handed over an artifact that is not there") from error
        if not (inside and plain):
            raise ProcessorFailed("the processor handed over an artifact that is no file of its job's folder")
        return path


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ProcessorFailed("the processor's process sent nonsense instead of a picture") from error
