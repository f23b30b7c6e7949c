"""The process of a model: imports its file, loads it, and answers calls until the worker ends it.

    python -P -m penstock.functions.child DESCRIPTOR       (the socket to the worker, which sends `init` first)
    python -P -m penstock.functions.child --describe FILE  (prints the signatures of its models as JSON)

Messages of the worker: `init`, `call` (one job's arguments, or the items of several), `cancel`, `close`. Answers:
`ready` or `failed`; then for each call `line`, `progress` and `text`, and at the end `done` or `error`.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import errno
import functools
import importlib.util
import inspect
import io
import json
import os
import queue
import shutil
import socket
import sys
import tempfile
import threading
import traceback
import typing
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

from penstock.functions import confinement, values
from penstock.functions import declaration as d
from penstock.functions.kinds import Kind
from penstock.functions.signature import Signature, Unservable, signatures
from penstock.functions.wire import MAX_LINES, Closed, Wire, WireError

#: The call whose code runs; None while the model is loaded, and in a call of several jobs.
_CALL: contextvars.ContextVar[int | None] = contextvars.ContextVar("call", default=None)
#: Set once, before the file is imported.
_HAS_NETWORK = [True]
#: Characters of a line that a call prints; the rest is left out.
MAX_LINE_CHARS = 4000


class _Lines(io.TextIOBase):
    """Standard output of the model's code: sends whole lines to the worker."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._rest: dict[int | None, str] = {}
        self._count: dict[int | None, int] = {}
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        call = _CALL.get()
        with self._lock:
            *lines, rest = (self._rest.pop(call, "") + text).split("\n")
            self._rest[call] = rest[:MAX_LINE_CHARS]
            count = self._count.get(call, 0)
            self._count[call] = count + len(lines)
        lines = lines[: max(0, MAX_LINES - count)] if call is not None else lines
        if lines:
            with suppress(Closed):
                self._wire.send("lines", [line[:MAX_LINE_CHARS] for line in lines], id=call)
        return len(text)

    def end(self, call: int | None) -> None:
        """Send what is left of a call's last line."""
        if self._rest.get(call):
            self.write("\n")
        with self._lock:
            over = self._count.pop(call, 0) - MAX_LINES
            self._rest.pop(call, None)
        if call is not None and over > 0:
            with suppress(Closed):
                self._wire.send("lines", [f"({over} more lines)"], id=call)


