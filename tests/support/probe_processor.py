"""A processor that does what its request says, good or bad: what the tests of `Processing` run.

Its sleeps are bad deeds themselves: it hangs, or stays silent until somebody ends it. No test waits for their end.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import socket
import stat
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from penstock.errors import DeviceLost, InputError, InvalidInput, Issue
from penstock.models import Limits, MediaReference, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, OutputSpec, Prepared, Prompt, Result
from penstock.processors.decoding import BASE_S, PIXEL_S, decoding
from penstock.processors.io_signature import IOSignature
from penstock.processors.notes import note

LEAK: list[bytearray] = []
#: A value that a result may not hold.
ODD: dict[str, object] = {"nan": [float("nan")], "infinity": float("inf"), "array": np.ones(2), "half": "\ud800"}


class Own(InputError):
    """A plugin's own kind of input error."""


class ProbeRequest(BaseModel):
    """The number and size of prompts, their file, and the action at each place."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: MediaReference | None = None
    prompts: int = 3
    size: int = 4
    #: The prompt that cannot be made.
    fails_at: int | None = None
    pre: str | None = None
    prompt: str | None = None
    post: str | None = None
    #: True for prompts that read the file, whose bytes may come after the first half.
    late: bool = False
    #: Ranges of the file that each prompt asks for before it reads the file.
    fills: list[tuple[int, int]] = []
    leak_bytes: int = 0
    #: True to save what each prompt gave, and to leave out those that earlier attempts saved.
    save: bool = False
    #: Bytes of each image that it shows.
    show: int = 0
    #: Something in the result that is not JSON.
    odd: str = ""
    #: For what needs a place: a folder of the test's.
    folder: str = ""
    #: Addresses out of reach: a port of this machine, and the worker's process id.
    port: int = 0
    worker: int = 0


class Context:
    """Something that no serialisation would carry."""

    def __init__(self, request: ProbeRequest, saved: dict[int, float]) -> None:
        self.request = request
        self.saved = saved
        self.process = os.getpid()
        self.square: Callable[[int], int] = lambda x: x * x


class Probe:
    """Sends `prompts` arrays of `size` numbers through the engine and adds up what comes back."""

    request = ProbeRequest
    outputs = (OutputSpec("sum", "text/plain", "sum.txt: the sum"),)

    def __init__(self, model: Model) -> None:
        self.limits = model.limits
        if sends := model.options.get("sends"):
            self.io_signatures = (IOSignature(prompt=sends, output={"notes": "list"}),)
        if model.options.get("broken"):
            raise ValueError("an option that it does not take")
        if model.options.get("hang"):
            time.sleep(3600)
        time.sleep(model.options.get("load_s", 0))
        if model.options.get("crash"):
            ctypes.string_at(0)
        if noted := model.options.get("note"):
            with Path(noted).open("a") as file:
                file.write("x")
        self._work: queue.SimpleQueue[str] | None = None
        if model.options.get("thread"):
            self._work = queue.SimpleQueue()
            threading.Thread(target=self._echo, args=(self._work, done := queue.SimpleQueue()), daemon=True).start()
            self._done = done

    @staticmethod
    def _echo(work: queue.SimpleQueue[str], done: queue.SimpleQueue[str]) -> None:
        while True:
            done.put(work.get())

    def pre_process(self, request: ProbeRequest, media: Media) -> Prepared[Context]:
        do(request.pre, request)
        if self._work is not None:
            self._work.put("work")
            self._done.get(timeout=20)
        if request.leak_bytes:
            LEAK.append(bytearray(os.urandom(1) * request.leak_bytes))
        if request.text and request.late and not request.fills:
            media.fill(request.text, [(0, media.path(request.text).stat().st_size)], later=True)
        text = media.path(request.text).read_text() if request.text and not request.late else ""
        files = media.checkpoints("probe/") if request.save else {}
        saved = {int(name.removeprefix("probe/")): float(path.read_text()) for name, path in files.items()}
        context, left = Context(request, saved), request.prompts - len(saved)
        numbers = (number for number in range(request.prompts) if number not in saved)
        late = media.path(request.text) if request.text and request.late else None
        return Prepared(
            self._prompts(request, text, numbers, late, media), left, 10 * left, context, "probes", len(saved)
        )

    def _prompts(
        self, request: ProbeRequest, text: str, numbers: Iterator[int], late: Path | None, media: Media
    ) -> Iterator[Prompt]:  # fmt: skip
        try:
            for number in numbers:
                do(request.prompt, request)
                if request.text and request.fills:
                    media.fill(request.text, request.fills)
                if number == request.fails_at:
                    raise InvalidInput(f"prompt {number} cannot be made")
                if request.folder:
                    Path(request.folder, f"made-{number}").touch()
                text = late.read_text() if late else text
                yield Prompt({"x": np.full(request.size, number, np.float32), "note": text, "number": number}, cost=10)
        finally:
            if request.folder:
                Path(request.folder, "closed").touch()

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        total, partial = sum(context.saved.values()), 0
        for output in outputs:
            partial += output.partial
            value = 0.0 if output.partial else float(output.data["x"].sum())
            total += value
            sink.say(f"{output.data['number']} ")
            if context.request.show:
                sink.show("sum.txt", bytes([int(value) % 256]) * context.request.show, media_type="image/x-probe")
            if context.request.save:
                draft = sink.path("draft")
                draft.write_text(str(value))
                sink.checkpoint(f"probe/{output.data['number']}", draft)
                draft.unlink()
        do(context.request.post, context.request, sink)
        path = sink.path("sum.txt")
        path.write_text(str(total))
        sink.add("sum.txt", path, media_type="text/plain")
        if context.request.odd:
            return Result(None, {"y": ODD[context.request.odd]})
        same = context.process == os.getpid()
        told = {"same": same, "nine": context.square(3), "max_items": self.limits.max_items}
        return Result(f"{total:g}", {"sum": total, "partial": partial, **told})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        path = folder / "dummy.txt"
        path.write_text("dummy")
        return Dummy({"text": "media://dummy", "prompts": limits.max_items or 1}, {"media://dummy": path})


def do(what: str | None, request: ProbeRequest, sink: ArtifactSink | None = None) -> None:
    """Do something that a processor should not."""
    if what is not None:
        DEEDS[what](request, sink)


def refuse(_: ProbeRequest, __: ArtifactSink | None) -> None:
    raise InvalidInput("this is no input", errors=[Issue("/input/text", "not this one")])


def refuse_in_own_words(_: ProbeRequest, __: ArtifactSink | None) -> None:
    raise Own("in its own words")


def take_a_note(_: ProbeRequest, __: ArtifactSink | None) -> None:
    note("The file is odd.")


def fail(_: ProbeRequest, __: ArtifactSink | None) -> None:
    raise ZeroDivisionError("a secret of the processor's")


def claim_the_device(_: ProbeRequest, __: ArtifactSink | None) -> None:
    raise DeviceLost("as if it were the engine")


def hang(request: ProbeRequest, _: ArtifactSink | None) -> None:
    Path(request.folder or tempfile.gettempdir(), "hanging").touch()
    while True:
        time.sleep(0.01)


def peek(request: ProbeRequest, _: ArtifactSink | None) -> None:
    """Read a file that is none of a job's, through a library that words the refusal itself."""
    try:
        Path(request.folder, "pyproject.toml").read_bytes()
    except OSError as error:
        raise RuntimeError(f"tokenizer: {error.strerror} (os error {error.errno})") from None


