"""The ends of the socket pairs between a worker and its IO processes, and the errors of their messages."""

from __future__ import annotations

import socket

from penstock.errors import ProcessorFailed
from penstock.functions.wire import Memory, TooMuch, Unsendable, Wire, WireError


def end_to_process(end: socket.socket, memory: Memory | None = None) -> Wire:
    """Return the worker's end, which trusts nothing; without `memory` its messages hold small arrays only."""
    return Wire(end, memory or Memory(0), flat=True, ticks=True)


def end_to_worker(descriptor: int, memory_bytes: int = 0) -> Wire:
    """Return the end of a fork server, template or IO process, which trusts the worker and takes descriptors."""
    return Wire(socket.socket(fileno=descriptor), Memory(memory_bytes), flat=True, takes_descriptors=True)


def failure(error: WireError | Unsendable) -> ProcessorFailed:
    """Return the error of a job for a message that cannot be sent, or that breaks the protocol."""
    match error:
        case Unsendable():
            return ProcessorFailed(str(error))
        case TooMuch(max_bytes=limit):
            return ProcessorFailed(
                f"the processor's prompts on their way exceed {limit / 2**20:.0f} MiB (io_memory_bytes)"
            )
        case _:
            return ProcessorFailed(f"the processor's process sent an invalid message ({error})")
