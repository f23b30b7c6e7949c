"""The fork server: a process that has imported what processors need, and forks IO processes when it is asked.

`python -m penstock.workers.io.server <descriptor> <log descriptor>`, started by `forks.py`. It has one
thread and imports nothing but our own processors: a plugin that crashes when it is imported does so in a fork. It ends
with its worker, and its forks end with it.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import EntryPoint
from typing import Any

import structlog

from penstock.log import configure, log_uncaught
from penstock.processors.registry import GROUP, Registry
from penstock.workers.io import sandbox
from penstock.workers.io.channel import Channel, Gone
from penstock.workers.io.worker import IOWorker

#: What nearly every processor imports.
PRELOAD = ("numpy", "PIL.Image", "penstock.processors.geo.gdal")
#: How long the kernel may take to end a killed process before we give up on it.
END_S = 5.0

log = structlog.get_logger(__name__)


def main(descriptor: int, log_descriptor: int) -> None:
    """Serve the worker at the other end of a socket until it goes; our own log goes past what processors may print."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the worker decides when: it may have jobs to drain
    faulthandler.enable()  # a crash leaves the Python side of its stack in the log
    worker = Channel(socket.socket(fileno=descriptor), patient=True)
    config = worker.receive().header
    configure(config["log_level"], stream=os.fdopen(log_descriptor, "w", buffering=1))
    log_uncaught()
    network = sandbox.leave_network()
    sandbox.give_up_rights()
    sandbox.adopt()
    registry = _registry(config["processors"])
    preload([*PRELOAD, *_own_modules(registry), *config["preload"]])
    gc.collect()
    gc.freeze()  # a collection in a fork would touch, and so copy, every page
    server = Server(worker, registry, int(config["memory_bytes"]))
    try:
        worker.send("ready", network=network)
        server.serve()
    except Gone:
        server.end_all()


class Server:
    """Forks IO processes and tells how they ended."""

    def __init__(self, worker: Channel, registry: Registry, memory_bytes: int) -> None:
        self._worker = worker
        self._registry = registry
        self._memory_bytes = memory_bytes
        self._pids: set[int] = set()

    def serve(self) -> None:
        """Answer requests until `Gone`."""
        while True:
            message = self._worker.receive()
            match message.kind, message.descriptor:
                case "fork", int(descriptor):
                    self._worker.send("forked", pid=self._fork(descriptor))
                case "end", _:
                    status, killed = self._end(message.header["pid"], message.header["grace_s"])
                    self._worker.send("ended", status=status, killed=killed)

    def end_all(self) -> None:
        """Kill every fork."""
        for pid in list(self._pids):
            self._end(pid)

    def _fork(self, descriptor: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            os.close(descriptor)
            self._pids.add(pid)
            return pid
        try:
            self._worker.close()
            os.setsid()  # a group of its own: what it starts ends with it, and what it kills is itself
            sandbox.end_with(parent)
            IOWorker(descriptor, self._registry, self._memory_bytes).work()
        except BaseException:
            log.exception("io.broken")
            os._exit(1)
        os._exit(0)

    def _end(self, pid: int, grace_s: float = 0.0) -> tuple[int | None, bool]:
        """Return a fork's wait status, and whether it had to be killed for it, after so much grace."""
        if pid not in self._pids:
            return None, False
        self._pids.remove(pid)
        killed = not _ends(pid, grace_s)
        _kill(pid)  # before it is waited for: until then nobody else can have its number
        status = os.waitpid(pid, 0)[1] if _ends(pid, END_S) else None
        self._end_orphans()
        return status, killed

    def _end_orphans(self) -> None:
        """Kill what forks left that went into sessions of their own: it has become ours."""
        for pid in sandbox.children() - self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if _ends(pid, END_S):
                os.waitpid(pid, 0)


def _kill(pid: int) -> None:
    """Kill a fork and all that it has started in its session's group."""
    for kill in (os.kill, os.killpg):
        with suppress(
            ProcessLookupError, PermissionError
        ):  # it has ended, or has no group yet, or nobody else is in it
            kill(pid, signal.SIGKILL)


def _ends(pid: int, patience_s: float) -> bool:
    """Whether a child ends in time; it is not waited for."""
    ends = time.monotonic() + patience_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= ends:
            return False
        time.sleep(0.001)
    return True


def preload(modules: Iterable[str]) -> None:
    """Import modules, so that forks share their memory; one that cannot be imported is its processor's problem."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            log.info("io.not_preloaded", module=module, error=repr(error))


def _registry(more: dict[str, str]) -> Registry:
    registry = Registry.found()
    for name, value in more.items():
        registry = registry.register(name, EntryPoint(name, value, GROUP))
    return registry


def _own_modules(registry: Registry) -> list[str]:
    points: list[Any] = [point for point in registry.processors.values() if isinstance(point, EntryPoint)]
    return [point.module for point in points if point.module.startswith("penstock.")]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
