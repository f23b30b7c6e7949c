"""A processor that does what its request says, good or bad: what the tests of `Processing` run.

Its sleeps are bad deeds themselves: it hangs, or stays silent until somebody ends it. No test waits for their end.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from penstock.errors import DeviceLost, InputError, InvalidInput
from penstock.models import Limits, MediaReference, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, OutputSpec, Prepared, Prompt, Result
from penstock.reports import Issue

LEAK: list[bytearray] = []
#: What a result may not hold.
ODD: dict[str, object] = {"nan": [float("nan")], "infinity": float("inf"), "array": np.ones(2), "half": "\ud800"}


class Own(InputError):
    """A plugin's own kind of input error."""


class ProbeRequest(BaseModel):
    """How many prompts of which size, from which file, and what to do where."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: MediaReference | None = None
    prompts: int = 3
    size: int = 4
    pre: str | None = None
    prompt: str | None = None
    post: str | None = None
    leak_bytes: int = 0
    #: Whether to save what each prompt gave, and to leave out those that earlier attempts saved.
    save: bool = False
    #: Of how many bytes the pictures are that it shows.
    show: int = 0
    #: Something in the result that is not JSON.
    odd: str = ""
    #: For what needs a place: a folder of the test's.
    folder: str = ""
    #: What should not be reached: a port of this machine, and the worker's process id.
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
        if model.options.get("broken"):
            raise ValueError("an option that it does not take")
        if model.options.get("hang"):
            time.sleep(3600)
        if model.options.get("crash"):
            ctypes.string_at(0)

    def pre_process(self, request: ProbeRequest, media: Media) -> Prepared[Context]:
        do(request.pre, request)
        if request.leak_bytes:
            LEAK.append(bytearray(os.urandom(1) * request.leak_bytes))
        note = media.path(request.text).read_text() if request.text else ""
        files = media.checkpoints("probe/") if request.save else {}
        saved = {int(name.removeprefix("probe/")): float(path.read_text()) for name, path in files.items()}
        context, left = Context(request, saved), request.prompts - len(saved)
        numbers = (number for number in range(request.prompts) if number not in saved)
        return Prepared(self._prompts(request, note, numbers), left, 10 * left, context, "probes", len(saved))

    def _prompts(self, request: ProbeRequest, note: str, numbers: Iterator[int]) -> Iterator[Prompt]:
        try:
            for number in numbers:
                do(request.prompt, request)
                yield Prompt({"x": np.full(request.size, number, np.float32), "note": note, "number": number}, cost=10)
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
        return Result(f"{total:g}", {"sum": total, "partial": partial, "same": same, "nine": context.square(3)})

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


def fail(_: ProbeRequest, __: ArtifactSink | None) -> None:
    raise ZeroDivisionError("a secret of the processor's")


def claim_the_device(_: ProbeRequest, __: ArtifactSink | None) -> None:
    raise DeviceLost("as if it were the engine")


def hang(request: ProbeRequest, _: ArtifactSink | None) -> None:
    Path(request.folder, "hanging").touch()
    while True:
        time.sleep(0.01)


def hog(_: ProbeRequest, __: ArtifactSink | None) -> None:
    kept = []
    while True:
        kept.append(np.ones(2**22))


def send_garbage(_: ProbeRequest, __: ArtifactSink | None) -> None:
    os.write(_conversation(), b"\x07" * 64)
    time.sleep(60)


def announce_too_much(_: ProbeRequest, __: ArtifactSink | None) -> None:
    os.write(_conversation(), b"\x00" + b"\xff" * 12)
    time.sleep(60)


def lie_about_memory(_: ProbeRequest, __: ArtifactSink | None) -> None:
    """Send shared memory that is larger in words than in fact."""
    _send_shared(_sealed(4096))


def send_loose_memory(_: ProbeRequest, __: ArtifactSink | None) -> None:
    """Send memory that can be cut off under the reader."""
    loose = os.memfd_create("loose")
    os.write(loose, bytes(2**22))
    _send_shared(loose)


def send_hollow_memory(_: ProbeRequest, __: ArtifactSink | None) -> None:
    """Send memory of which nothing is there: the reader would have to pay for it."""
    hollow = os.memfd_create("hollow", os.MFD_ALLOW_SEALING)
    os.truncate(hollow, 2**22)
    _send_shared(hollow)


def send_memory_twice(_: ProbeRequest, __: ArtifactSink | None) -> None:
    """Send the same memory while the reader uses it."""
    _send_shared(_sealed(2**22), 2)


def _sealed(size_bytes: int) -> int:
    descriptor = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    os.write(descriptor, bytes(size_bytes))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def _send_shared(descriptor: int, times: int = 1) -> None:
    """Send a descriptor as 4 MiB of numbers."""
    memory = json.dumps({"returned": [], "dropped": [], "lent": 99})
    header = json.dumps({"kind": "prepared", "plain": {}, "arrays": {"x": ["<f4", [2**20]]}})
    lines = f"{memory}\n{header}".encode()
    prefix = b"\x01" + len(lines).to_bytes(4, "little") + (2**22).to_bytes(8, "little")
    with socket.socket(fileno=os.dup(_conversation())) as end:
        for _ in range(times):
            socket.send_fds(end, [prefix], [descriptor])
            end.sendall(lines)
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
    "garbage": send_garbage,
    "too_much": announce_too_much,
    "lie": lie_about_memory,
    "loose": send_loose_memory,
    "hollow": send_hollow_memory,
    "again": send_memory_twice,
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
