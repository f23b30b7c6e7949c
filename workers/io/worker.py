"""What an IO process does: one job at a time, both halves of its processor, nothing else."""

from __future__ import annotations

import base64
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import structlog

from penstock.errors import PenstockError
from penstock.models import Model
from penstock.processors.base import IOProcessor, Output, Prompt
from penstock.processors.registry import Registry, export
from penstock.storage.media import safe_name
from penstock.workers.io import reports, sandbox
from penstock.workers.io.channel import Channel, Gone, Memory, Message
from penstock.workers.io.works import work_from_json, work_to_json
from penstock.workers.processing import Files, checked_result, dummy_work, parse

#: A job that left more than this behind may have left it to be collected.
WORTH_TRIMMING_BYTES = 64 * 2**20

log = structlog.get_logger(__name__)


class Stopped(Exception):
    """The worker wants no more of this job."""


class IOWorker:
    """Works for a worker at the other end of a socket until that goes."""

    def __init__(self, descriptor: int, registry: Registry, memory_bytes: int) -> None:
        """Take over the socket and the limits: this process is an IO process from here on."""
        sandbox.limit(memory_bytes)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # forks would all draw the same numbers
        self._memory = Memory(memory_bytes)
        self._channel = Channel(socket.socket(fileno=descriptor), self._memory, patient=True)
        #: Also of the job that runs.
        self._conversations = {self._channel}
        os.register_at_fork(after_in_child=self._hang_up)  # else nobody hears the end of this process
        self._registry = registry
        self._memory_bytes = memory_bytes
        self._processors: dict[tuple[str, str], IOProcessor[Any, Any]] = {}
        self._fresh_bytes = sandbox.private_bytes()

    def work(self) -> None:
        """Do what is asked until the worker is gone."""
        try:
            while True:
                message = self._channel.receive()
                with structlog.contextvars.bound_contextvars(**message.header["log"]):
                    self._do(message)
                del message  # its arrays would live until the next job
                self._channel.send("idle", grown_bytes=self._grown_bytes())
        except Gone:
            return

    def _hang_up(self) -> None:
        """In what a processor forked: leave the conversations to this process."""
        for channel in self._conversations:
            channel.close()

    def _do(self, message: Message) -> None:
        """Answer a request, and only then tidy up: the worker shuts the prompts' socket when it has heard the end."""
        with ExitStack() as afterwards:
            try:
                self._answer(message, afterwards)
            except (Gone, Stopped):
                return  # if the worker is gone, the next message does not come
            except BaseException as error:
                self._report(self._channel, error)

    def _answer(self, message: Message, afterwards: ExitStack) -> None:
        model = Model.model_validate(message.header["model"])
        match message.kind:
            case "job":
                self._run(model, message, afterwards)
            case "entry":
                self._channel.send("entry", entry=export(self._registry, model).model_dump(mode="json"))
            case "dummy":
                made = dummy_work(self._processor(model), model, Path(message.header["folder"]))
                self._channel.send("dummy", **work_to_json(made))

    def _run(self, model: Model, message: Message, afterwards: ExitStack) -> None:
        prompts = Channel(socket.socket(fileno=message.descriptor), self._memory, patient=True)
        self._conversations.add(prompts)
        afterwards.callback(self._conversations.discard, prompts)
        afterwards.callback(prompts.close)
        processor, work = self._processor(model), work_from_json(model, message.header)
        self._channel.send("loaded")
        prepared = processor.pre_process(parse(processor, work), Files(work.media, self._found))
        plan = {name: getattr(prepared, name) for name in ("count", "cost", "unit", "done", "steps", "repeatable")}
        self._channel.send("prepared", **plan)
        feeding = threading.Thread(target=self._feed, args=(prompts, prepared.prompts), name="prompts")
        feeding.start()
        afterwards.callback(feeding.join)
        result = processor.post_process(self._outputs(), prepared.context, RemoteSink(self._channel, work.folder))
        result = checked_result(result.text, result.data)
        self._channel.send("result", text=result.text, data=result.data)

    def _feed(self, channel: Channel, prompts: Iterator[Prompt]) -> None:
        """Send a prompt whenever one is asked for, until the end or until no more are wanted."""
        try:
            while True:
                channel.receive()
                try:
                    self._send_next(channel, prompts)
                except Gone:
                    raise
                except BaseException as error:
                    self._report(channel, error)
        except Gone:
            _close(prompts)

    def _send_next(self, channel: Channel, prompts: Iterator[Prompt]) -> None:
        prompt = next(prompts, None)
        if prompt is None:
            channel.send("end")
        else:
            channel.send("prompt", prompt.data, cost=prompt.cost)

    def _outputs(self) -> Iterator[Output]:
        while True:
            self._channel.send("next")
            message = self._channel.receive()
            match message.kind:
                case "output":
                    yield Output(message.data, partial=message.header["partial"])
                case "end":
                    return
                case _:
                    raise Stopped

    def _found(self, prefix: str) -> Mapping[str, Path]:
        files = ask(self._channel, "found", "checkpoints", prefix=prefix).header["files"]
        return {name: Path(path) for name, path in files.items()}

    def _report(self, channel: Channel, error: BaseException) -> None:
        if not isinstance(error, PenstockError):
            log.exception("processor.failed")
        elif error.__cause__ is not None:
            log.info("processor.refused", code=error.code, detail=error.detail, exc_info=error.__cause__)
        channel.send("failed", **reports.to_json(error, self._memory_bytes))

    def _grown_bytes(self) -> int:
        grown = sandbox.private_bytes() - self._fresh_bytes
        if grown < WORTH_TRIMMING_BYTES:
            return grown
        sandbox.trim()
        return sandbox.private_bytes() - self._fresh_bytes

    def _processor(self, model: Model) -> IOProcessor[Any, Any]:
        key = model.name, model.model_dump_json()
        if key not in self._processors:
            self._processors[key] = self._registry.processor_for(model)
        return self._processors[key]


class RemoteSink:
    """The sink of a job whose worker is another process: files lie in the job's folder already, words are sent."""

    def __init__(self, channel: Channel, folder: Path) -> None:
        self._channel = channel
        self._folder = folder

    def path(self, name: str) -> Path:
        """Return a path in the scratch folder to write to."""
        return self._folder / safe_name(name)

    def add(self, name: str, path: Path, *, media_type: str) -> None:
        """Tell the worker of a finished file."""
        self._channel.send("artifact", name=name, path=str(path), media_type=media_type)

    def say(self, text: str) -> None:
        """Pass a further piece of the result's text on."""
        self._channel.send("say", text=text)

    def show(self, name: str, picture: bytes, *, media_type: str) -> None:
        """Pass a picture of what an artifact looks like so far on."""
        said = base64.b64encode(picture).decode()
        self._channel.send("show", name=name, picture=said, media_type=media_type)

    def checkpoint(self, name: str, path: Path) -> None:
        """Have the worker save a file."""
        ask(self._channel, "saved", "checkpoint", name=name, path=str(path))


def ask(channel: Channel, expected: str, kind: str, **fields: Any) -> Message:
    """Ask the worker for something of the job and return its answer; raise `Stopped` if it wants no more of it."""
    channel.send(kind, **fields)
    message = channel.receive()
    if message.kind != expected:
        raise Stopped
    return message


def _close(prompts: Iterator[Prompt]) -> None:
    close = getattr(prompts, "close", None)
    try:
        if close is not None:
            close()
    except Exception:
        log.exception("processor.prompts_not_closed")
