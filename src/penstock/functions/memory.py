"""Memory that two processes share: one lends segments to the other, and reuses them when they are returned.

New shared memory costs ten times as much as a copy into existing memory (the kernel clears every page and reclaims
it), so a sender keeps its segments: a message names the segment of its arrays, and carries its descriptor the first
time. The receiver maps each segment once. Its next message lists the segments that none of its arrays uses any more.

All segments are the worker's. An IO process cannot make memory that no limit counts, so the worker grants it the
segments in which it lends, up to a limit, and frees them when the process drops them.
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
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

#: A writable buffer: arrays are made on it without a copy, and it lives as long as they do.
Buffer = Any

#: Bytes of unused segments that a sender keeps.
KEPT_BYTES = 64 * 2**20
#: Number of segments that a receiver maps, at most.
MAX_SEGMENTS = 1024
#: Largest ratio of a segment's size to its contents; a larger segment is kept for other data.
_MAX_WASTE = 4
_STEP_BYTES = 64 * 1024

#: True where memory files can be sealed against shrinking (SIGBUS) while they are read: on Linux. Elsewhere an
#: unlinked file replaces the memory file, and is copied on arrival.
SEALABLE = hasattr(os, "memfd_create")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW if SEALABLE else 0

#: Grants a segment of a size: returns its number and its descriptor, which the caller closes.
Grant = Callable[[int], tuple[int, int]]


class UnsafeMemory(ValueError):
    """The memory does not match the other side's description."""


@dataclass(frozen=True, slots=True)
class MemorySegment:
    """Shared memory of this process."""

    number: int
    descriptor: int
    size_bytes: int
    sealed: bool = SEALABLE


@dataclass(frozen=True, slots=True)
class Loan:
    """A lent segment, and its descriptor if the receiver does not know the segment yet."""

    number: int
    descriptor: int | None


class Lender:
    """The sender's segments. Safe to use from many threads."""

    def __init__(self, *, sealable: bool = SEALABLE) -> None:
        self._sealable = sealable
        self._lock = threading.Lock()
        self._count = 0
        self._lent: dict[int, MemorySegment] = {}
        #: Unused segments; the one returned last is at the end.
        self._free: list[MemorySegment] = []
        self._dropped: list[int] = []

    def lend(self, parts: Sequence[Buffer], size_bytes: int, grant: Grant | None = None) -> Loan:
        """Write the parts one after the other into a segment of `size_bytes` or more, and lend it.

        With `grant` the receiver makes new segments, and needs no descriptor of them.
        """
        known = self._fitting(size_bytes)
        segment = known or self._new(size_bytes, grant)
        _write(segment.descriptor, parts)
        with self._lock:
            self._lent[segment.number] = segment
        return Loan(segment.number, None if grant or (known and self._sealable) else segment.descriptor)

    def take_back(self, numbers: Collection[int]) -> None:
        """Accept returned segments, and drop segments beyond `KEPT_BYTES`."""
        if not numbers:
            return
        with self._lock:
            self._free += [self._lent.pop(number) for number in numbers if number in self._lent]
            self._drop_beyond(KEPT_BYTES)

    def drop_unused(self) -> None:
        """Drop every unused segment."""
        with self._lock:
            self._drop_beyond(0)

    def dropped(self) -> list[int]:
        """Return the segments dropped since the last call: the receiver can unmap them."""
        if not self._dropped:
            return []
        with self._lock:
            dropped, self._dropped = self._dropped, []
            return dropped

    def close(self) -> None:
        """Free everything here; the receiver keeps what was lent to it."""
        with self._lock:
            for segment in (*self._free, *self._lent.values()):
                os.close(segment.descriptor)
            self._free, self._lent = [], {}

    def _drop_beyond(self, kept_bytes: int) -> None:
        while sum(segment.size_bytes for segment in self._free) > kept_bytes:
            dropped = self._free.pop(0)
            os.close(dropped.descriptor)
            self._dropped.append(dropped.number)

    def _fitting(self, size_bytes: int) -> MemorySegment | None:
        with self._lock:
            fitting = [s for s in self._free if size_bytes <= s.size_bytes <= _MAX_WASTE * size_bytes]
            best = min(fitting, key=lambda segment: segment.size_bytes, default=None)
            if best is not None:
                self._free.remove(best)
            return best

    def _new(self, size_bytes: int, grant: Grant | None) -> MemorySegment:
        size_bytes += -size_bytes % _STEP_BYTES
        if grant is not None:
            return MemorySegment(*grant(size_bytes), size_bytes)
        descriptor = _made(size_bytes, sealable=self._sealable)
        with self._lock:
            self._count += 1
            return MemorySegment(self._count, descriptor, size_bytes)


class _Use(weakref.ref[Any]):
    """The use of a segment, until nothing refers to its view any more. It costs a third of a `weakref.finalize`."""

    __slots__ = ("number",)

    number: int


