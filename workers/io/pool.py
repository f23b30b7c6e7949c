"""The IO processes of a worker: each serves one tenant and one model, for a few jobs, and is replaced afterwards."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from penstock.errors import Drained, Interruption, PenstockError, ProcessorFailed, ServiceError
from penstock.functions.wire import TICK_S
from penstock.models import CatalogueEntry, Model
from penstock.processors.base import Prompt
from penstock.processors.registry import OF_LIBRARIES, is_installed, unusable
from penstock.workers.artifacts import Show, Sink, discard_preview
from penstock.workers.checkpoints import Checkpoints
from penstock.workers.engine.base import Check
from penstock.workers.io import sandbox
from penstock.workers.io.ends import end_to_process
from penstock.workers.io.forks import ForkOptions, ForkServer, IOProcess, Template
from penstock.workers.io.media_answers import MediaAnswers
from penstock.workers.io.session import (
    LOADING,
    READING,
    RemotePrompts,
    RemoteSession,
    WaitLimits,
    ask_template,
    only_prompts,
    receive,
    receive_plan,
    send_answer,
    send_request,
    settle,
)
from penstock.workers.job_media import MediaRequests
from penstock.workers.processing import NO_CHECKPOINTS, Session, Work, held_media, work_from_json, work_to_json

#: Seconds after which an unused process is ended.
IDLE_S = 60.0
#: Seconds after which an unused template is ended.
TEMPLATE_IDLE_S = 600.0
#: Jobs that a process serves, and seconds after its start at which it begins another, at most. Code that a decoder's
#: fault let in stays no longer.
MAX_JOBS, MAX_AGE_S = 64, 60.0
#: Seconds between two looks for processes and templates to end.
LOOK_EVERY_S = 2.0
#: Seconds between two counts of the threads of all processes, where the kernel does not limit them.
COUNT_EVERY_S = 0.25
#: Share of its memory limit that an idle process may still hold. A process that holds more is replaced.
KEPT_SHARE = 0.25
#: Seconds for importing a processor and making its JSON Schema, at most; a model's `io_timeout_s` may be lower.
ENTRY_S = 120.0
#: Seconds for loading a processor that was found usable, at most: `io_timeout_s` is about its work on a job.
LOAD_S = 120.0
#: Open files of the worker, at most: every prompt on its way holds a descriptor.
MAX_FILES = 65_536

log = structlog.get_logger(__name__)


class IOPool:
    """A `Processing` that isolates jobs: a processor can end its own job and nothing else."""

    def __init__(self, processes: int, options: ForkOptions, *, idle_s: float = IDLE_S) -> None:
        """Run at most this many processes, each for one job at a time. The first is forked for the first job."""
        _allow_files()
        self._processes = processes
        self._options = options
        self._idle_s = idle_s
        self._kept_bytes = KEPT_SHARE * options.memory_bytes
        self._lock = threading.Lock()
        #: Notified when a process may be started or is idle, and at the end.
        self._change = threading.Condition(self._lock)
        #: Set at the end, for the threads that look now and then: they need not wake for each job.
        self._ended = threading.Event()
        #: Idle processes; the one used last is at the end.
        self._idle: list[IOProcess] = []
        self._used: set[IOProcess] = set()
        self._living = 0
        self._closed = False
        #: The template of each model, by the model as JSON.
        self._templates: dict[str, _Place] = {}
        self._server = ForkServer(options)
        #: The fork servers of models' environments, by the interpreter: each starts with the first template.
        self._others: dict[Path, ForkServer] = {}
        self._idle_ender = threading.Thread(target=self._end_idle, name="io-idle", daemon=True)
        self._idle_ender.start()
        self._counter = threading.Thread(target=self._count_threads, name="io-threads", daemon=True)
        self._counter.start()

    @property
    def server(self) -> ForkServer:
        """The current fork server; a lost one is replaced when a process is needed."""
        return self._server

    @contextmanager
    def open(
        self, work: Work, *, check: Check, say: Callable[[str], None], checkpoints: Checkpoints = NO_CHECKPOINTS,
        show: Show = discard_preview,
    ) -> Iterator[Session]:  # fmt: skip
        """Run the first half of a job in a process; see `Processing.open`."""
        limits = WaitLimits(work.model.io_timeout_s, check)
        # Created first: the process may begin its second half at once, and write there.
        sink = Sink(work.folder, say=say, save=checkpoints.save, show=show)
        with self._using(work, limits) as process, ExitStack() as conversation:
            lines = None if work.lines is None else process.lines
            new = None if lines is None else lines.to_send()
            send_request(
                process, limits, "job", held_media(work), descriptor=new, lines=lines is not None, **work_to_json(work)
            )
            if not process.loaded:
                if receive(process, process.wire, limits, LOADING)["kind"] != "loaded":
                    raise ProcessorFailed("the processor's process sent an invalid message before its plan")
                process.loaded = True
            prepared = receive_plan(process, limits, checkpoints, work.requests)
            prompts: Iterator[Prompt]
            if (only := only_prompts(prepared)) is not None:
                prompts = iter(only)
            else:
                if prepared.get("fills") is True:
                    limits = conversation.enter_context(_answering(process, limits, work.requests))
                prompts = conversation.enter_context(_conversation(process, limits))
            folder = work.folder if work.room else work.folder.resolve()
            yield RemoteSession(process, prompts, limits, prepared, sink, folder, say)

    def dummy(self, model: Model, folder: Path) -> Work:
        """Create the processor's dummy request in a process; see `Processing.dummy`."""
        limits = WaitLimits(max(LOAD_S, model.io_timeout_s), lambda: None)
        answer = self._ask(model, "dummy", limits, folder=str(folder))
        try:
            work = work_from_json(model, answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProcessorFailed("the processor's process sent an invalid message instead of a dummy") from error
        if not all(file.path.resolve().is_relative_to(folder.resolve()) for file in work.media.values()):
            raise ProcessorFailed("the processor's dummy request names files outside its folder")
        return work

    def entry(self, model: Model, *, check: Check = lambda: None) -> CatalogueEntry:
        """Import the model's processor in a process; see `Processing.entry`."""
        try:
            answer = self._ask(model, "entry", WaitLimits(min(ENTRY_S, model.io_timeout_s), check))
            entry = CatalogueEntry.model_validate(answer.get("entry"))
        except Interruption:
            raise
        except PenstockError as error:
            return unusable(model, error.detail)
        except ValidationError:
            return unusable(model, "the processor's process sent an invalid message instead of its schema")
        common = set(Model.model_fields) & set(CatalogueEntry.model_fields)
        return entry.model_copy(update={name: getattr(model, name) for name in common})

    def close(self) -> None:
        """End all processes; jobs that still use one raise `Drained`."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._change.notify_all()
        self._ended.set()
        for process in idle:
            process.close()
        self._idle_ender.join()
        self._counter.join()
        for place in self._templates.values():
            if place.template is not None:
                place.template.wire.close()
        for server in (self._server, *self._others.values()):
            server.close()

    def _ask(self, model: Model, kind: str, limits: WaitLimits, **fields: Any) -> dict[str, Any]:
        """Start a template for one request, which ends afterwards and counts as a process."""
        while not self._may_start():
            limits.check()
        try:
            with closing(self._new_template(model)) as template:
                return ask_template(template, limits, kind, **fields)
        finally:
            self._forget()

    @contextmanager
    def _using(self, work: Work, limits: WaitLimits) -> Iterator[IOProcess]:
        """Use a process for one job; afterwards return it to the pool if it may serve another job, else end it."""
        process = self._acquire(work, limits)
        process.idle = process.settling = False
        process.jobs += 1
        try:
            with nullcontext() if work.lines is None else work.lines.reading(process.line_memory()):
                try:
                    yield process
                finally:
                    if process.settling:
                        settle(process)
        finally:
            self._release(process)

    def _acquire(self, work: Work, limits: WaitLimits) -> IOProcess:
        room = work.room or work.folder.resolve()
        # A file in the room needs no permission of its own, and a link that lies there shall not get one.
        others = [file.path for file in work.media.values() if not file.path.is_relative_to(room)]
        reads = frozenset(path for path in map(Path.resolve, others) if not path.is_relative_to(room))
        serves = work.tenant, work.model.model_dump_json()
        while (process := self._next(serves, room, reads, limits.check)) is not None:
            if process.alive:
                return process
            self._drop(process)
        try:
            process = self._fork(work.model, serves[1], room, sorted(reads), limits)
        except BaseException:
            self._forget()
            raise
        process.serves = serves
        with self._lock:
            self._used.add(process)
        return process

    def _fork(self, model: Model, key: str, room: Path, reads: list[Path], limits: WaitLimits) -> IOProcess:
        try:
            return self._template(model, key, limits).fork(room, reads)
        except ServiceError:  # the template had died unnoticed
            return self._template(model, key, limits).fork(room, reads)

    def _template(self, model: Model, key: str, limits: WaitLimits) -> Template:
        """Return the model's template; start it for the first job, while the model's other jobs wait."""
        with self._lock:
            place = self._templates.setdefault(key, _Place())
        while not place.lock.acquire(timeout=TICK_S):
            limits.check()
        try:
            if place.template is not None and place.template.lost:
                place.template.close()
                place.template = None
            if place.template is None:
                place.template = self._loaded_template(model, limits)
            place.template.used_at = time.monotonic()  # before the lock is free: nobody ends it as unused
            return place.template
        finally:
            place.lock.release()

    def _loaded_template(self, model: Model, limits: WaitLimits) -> Template:
        """Start a template and have it load the processor, unless the processor has threads, which no fork inherits."""
        limits = WaitLimits(LOAD_S, limits.check, "while it was loaded")
        for now in (True, False):
            template = self._new_template(model)
            try:
                threads = ask_template(template, limits, "load", now=now)["threads"]
                if threads == 1 or not now:
                    template.loaded = now
                    return template
            except BaseException:
                template.close()
                raise
            log.info("io.not_shared", model=model.name, threads=threads)
            template.close()
        raise AssertionError("the second template loads nothing")

    def _new_template(self, model: Model) -> Template:
        fields = model.model_dump(mode="json")
        python = interpreter_for(model)
        try:
            return self._living_server(python).fork(fields)
        except ServiceError:  # the fork server had died unnoticed
            return self._living_server(python).fork(fields)

    def _next(self, serves: tuple[str, str], room: Path, reads: frozenset[Path], check: Check) -> IOProcess | None:
        """Return an idle process of the same tenant and model; None to fork another."""
        while True:
            check()
            with self._lock:
                for process in reversed(self._idle):
                    if process.serves == serves and process.room == room and reads <= process.reads:
                        self._idle.remove(process)
                        self._used.add(process)
                        return process
            if self._may_start():
                return None

    def _may_start(self) -> bool:
        """Reserve a place for a new process, if need be an idle process's; False after a tick without a free place."""
        with self._lock:
            if self._closed:
                raise Drained
            if self._living < self._processes:
                self._living += 1
                return True
            if not self._idle:
                self._change.wait(TICK_S)
                return False
            other = self._idle.pop(0)
        other.close()
        return True

    def _living_server(self, python: Path | None) -> ForkServer:
        """Return the fork server of the worker's environment, or of that of an interpreter."""
        with self._lock:
            if python is not None:
                server = self._others.get(python)
                if (server is None or server.lost) and not self._closed:
                    if server is not None:
                        server.close()
                    server = self._others[python] = ForkServer(self._options, python)
                if server is None:
                    raise Drained
                return server
            if self._server.lost and not self._closed:
                log.warning("io.server_lost", pid=self._server.pid)
                self._server.close()
                self._server = ForkServer(self._options)
            return self._server

    def _release(self, process: IOProcess) -> None:
        process.idle_since = time.monotonic()
        with self._lock:
            self._used.discard(process)
            if process.idle and not self._closed and self._may_serve_again(process):
                self._idle.append(process)
                self._change.notify_all()
                return
        self._drop(process)

    def _may_serve_again(self, process: IOProcess) -> bool:
        """Return True if another job of the same tenant may use the process.

        Where the kernel cannot refuse processes, one that a job left behind would see the next job.
        """
        return (
            self._options.reuse
            and not self._options.programs
            and "system calls" in process.parts
            and process.grown_bytes <= self._kept_bytes
            and process.jobs < MAX_JOBS
            and process.idle_since - process.born_at < MAX_AGE_S
        )

    def _drop(self, process: IOProcess) -> None:
        process.close()
        self._forget()

    def _forget(self) -> None:
        with self._lock:
            self._living -= 1
            self._change.notify_all()

    def _end_idle(self) -> None:
        """End processes and templates that are unused, and idle processes that are old, until the pool is closed."""
        while not self._ended.wait(min(self._idle_s, LOOK_EVERY_S)):
            now = time.monotonic()
            with self._lock:
                expired = [process for process in self._idle if self._ends_at(process) <= now]
                self._idle = [process for process in self._idle if process not in expired]
            for process in expired:
                self._drop(process)
            self._end_templates(now)

    def _ends_at(self, process: IOProcess) -> float:
        return min(process.idle_since + self._idle_s, process.born_at + MAX_AGE_S)

    def _end_templates(self, now: float) -> None:
        """End unused templates."""
        with self._lock:
            serving = {process.serves[1] for process in (*self._idle, *self._used)}
            places = [place for key, place in self._templates.items() if key not in serving]
        for place in places:
            if not place.lock.acquire(blocking=False):
                continue
            try:
                if place.template is not None and now - place.template.used_at >= TEMPLATE_IDLE_S:
                    place.template.close()
                    place.template = None
            finally:
                place.lock.release()

    def _count_threads(self) -> None:
        """End processes with too many threads, where the kernel does not limit them, until the pool is closed."""
        while not self._ended.wait(COUNT_EVERY_S):
            with self._lock:
                processes = [*self._used, *self._idle]
            for process in processes:
                if "threads" in process.parts:
                    return
                if sandbox.threads(process.pid) > sandbox.MAX_THREADS:
                    process.doom = f"started more than {sandbox.MAX_THREADS} threads"
                    process.end()


@contextmanager
def _answering(process: IOProcess, limits: WaitLimits, requests: MediaRequests) -> Iterator[WaitLimits]:
    """Answer requests for ranges on a separate socket during the block; yield the limits for waits in the block."""
    ours, its = socket.socketpair()
    with closing(MediaAnswers(end_to_process(ours), requests)) as answers:
        with its:
            send_answer(process, limits, READING, "media", descriptor=its.fileno())

        def check() -> None:
            limits.check()
            answers.check()

        yield replace(limits, check=check, excused=lambda: answers.fetching)


@contextmanager
def _conversation(process: IOProcess, limits: WaitLimits) -> Iterator[RemotePrompts]:
    """Begin to draw the prompts of a job, on a socket of their own."""
    ours, its = socket.socketpair()
    with closing(RemotePrompts(process, end_to_process(ours, process.memory), limits)) as prompts:
        with its:
            send_answer(process, limits, READING, "prompts", descriptor=its.fileno())
        yield prompts


class _Place:
    """The place of a model's template. The lock is held to start or end the template."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.template: Template | None = None


def interpreter_for(model: Model) -> Path | None:
    """Return the interpreter of the environment in which a model's processor runs; None for the worker's.

    Processors run in the worker's environment, unless they need their model's library or are installed beside it.
    """
    if model.environment is None or (model.processor not in OF_LIBRARIES and is_installed(model.processor)):
        return None
    return Path(model.environment)


def _allow_files() -> None:
    """Raise this process's limit of open files as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