def hog(_: ProbeRequest, __: ArtifactSink | None) -> None:
    kept = []
    while True:
        kept.append(np.ones(2**22))


def decode_for_ever(_: ProbeRequest, __: ArtifactSink | None) -> None:
    """Compute in a decode whose time is over almost at once."""
    with decoding(pixels=int(0.05 / PIXEL_S - BASE_S / PIXEL_S)):
        while True:
            sum(range(1000))


def send_garbage(_: ProbeRequest, __: ArtifactSink | None) -> None:
    os.write(_conversation(), b"\x07" * 64)
    time.sleep(60)


def announce_too_much(_: ProbeRequest, __: ArtifactSink | None) -> None:
    """Announce more bytes than a process may have on their way."""
    os.write(_conversation(), struct.pack("<IQ", 100, 2**60))
    time.sleep(60)


def lie_about_a_body(_: ProbeRequest, __: ArtifactSink | None) -> None:
    """Send an array that is larger in words than in fact."""
    _send([[["x"], "<f4", [2**20]]])


def fill_twice(_: ProbeRequest, __: ArtifactSink | None) -> None:
    """Send two arrays for one place."""
    _send([[["x"], "|u1", [64]], [["x"], "|u1", [64]]])


def fill_what_is_not_there(_: ProbeRequest, __: ArtifactSink | None) -> None:
    """Send an array for no place."""
    _send([[["y"], "|u1", [128]]])


def send_a_descriptor(request: ProbeRequest, _: ArtifactSink | None) -> None:
    """Send a file beside a message."""
    with Path(request.folder or tempfile.gettempdir(), "file").open("w+b") as file:
        _send([[["x"], "|u1", [128]]], [file.fileno()])


