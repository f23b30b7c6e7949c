"""The children of a fork server or template: forked on request, and killed with everything that they started."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import structlog

from penstock.workers.io import sandbox

#: Seconds that the kernel has to end a killed process; then the process is left.
END_S = 5.0

log = structlog.get_logger(__name__)


class Children:
    """The forks of this process, which has one thread."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def fork(self, run: Callable[[], object]) -> int:
        """Run a function in a fork and return the fork's process id."""
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            _run(run, parent)
        self._pids.add(pid)
        return pid

    def end(self, pid: int, grace_s: float = 0.0) -> tuple[int | None, bool]:
        """End a fork, by force after `grace_s`; return its wait status, and True if it had to be killed."""
        if pid not in self._pids:
            return None, False
        self._pids.remove(pid)
        killed = not _ends(pid, grace_s)
        _kill(pid)  # before waiting for it: until then no other process can get its number
        status = os.waitpid(pid, 0)[1] if _ends(pid, END_S) else None
        self._end_orphans()
        return status, killed

    def end_all(self) -> None:
        """Kill every fork."""
        for pid in list(self._pids):
            self.end(pid)

    def _end_orphans(self) -> None:
        """Kill descendants of forks that entered sessions of their own: this process has adopted them."""
        ends = time.monotonic() + END_S
        while (orphans := sandbox.children() - self._pids) and time.monotonic() < ends:  # each may leave others
            for pid in orphans:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                if _ends(pid, END_S):
                    os.waitpid(pid, 0)


def _run(run: Callable[[], object], parent: int) -> NoReturn:
    try:
        os.setsid()  # a group of its own: its children end with it
        sandbox.end_with(parent)
        run()
    except BaseException:
        log.exception("io.crashed")
        os._exit(1)
    os._exit(0)


def _kill(pid: int) -> None:
    """Kill a fork and everything in its process group."""
    for kill in (os.kill, os.killpg):
        with suppress(ProcessLookupError, PermissionError):  # it has ended, or has no group yet, or is alone in it
            kill(pid, signal.SIGKILL)


def _ends(pid: int, timeout_s: float) -> bool:
    """Return True when a child ends within `timeout_s`; its status can still be read."""
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
        return True
    if not timeout_s:
        return False
    if hasattr(os, "pidfd_open"):
        descriptor = os.pidfd_open(pid)
        try:
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            return bool(waiting.poll(timeout_s * 1000))
        finally:
            os.close(descriptor)
    ends = time.monotonic() + timeout_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= ends:
            return False
        time.sleep(0.001)
    return True