class Borrower:
    """The receiver's view of the other side's segments. It trusts nothing. Safe to use from many threads."""

    def __init__(self, max_bytes: int, *, sealable: bool = SEALABLE) -> None:
        """Map at most `max_bytes` at a time."""
        self._max_bytes = max_bytes
        self._sealable = sealable
        self._lock = threading.Lock()
        self._count = 0
        self._granted: dict[int, MemorySegment] = {}
        #: Segments that the other side dropped and that are still to be freed.
        self._dropped: set[int] = set()
        self._mapped: dict[int, bytearray | mmap.mmap] = {}
        self._used: dict[int, _Use] = {}
        #: Appended to at the end of the last array, in any thread and while any lock is held.
        self._unused: deque[_Use] = deque()
        self._unreported: list[int] = []

    def grant(self, size_bytes: int) -> MemorySegment | None:
        """Make a segment that the other side may fill and lend; None beyond `max_bytes` in all."""
        with self._lock:
            held = sum(segment.size_bytes for segment in self._granted.values())
            if size_bytes <= 0 or held + size_bytes > self._max_bytes or len(self._granted) == MAX_SEGMENTS:
                return None
            descriptor = _made(size_bytes, sealable=self._sealable)
            self._count += 1
            self._granted[self._count] = MemorySegment(self._count, descriptor, size_bytes, self._sealable)
            return self._granted[self._count]

    def borrow(self, number: int, descriptor: int | None, size_bytes: int) -> Buffer:
        """Return the first `size_bytes` of a segment; the segment is returned when nothing refers to them any more.

        Raises `UnsafeMemory` for memory that could end this process when read (wrong size, not sealed), for too much
        memory, and for a segment still in use here. The descriptor may be closed afterwards.
        """
        with self._lock:
            self._collect()
            if number in self._used or (descriptor is not None and number in self._mapped):
                raise UnsafeMemory("a segment of shared memory that is in use")
            if descriptor is None and number in self._granted and number not in self._mapped:
                descriptor = self._granted[number].descriptor
            if descriptor is not None:
                self._mapped[number] = self._map(descriptor)
            mapped = self._mapped.get(number)
            if mapped is None or size_bytes > len(mapped):
                raise UnsafeMemory("a segment of shared memory that is not there, or not so large")
            if not self._sealable:
                del self._mapped[number]
            view = (ctypes.c_ubyte * size_bytes).from_buffer(mapped)
            use = self._used[number] = _Use(view, self._unused.append)
            use.number = number
            return view

    def returned(self) -> list[int]:
        """Return the segments that came out of use since the last call, for the message to their lender."""
        if not (self._unused or self._unreported):
            return []
        with self._lock:
            self._collect()
            unreported, self._unreported = self._unreported, []
            return unreported

    def forget(self, numbers: Collection[int]) -> None:
        """Unmap segments that their lender dropped, as soon as nothing refers to them; free those granted to it.

        Raises `UnsafeMemory` for a granted segment that is in use, or that the lender keeps to fill it again.
        """
        if not (numbers or self._dropped):
            return
        with self._lock:
            self._collect()
            self._dropped.update(numbers)
            for number in list(self._dropped):
                if number in self._used and number in self._granted:
                    raise UnsafeMemory("a dropped segment of shared memory that is in use")
                if self._freed(number):
                    self._dropped.discard(number)

    def close(self) -> None:
        """Unmap everything, as soon as nothing refers to it."""
        with self._lock:
            for granted in self._granted.values():
                os.close(granted.descriptor)
            self._granted.clear()
            self._mapped.clear()

    def _freed(self, number: int) -> bool:
        """Unmap a segment and free it if it was granted; return False while the end of its last array is not over."""
        mapped, granted = self._mapped.get(number), self._granted.get(number)
        if granted is not None:
            if isinstance(mapped, mmap.mmap):
                try:
                    mapped.close()
                except BufferError:
                    return False
            del self._granted[number]
            try:
                _free(granted)
            finally:
                os.close(granted.descriptor)
        self._mapped.pop(number, None)
        return True

    def _collect(self) -> None:
        while self._unused:
            number = self._unused.popleft().number
            self._used.pop(number, None)
            self._unreported.append(number)

    def _map(self, descriptor: int) -> bytearray | mmap.mmap:
        status = os.fstat(descriptor)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode) or not size:
            raise UnsafeMemory("a descriptor that is not of shared memory")
        if len(self._mapped) == MAX_SEGMENTS or size + sum(map(len, self._mapped.values())) > self._max_bytes:
            raise UnsafeMemory("too much shared memory")
        if not self._sealable:
            return _copied(descriptor, size)
        if _seals(descriptor) & _SEALS != _SEALS:
            raise UnsafeMemory("shared memory that is not sealed")
        # Populated: one call instead of a page fault for every 4 kB.
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        return mmap.mmap(descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _made(size_bytes: int, *, sealable: bool) -> int:
    return _sealed(size_bytes) if sealable else _unlinked(size_bytes)


def _free(segment: MemorySegment) -> None:
    """Return a segment's memory to the system, for good: its other descriptors can never fill it again."""
    if not segment.sealed:
        return  # a file on a disk
    try:
        with mmap.mmap(segment.descriptor, segment.size_bytes) as memory:
            memory.madvise(mmap.MADV_REMOVE)
        fcntl.fcntl(segment.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    except OSError as error:
        raise UnsafeMemory("a dropped segment of shared memory that is still mapped") from error
    if os.fstat(segment.descriptor).st_blocks:
        raise UnsafeMemory("a dropped segment of shared memory that was filled again")


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
    os.unlink(path)  # noqa: PTH108  (only the descriptor is needed)
    os.truncate(descriptor, size_bytes)
    return descriptor


def _write(descriptor: int, parts: Sequence[Buffer]) -> None:
    """Write the parts from the file's beginning; one call writes 2 GB at most."""
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
        raise UnsafeMemory("a descriptor that is not of shared memory") from error


def _copied(descriptor: int, size_bytes: int) -> bytearray:
    copy = bytearray(size_bytes)
    if os.preadv(descriptor, [copy], 0) != size_bytes:
        raise UnsafeMemory("shared memory of another size")
    return copy