def _send(rows: list[Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message with 128 bytes of arrays."""
    header = json.dumps({"kind": "prepared", "value": {"x": None}, "arrays": rows}).encode()
    with socket.socket(fileno=os.dup(_conversation())) as end:
        socket.send_fds(end, [struct.pack("<IQ", len(header), 128), header, bytes(128)], list(descriptors))
    time.sleep(60)


def _conversation() -> int:
    """Find the descriptor of the conversation with the worker: the lowest of our sockets."""
    return min(descriptor for descriptor in range(3, 1024) if _is_socket(descriptor))


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def shut(_: ProbeRequest, __: ArtifactSink | None) -> None:
    for descriptor in filter(_is_socket, range(3, 1024)):
        with socket.socket(fileno=os.dup(descriptor)) as end:
            end.shutdown(socket.SHUT_RDWR)
    time.sleep(60)


def tell_of_itself(request: ProbeRequest, _: ArtifactSink | None) -> None:
    """Write down what this process sees."""
    seen: dict[str, Any] = {"environment": dict(os.environ), "pid": os.getpid(), "uid": os.getuid()}
    seen["connect"] = _tried(lambda: socket.create_connection(("127.0.0.1", request.port), 2))
    seen["resolve"] = _tried(lambda: socket.getaddrinfo("example.org", 443))
    seen["worker"] = _tried(lambda: Path(f"/proc/{request.worker}/environ").read_bytes())
    Path(request.folder, "seen.json").write_text(json.dumps(seen))


def fork_a_sleeper(request: ProbeRequest, _: ArtifactSink | None, *, detached: bool = False) -> None:
    """Leave a process behind, with its number in a file."""
    if pid := os.fork():
        Path(request.folder, "forked").write_text(str(pid))
        return
    if detached:
        os.setsid()
    while True:
        time.sleep(3600)


def _tried(act: Callable[[], object]) -> str:
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "reached"


def hand_over_link(request: ProbeRequest, sink: ArtifactSink | None) -> None:
    assert sink is not None
    path = sink.path("link")
    path.symlink_to(Path(request.folder, "secret"))
    sink.add("link", path, media_type="text/plain")


def hand_over_foreign(request: ProbeRequest, sink: ArtifactSink | None) -> None:
    assert sink is not None
    sink.add("secret", Path(request.folder, "secret"), media_type="text/plain")


def hand_over_nothing(_: ProbeRequest, sink: ArtifactSink | None) -> None:
    assert sink is not None
    sink.add("nothing", sink.path("nothing"), media_type="text/plain")


def hand_over_twice(_: ProbeRequest, sink: ArtifactSink | None) -> None:
    assert sink is not None
    path = sink.path("twice")
    path.touch()
    for _again in range(2):
        sink.add("twice", path, media_type="text/plain")


def save_foreign(request: ProbeRequest, sink: ArtifactSink | None) -> None:
    assert sink is not None
    sink.checkpoint("secret", Path(request.folder, "secret"))


def save_elsewhere(_: ProbeRequest, sink: ArtifactSink | None) -> None:
    assert sink is not None
    path = sink.path("draft")
    path.touch()
    sink.checkpoint("../../../other/jobs/x/request.json", path)


DEEDS: dict[str, Callable[[ProbeRequest, ArtifactSink | None], object]] = {
    "note": take_a_note,
    "refuse": refuse,
    "refuse_in_own_words": refuse_in_own_words,
    "fail": fail,
    "claim_the_device": claim_the_device,
    "exit": lambda *_: sys.exit(3),
    "segfault": lambda *_: ctypes.string_at(0),
    "abort": lambda *_: os.abort(),
    "leave": lambda *_: os._exit(0),
    "killed": lambda *_: os.kill(os.getpid(), signal.SIGKILL),
    "shut": shut,
    "hang": hang,
    "hog": hog,
    "peek": peek,
    "decode_for_ever": decode_for_ever,
    "garbage": send_garbage,
    "too_much": announce_too_much,
    "lie": lie_about_a_body,
    "nowhere": fill_what_is_not_there,
    "descriptor": send_a_descriptor,
    "again": fill_twice,
    "tell": tell_of_itself,
    "fork": fork_a_sleeper,
    "fork_detached": partial(fork_a_sleeper, detached=True),
    "kill_group": lambda *_: os.killpg(0, signal.SIGKILL),
    "link": hand_over_link,
    "foreign": hand_over_foreign,
    "nothing": hand_over_nothing,
    "twice": hand_over_twice,
    "save_foreign": save_foreign,
    "save_elsewhere": save_elsewhere,
}
