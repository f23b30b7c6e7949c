"""Group syncs of a local store: many puts at the same time share one sync of the disk.

A few puts sync their own files. The first of the others becomes the leader of a group: it waits for the sync under way,
then syncs for all who came meanwhile. One `syncfs` covers all files and folders of a group. Linux reports failed writes
by `syncfs` since 5.17, and it writes whatever is dirty on the file system. So a group is synced file by file on another
kernel or file system, and while much is dirty, such as the scratch files of a raster job.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

#: File systems whose `syncfs` is a full barrier at the price of an `fsync`, and whose `fsync` also writes a file that
#: has no name.
FILE_SYSTEMS = frozenset({"ext4", "xfs"})
LEAST_KERNEL = (5, 17)
#: Most dirty memory of the machine, in kB, with which a `syncfs` is quick: half a second of a slow disk.
MOST_DIRTY_KB = 64 << 10
#: Puts that sync their own files at once; the others wait and share.
MOST_ALONE = 4
#: Files and folders from which on one `syncfs` costs less than an fsync of each.
LEAST_GROUP = 8
#: Files synced beside each other where there is no `syncfs`.
AT_A_TIME = 16

_MEMORY = Path("/proc/meminfo")
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, order=True)
class Witness:
    """A file that was opened before a put wrote anything: `syncfs` on it reports every write that failed since."""

    opened_ns: int
    descriptor: int


@dataclass(slots=True)
class _Group:
    """The calls that share a sync, and the files (descriptors) and folders (paths) of all."""

    targets: list[int | str] = field(default_factory=list)
    witnesses: list[Witness] = field(default_factory=list)
    led: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    error: OSError | None = None


class GroupSyncs:
    """Syncs files and folders on the file system of `root`."""

    def __init__(
        self,
        root: Path,
        *,
        is_quick: Callable[[], bool] | None = None,
        sync_all: Callable[[int], None] | None = None,
    ) -> None:
        """`is_quick` returns True while `sync_all`, by default `syncfs`, may replace an fsync of each file."""
        self._root = root
        self._is_quick = is_quick or self._has_quick_syncfs
        self._sync_all = sync_all or syncfs
        self._has_syncfs: bool | None = None
        #: Guards the next group.
        self._lock = threading.Lock()
        self._next = _Group()
        #: Held during a sync.
        self._turn = threading.Lock()
        #: Held by the puts that sync alone: a disk flushes a few at once, and each returns as soon as it can.
        self._alone = threading.BoundedSemaphore(MOST_ALONE)
        self._pool: ThreadPoolExecutor | None = None

    def sync(self, targets: Sequence[int | str], witness: Witness) -> None:
        """Return once the files (descriptors) and folders (paths) are on the disk, as far as they were written.

        Raises an `OSError` if a write of the group failed. A folder that is gone is no error.
        """
        targets = list(dict.fromkeys(targets))  # puts of one tenant share the folder of its jobs
        if len(targets) < LEAST_GROUP and self._alone.acquire(blocking=False):
            try:
                return _fsync_all(targets)
            finally:
                self._alone.release()
        with self._lock:
            group, leads = self._next, not self._next.witnesses
            group.targets += targets
            group.witnesses.append(witness)
        if leads:
            self._lead()
        group.done.wait()
        if group.error is not None:
            raise OSError(group.error.errno, group.error.strerror) from group.error
        return None

    def _lead(self) -> None:
        with self._turn:
            with self._lock:
                group, self._next = self._next, _Group()
            try:
                self._run(group)
            except OSError as error:
                group.error = error
            except BaseException:
                group.error = OSError(errno.EINTR, "the sync was interrupted")
                raise
            finally:
                group.done.set()

    def _run(self, group: _Group) -> None:
        targets = list(dict.fromkeys(group.targets))
        if len(targets) < LEAST_GROUP:
            _fsync_all(targets)
        elif self._is_quick():
            self._sync_all(min(group.witnesses).descriptor)
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="fsync")
            list(self._pool.map(_fsync, targets))

    def _has_quick_syncfs(self) -> bool:
        if self._has_syncfs is None:
            self._has_syncfs = has_syncfs(self._root)
        return self._has_syncfs and _dirty_kb() <= MOST_DIRTY_KB


def has_syncfs(root: Path) -> bool:
    """Return True where one `syncfs` is as good as an fsync of each file of a group."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    if version is None or tuple(map(int, version.groups())) < LEAST_KERNEL:
        return False
    return file_system(root) in FILE_SYSTEMS and hasattr(_LIBC, "syncfs")


def syncfs(descriptor: int) -> None:
    """Write all that is dirty on the file system of an open file, and wait for the disk; raise its `OSError`."""
    if _LIBC.syncfs(descriptor):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _fsync_all(targets: Sequence[int | str]) -> None:
    for target in targets:
        _fsync(target)


def _fsync(target: int | str) -> None:
    if isinstance(target, int):
        return os.fsync(target)
    with suppress(FileNotFoundError):  # somebody has deleted the object, and its empty folder, meanwhile
        descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return None


def file_system(folder: Path) -> str | None:
    """Return the type of a folder's file system; None where the kernel does not say."""
    with suppress(OSError):
        device = folder.stat().st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            if left.split()[2] == wanted:
                return right.split()[0]
    return None


def _dirty_kb() -> int:
    """Return the memory of the machine that waits to be written to disks, in kB."""
    try:
        with _MEMORY.open("rb", buffering=0) as file:
            found = re.search(rb"Dirty: +(\d+) kB", file.read(4096))
    except OSError:
        found = None
    return int(found[1]) if found else MOST_DIRTY_KB + 1