def import_file(path: Path) -> ModuleType:
    """Import a user's file under its own name, with its folder on the path."""
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "penstock_model"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Process:
    """The model's process after `init`."""

    def __init__(self, wire: Wire, signature: Signature, lines: _Lines, arguments: Mapping[str, Any]) -> None:
        self._wire, self._signature, self._lines = wire, signature, lines
        self._canceled: set[int] = set()
        target = signature.target
        self._self: tuple[Any, ...] = (target(**arguments),) if inspect.isclass(target) else ()
        function = signature.function
        self._async_stream = inspect.isasyncgenfunction(function)
        self.is_async = inspect.iscoroutinefunction(function) or self._async_stream

    def load(self) -> None:
        """Run the class's `load`."""
        for one in self._self:
            if hasattr(one, "load"):
                found = one.load()
                if inspect.iscoroutine(found):
                    asyncio.run(found)

    def serve(self, calls: queue.SimpleQueue[dict[str, Any]]) -> None:
        """Answer calls one after another, or with `async def` beside each other, until `close`."""
        if self.is_async:
            asyncio.run(self._serve_async(calls))
            return
        while (message := calls.get())["kind"] != "close":
            if message["kind"] == "call":
                self._answer(message)

    def cancel(self, call: int) -> None:
        """Have a generator end at its next `yield`."""
        self._canceled.add(call)

    def _answer(self, message: Mapping[str, Any]) -> None:
        call = message["id"]
        with self._told(call, single="items" not in message), _own_folder():
            if "items" in message["value"]:
                self._done(call, self._batch(message["value"]))
                return
            arguments = self._arguments(message["value"]["arguments"])
            answer = self._signature.function(*self._self, **arguments)
            if self._signature.streams:
                answer = self._drained(answer, call)
            self._done(call, [self._given(answer, arguments)])

    def _done(self, call: int, answers: list[Any]) -> None:
        self._lines.end(_CALL.get())  # before the answer, after which a call has no lines
        try:
            self._wire.send("done", answers, id=call)
        except TypeError as error:
            raise values.WrongAnswer(f"its answer cannot be sent: {error}") from error

    def _batch(self, value: Mapping[str, Any]) -> list[Any]:
        first = self._signature.batched or ""
        kind = dataclasses.replace(self._signature.parameters[first], is_list=False)
        if kind.codec == "json":
            [inner] = _inner(kind.annotation)
            kind = Kind(annotation=inner)
        items = [values.take(kind, item) for item in value["items"]]
        answers = self._signature.function(*self._self, **{first: items}, **self._arguments(value["arguments"]))
        answers = list(answers)
        if len(answers) != len(items):
            raise values.WrongAnswer(f"{len(answers)} answers for {len(items)} items: return one for each, in order")
        kind = self._signature.answers[""]
        if self._signature.raster:
            return [values.give_tile(kind, answer, item) for answer, item in zip(answers, items, strict=True)]
        if kind.codec == "json":
            kind = Kind(annotation=_inner(kind.annotation)[0])
        return [{"parts": {"": values.give(answer, kind)}} for answer in answers]

    async def _serve_async(self, calls: queue.SimpleQueue[dict[str, Any]]) -> None:
        loop, running = asyncio.get_running_loop(), dict[int, asyncio.Task[None]]()
        while (message := await loop.run_in_executor(None, calls.get))["kind"] != "close":
            call = message["id"]
            if message["kind"] == "cancel" and call in running:
                running[call].cancel()
            elif message["kind"] == "call":
                task = loop.create_task(self._answer_async(message))
                running[call] = task
                task.add_done_callback(functools.partial(_forget, running, call))

    async def _answer_async(self, message: Mapping[str, Any]) -> None:
        call = message["id"]
        with self._told(call, single=True), _own_folder(enter=False):
            arguments = self._arguments(message["value"]["arguments"])
            answer = self._signature.function(*self._self, **arguments)
            if self._async_stream:
                answer = await self._drained_async(answer, call)
            else:
                answer = await answer
            self._done(call, [self._given(answer, arguments)])

    def _arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        kinds = self._signature.parameters
        return {name: values.take(kinds[name], value) for name, value in given.items()}

    def _drained(self, stream: Iterator[Any], call: int) -> Any:
        found, stream = list[Any](), iter(stream)
        while True:
            try:
                one = next(stream)
            except StopIteration as end:
                return end.value if end.value is not None else found
            if call in self._canceled:
                if inspect.isgenerator(stream):
                    stream.close()
                raise InterruptedError("canceled")
            self._yielded(one, call, found)

    async def _drained_async(self, stream: AsyncIterator[Any], call: int) -> list[Any]:
        found = list[Any]()
        async for one in stream:
            self._yielded(one, call, found)
        return found

    def _yielded(self, one: Any, call: int, found: list[Any]) -> None:
        if isinstance(one, d.Progress):
            self._wire.send("progress", id=call, done=float(one.done), total=float(one.total))
        elif isinstance(one, str):
            self._wire.send("text", str(one), id=call)
        else:
            found.append(one)

    def _given(self, answer: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
        kinds = self._signature.answers
        if self._signature.raster:
            return values.give_tile(kinds[""], answer, *arguments.values())
        if "" not in kinds:
            parts = dict(enumerate(answer, 1)) if isinstance(answer, tuple) else vars_of(answer)
            named = {str(name): value for name, value in parts.items()}
            return {"parts": {name: values.give(named[name], kind) for name, kind in kinds.items()}}
        kind = kinds[""]
        if self._signature.streams and kind.codec == "json" and isinstance(answer, list):
            return {"stream": [values.give(one) for one in answer]}
        if kind.is_list or (self._signature.streams and isinstance(answer, list)):
            item = dataclasses.replace(kind, is_list=False) if kind.codec != "json" else None
            return {"list": [values.give(one, item) for one in answer]}
        return {"parts": {"": values.give(answer, kind)}}

    @contextmanager
    def _told(self, call: int, *, single: bool) -> Iterator[None]:
        """Send the error of a call."""
        token = _CALL.set(call if single else None)
        try:
            yield
        except Closed:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self._lines.end(_CALL.get())
            self._wire.send("error", id=call, **_said(error, self._signature))
        finally:
            _CALL.reset(token)
            self._canceled.discard(call)


def _forget(running: dict[int, asyncio.Task[None]], call: int, _: object) -> None:
    running.pop(call, None)


def vars_of(answer: Any) -> dict[str, Any]:
    """Return the fields of a dataclass."""
    return {one.name: getattr(answer, one.name) for one in dataclasses.fields(answer)}


def _inner(annotation: Any) -> tuple[Any, ...]:
    base = typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation
    return typing.get_args(base)


@contextmanager
def _own_folder(*, enter: bool = True) -> Iterator[None]:
    """Run a call in a folder of its own, which is removed: files with relative names do not meet.

    Calls beside each other do not enter theirs.
    """
    before, folder = Path.cwd(), tempfile.mkdtemp(prefix="call-")
    token = values.FOLDER.set(folder)
    try:
        if enter:
            os.chdir(folder)
        yield
    finally:
        if enter:
            os.chdir(before)
        values.FOLDER.reset(token)
        shutil.rmtree(folder, ignore_errors=True)


def _said(error: BaseException, signature: Signature | None = None) -> dict[str, Any]:
    """Return an error as the worker reads it: its sentence, and file and line of the model's code."""
    here = str(Path(__file__).parent)
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith((here, "<"))]
    own = Path(inspect.getsourcefile(signature.function) or "").parent if signature else None
    ours = [one for one in frames if own is not None and Path(one.filename).parent == own] or frames
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else signature.place if signature else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{Path(error.filename).name}:{error.lineno}"
    return {
        "type": type(error).__name__,
        "detail": (str(error) or type(error).__name__) + _hint(error),
        "place": place,
        "invalid": isinstance(error, d.InvalidInput),
        "wrong_answer": isinstance(error, values.WrongAnswer),
        "trace": "".join(traceback.StackSummary.from_list(frames).format()),
    }


