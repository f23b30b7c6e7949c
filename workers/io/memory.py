"""Memory that two processes share, lent from one to the other and used again when it comes back.

New shared memory costs ten times as much as a copy into old (the kernel clears every page and takes it back), so a
sender keeps its segments: a message says which one its arrays lie in, and the first time its descriptor comes along.
The receiver maps each once, and tells with its next message which ones no array of its lies in any more.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import stat
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

#: A writable buffer: arrays are made on it without a copy, and it lives as long as they do.
Buffer = Any

#: What a sender keeps of segments that nobody uses.
KEPT_BYTES = 64 * 2**20
#: How many segments a receiver takes, whoever sends them.
MAX_SEGMENTS = 1024
#: A segment that is so much larger than what it is to hold is better used for something else.
_MAX_WASTE = 4
_STEP_BYTES = 64 * 1024

#: Whether files of memory can promise never to shrink under their reader (SIGBUS): on Linux. Elsewhere an unlinked file
#: stands in, and is copied on arrival.
SEALABLE = hasattr(os, "memfd_create")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if SEALABLE else 0


class Unsafe(ValueError):
    """The memory is not what the other side says it is."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory of ours."""

    number: int
    descriptor: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Loan:
    """What to tell the receiver: a segment, and its descriptor if it does not know it yet."""

    number: int
    descriptor: int | None


class Lender:
    """The sender's segments. Safe to use from many threads."""

    def __init__(self, *, sealable: bool = SEALABLE) -> None:
        self._sealable = sealable
        self._lock = threading.Lock()
        self._count = 0
        self._lent: dict[int, Segment] = {}
        #: The one that came back last is at the end.
        self._free: list[Segment] = []
        self._dropped: list[int] = []

    def lend(self, parts: Sequence[Buffer], size_bytes: int) -> Loan:
        """Write the parts one after the other into a segment of `size_bytes` or more, and lend it."""
        known = self._fitting(size_bytes)
        segment = known or self._new(size_bytes)
        _write(segment.descriptor, parts)
        with self._lock:
            self._lent[segment.number] = segment
        return Loan(segment.number, None if known and self._sealable else segment.descriptor)

    def take_back(self, numbers: Iterable[int]) -> None:
        """Take segments back, and drop what is too much."""
        with self._lock:
            self._free += [self._lent.pop(number) for number in numbers if number in self._lent]
            while sum(segment.size_bytes for segment in self._free) > KEPT_BYTES:
                dropped = self._free.pop(0)
                os.close(dropped.descriptor)
                self._dropped.append(dropped.number)

    def dropped(self) -> list[int]:
        """Return the segments that were dropped since the last call: the receiver need not keep them."""
        with self._lock:
            dropped, self._dropped = self._dropped, []
            return dropped

    def close(self) -> None:
        """Free everything here; what was lent lives on at its receiver."""
        with self._lock:
            for segment in (*self._free, *self._lent.values()):
                os.close(segment.descriptor)
            self._free, self._lent = [], {}

    def _fitting(self, size_bytes: int) -> Segment | None:
        with self._lock:
            fitting = [s for s in self._free if size_bytes <= s.size_bytes <= _MAX_WASTE * size_bytes]
            best = min(fitting, key=lambda segment: segment.size_bytes, default=None)
            if best is not None:
                self._free.remove(best)
            return best

    def _new(self, size_bytes: int) -> Segment:
        size_bytes += -size_bytes % _STEP_BYTES
        descriptor = _sealed(size_bytes) if self._sealable else _unlinked(size_bytes)
        with self._lock:
            self._count += 1
            return Segment(self._count, descriptor, size_bytes)


class Borrower:
    """The receiver's view of the other side's segments. It trusts nothing. Safe to use from many threads."""

    def __init__(self, max_bytes: int, *, sealable: bool = SEALABLE) -> None:
        """Map at most so much at a time."""
        self._max_bytes = max_bytes
        self._sealable = sealable
        self._lock = threading.Lock()
        self._mapped: dict[int, bytearray | mmap.mmap] = {}
        self._used: set[int] = set()
        #: Appended to by whoever drops the last reference, in whatever thread and under whatever lock that happens.
        self._unused: deque[int] = deque()
        self._untold: list[int] = []

    def borrow(self, number: int, descriptor: int | None, size_bytes: int) -> Buffer:
        """Return the first `size_bytes` of a segment, which is given back when nothing refers to them any more.

        Raises `Unsafe` for what could end this process when it is read (another size, a hole, memory that is not
        sealed), for too much, and for a segment that is still used here. The descriptor may be closed afterwards.
        """
        with self._lock:
            self._collect()
            if number in self._used or (descriptor is not None and number in self._mapped):
                raise Unsafe("a segment of shared memory that is in use")
            if descriptor is not None:
                self._mapped[number] = self._map(descriptor)
            mapped = self._mapped.get(number)
            if mapped is None or size_bytes > len(mapped):
                raise Unsafe("a segment of shared memory that is not there, or not so large")
            if not self._sealable:
                del self._mapped[number]
            self._used.add(number)
        view = (ctypes.c_ubyte * size_bytes).from_buffer(mapped)
        weakref.finalize(view, self._unused.append, number).atexit = False
        return view

    def returned(self) -> list[int]:
        """Return the segments that came out of use since the last call, to be told to their lender."""
        with self._lock:
            self._collect()
            untold, self._untold = self._untold, []
            return untold

    def forget(self, numbers: Iterable[int]) -> None:
        """Unmap segments that their lender dropped, as soon as nothing refers to them."""
        with self._lock:
            for number in numbers:
                self._mapped.pop(number, None)

    def close(self) -> None:
        """Unmap everything, as soon as nothing refers to it."""
        with self._lock:
            self._mapped.clear()

    def _collect(self) -> None:
        while self._unused:
            number = self._unused.popleft()
            self._used.discard(number)
            self._untold.append(number)

    def _map(self, descriptor: int) -> bytearray | mmap.mmap:
        status = os.fstat(descriptor)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode) or not size:
            raise Unsafe("a descriptor that is not of shared memory")
        if len(self._mapped) == MAX_SEGMENTS or size + sum(map(len, self._mapped.values())) > self._max_bytes:
            raise Unsafe("too much shared memory")
        if not self._sealable:
            return _copied(descriptor, size)
        if _seals(descriptor) & _SEALS != _SEALS or status.st_blocks * 512 < size:
            raise Unsafe("shared memory that is not sealed or has holes")
        # Populated: one call instead of a page fault for every 4 kB.
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        return mmap.mmap(descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _sealed(size_bytes: int) -> int:
    descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unlinked(size_bytes: int) -> int:
    descriptor, path = tempfile.mkstemp(prefix="penstock-")
    os.unlink(path)  # noqa: PTH108  (a descriptor is all that is wanted of it)
    os.truncate(descriptor, size_bytes)
    return descriptor


def _write(descriptor: int, parts: Sequence[Buffer]) -> None:
    """Write the parts from the file's beginning; one call takes 2 GB at most."""
    left, at = [memoryview(part).cast("B") for part in parts], 0
    while left:
        count = os.pwritev(descriptor, left, at)
        at += count
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if left:
            left[0] = left[0][count:]


def _seals(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise Unsafe("a descriptor that is not of shared memory") from error


def _copied(descriptor: int, size_bytes: int) -> bytearray:
    copy = bytearray(size_bytes)
    if os.preadv(descriptor, [copy], 0) != size_bytes:
        raise Unsafe("shared memory of another size")
    return copy
