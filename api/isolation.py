"""Isolation: long work on one request, in a process that can be ended.

A thread would hold the interpreter, which delays all other requests, and could not be ended. The processes start with
the first large request and are used again. `docs/decisions/0040-large-bodies.md` gives the reasons and the limits.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from penstock.api.admission.concurrency import ConcurrencyLimit
from penstock.cores import cores
from penstock.errors import Overloaded, PayloadTooLarge

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Seconds of processor time for a piece of work, and for each started megabyte of its data.
CPU_S = 10.0
#: Seconds that a piece of work may take in all, as a multiple of its processor time.
DEADLINE_FACTOR = 4
#: Waiting pieces of work of one tenant. Further ones are rejected with `Retry-After`.
MAX_WAITING = 50
#: Seconds that the first of a tenant's work may wait before further work is rejected.
LATE_S = 30.0
#: Nice value of the processes: the API, which answers everybody, comes first.
NICENESS = 10


class Isolation:
    """A few processes that tenants use in turns."""

    def __init__(
        self, processes: int = max(1, cores() // 2), cpu_s: float = CPU_S, deadline_factor: float = DEADLINE_FACTOR
    ) -> None:
        self._turns = ConcurrencyLimit(processes, MAX_WAITING, late_s=LATE_S)
        self._limiter = CapacityLimiter(processes)
        self._cpu_s = cpu_s
        self._deadline_factor = deadline_factor

    def in_thread(self, tenant: str) -> ThreadIsolation:
        """Return the isolation of a tenant's work for a thread of the running event loop."""
        return ThreadIsolation(self, asyncio.get_running_loop(), tenant)

    async def run(self, tenant: str, size_bytes: int, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return the result of pure work on a tenant's `size_bytes`, or raise its error. All must be picklable.

        Cancellation ends the process. Raises `PayloadTooLarge` where the work needs too much processor time, and
        `Overloaded` where too much of the tenant's work waits or the processor is too busy.
        """
        cpu_s = self._cpu_s * (1 + size_bytes // 1_000_000)
        async with self._turns.acquire(tenant):
            begun_s = time.monotonic()
            try:
                async with asyncio.timeout(self._deadline_factor * cpu_s):
                    return await to_process.run_sync(
                        _bounded, cpu_s, work, args, cancellable=True, limiter=self._limiter
                    )
            except TimeoutError as error:
                raise Overloaded("the service is too busy to validate this body; try again") from error
            except BrokenWorkerProcess as error:
                if time.monotonic() - begun_s < cpu_s:
                    raise Overloaded("the process that validates this body ended; try again") from error
                raise PayloadTooLarge(f"validating this body takes over {cpu_s:g} s; send less at a time") from error


@dataclass(frozen=True, slots=True)
class ThreadIsolation:
    """Isolation for a tenant's work in a thread of the event loop."""

    isolation: Isolation
    loop: asyncio.AbstractEventLoop
    tenant: str

    def run(self, size_bytes: int, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return the result of the work, as `Isolation.run` does; block the thread meanwhile."""
        isolated = self.isolation.run(self.tenant, size_bytes, work, *args)
        return asyncio.run_coroutine_threadsafe(isolated, self.loop).result()


def _bounded(cpu_s: float, work: Callable[[*Ts], T], args: tuple[*Ts]) -> T:
    """Do the work in this process, which the kernel ends after `cpu_s` more seconds of processor time."""
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + cpu_s) + 1, hard))
    try:
        return work(*args)
    finally:  # the next work's arguments are read before its own limit is set
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