def _hint(error: BaseException) -> str:
    """Return what to write where code without a network wants one."""
    inner: BaseException | None = error
    while inner is not None and not _HAS_NETWORK[0]:
        if isinstance(inner, socket.gaierror) or (isinstance(inner, OSError) and inner.errno == errno.EACCES):
            return " (the model has no network: say `network=[...]` in its decorator)"
        inner = inner.__cause__ or inner.__context__  # urllib's and others' errors hold the socket's
    return ""


def _named(found: list[Signature], attribute: str, path: Path) -> Signature:
    for one in found:
        if one.attribute == attribute:
            return one
    raise Unservable(f"{path.name} has no model {attribute!r} any more")


def _readable(path: Path) -> list[Signature]:
    """Return the signatures of a file; raise `Unservable`, also for a type that needs a package that is missing."""
    found = signatures(import_file(path))
    for one in found:
        for name, kind in (*one.parameters.items(), *one.answers.items()):
            if missing := values.missing_packages(kind):
                where = f"`{name}`" if name else "the answer"
                raise Unservable(
                    f"{path.name}: {one.attribute}: {where} needs {' and '.join(missing)}, which this environment "
                    "lacks: add it to `dependencies`"
                )
    return found


def _listen(wire: Wire, calls: queue.SimpleQueue[dict[str, Any]], process: Process) -> None:
    try:
        while True:
            message = wire.receive()
            if message["kind"] == "cancel":
                process.cancel(message["id"])
            calls.put(message)
            if message["kind"] == "close":
                return
    except (Closed, WireError):
        os._exit(0)


def main(descriptor: int) -> None:
    """Serve the worker at the other end of a socket."""
    wire = Wire(socket.socket(fileno=descriptor))
    init = wire.receive()
    lines = _Lines(wire)
    sys.stdout = sys.stderr = lines
    confinement.end_with(init["parent"])
    confinement.go_first()
    path, found = Path(init["file"]), None
    try:
        begun = monotonic()
        _HAS_NETWORK[0] = bool(init["hosts"]) or init["value"]["filter"] is None
        if (program := init["value"]["filter"]) is not None:
            if not confinement.refuse_sockets(program):
                confinement.no_network()
        elif init["hosts"]:
            confinement.allow_hosts(tuple(init["hosts"]))
        found = _named(signatures(import_file(path)), init["attribute"], path)
        d.SOURCE = init["value"]["source"]
        process = Process(wire, found, lines, init["value"]["arguments"])
        process.load()
        lines.end(None)
        wire.send("ready", load_s=monotonic() - begun)
    except BaseException as error:
        lines.end(None)
        wire.send("failed", id=None, unservable=isinstance(error, Unservable), **_said(error, found))
        return
    calls = queue.SimpleQueue[dict[str, Any]]()
    threading.Thread(target=_listen, args=(wire, calls, process), name="listen", daemon=True).start()
    process.serve(calls)


def describe(path: Path) -> int:
    """Print the signatures of a file's models as one line of JSON, or what is wrong with it; return an exit status."""
    printed, sys.stdout = sys.stdout, sys.stderr
    try:
        found = [one.to_json() for one in _readable(path)]
    except Unservable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except BaseException as error:
        said = _said(error)
        place = f" ({said['place']})" if said["place"] else ""
        sys.stderr.write(f"{said['type']}: {said['detail']}{place}\n")
        return 1
    printed.write("\n" + json.dumps(found))
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--describe":
        sys.exit(describe(Path(sys.argv[2])))
    main(int(sys.argv[1]))
