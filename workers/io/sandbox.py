"""The sandbox of an IO process: only its own files, no network, no processes, limited memory, no way into others.

A decoder that was taken over runs code of a stranger here. `SECURITY.md` lists what it tries and what contains it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock import cores
from penstock.functions.importable import fitted
from penstock.workers.io import landlock, system_calls

MAX_FILES = 1024
#: Threads of an IO process: several libraries start one for each core.
MAX_THREADS = max(512, 4 * (os.cpu_count() or 1))
#: The parts of the sandbox that a kernel or container may lack, and what is missing then.
PARTS = {
    "network": "no namespace for the network",
    "files": "no Landlock: processors can read the files of the worker's user",
    "system calls": "no seccomp filter: processors can start processes, which end with theirs, and serve one job only",
    "threads": "no limit of threads by the kernel (as root, or without user namespaces): the worker counts them",
}
#: Constants of prctl(2), unshare(2) and capget(2).
_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 1, 3, 4
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_CAPABILITY_VERSION_3 = 0x20080522
_PAGE_BYTES = resource.getpagesize()
#: Descriptions of the machine that libraries read.
_MACHINE = (
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/version",
    "/proc/filesystems", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/osrelease", "/sys/devices/system",
    "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
#: Variables that a processor's libraries may need. All others are removed and so cannot leak.
_ENVIRONMENT = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "GDAL_DATA", "PROJ_DATA", "PROJ_LIB",
)  # fmt: skip
#: One job, one core: threads of the libraries would only compete for it. Arenas are address space, which is limited.
#: Memory of one image or tile is kept for the next: returning it each time cost a third of a JPEG's decoding.
_TUNED = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    # An IO process counts the cores as the worker does.
    cores.VARIABLE: str(cores.cores()),
    # A thread that starts when pyarrow is imported: forks could not share a processor with it (`pool.py`).
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # But a GPU waits for a scene's blocks to be decoded: four threads on 16 cores saved a sixth of a scene's time.
    "GDAL_NUM_THREADS": str(max(1, cores.cores() // 4)),
    "PYTHONUNBUFFERED": "1",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20),
}


def environment(python: Path = Path(sys.executable)) -> dict[str, str]:
    """Return the environment of IO processes that an interpreter runs: no secrets, no settings, no home."""
    return fitted({name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | _TUNED, python)


@dataclass(frozen=True, slots=True)
class Confinement:
    """The limits of an IO process."""

    #: Bytes that it may allocate beyond its initial memory.
    memory_bytes: int
    #: Bytes of one file that it writes.
    file_bytes: int
    #: Files and folders that it may read, and folders that it may change.
    reads: tuple[Path | str, ...]
    writes: tuple[Path | str, ...]
    #: The parts of `PARTS` that there are.
    parts: frozenset[str]
    #: True if it may start processes.
    programs: bool = False

    def enter(self) -> None:
        """Confine this process, which has one thread, for the rest of its life. Raises `OSError` if a part fails."""
        _set_dumpable(True)  # else the next files in /proc are not writable
        limit(self.memory_bytes, self.file_bytes)
        if "threads" in self.parts:
            _unshare(_CLONE_NEWUSER)  # the kernel counts the threads of a user in each namespace by themselves
            _lower(resource.RLIMIT_NPROC, MAX_THREADS)
        give_up_rights()
        _set_dumpable(False)
        if "files" in self.parts:
            landlock.restrict((*self.reads, *_own_entries()), (*self.writes, *_DEVICES), execute=self.programs)
        if "system calls" in self.parts:
            system_calls.deny(programs=self.programs)


def survey(network: str) -> frozenset[str]:
    """Return the parts of `PARTS` that work here; `network` is what `leave_network` returned. Tries each in a fork."""
    linux = sys.platform == "linux"
    there = {
        "network": network == "namespace",
        "files": landlock.version() > 0 and _works(_restrict),
        "system calls": linux and system_calls.available() and _works(_deny),
        "threads": linux and os.getuid() != 0 and _counts_threads_by_namespace() and _can_enter(_CLONE_NEWUSER),
    }
    return frozenset(part for part, found in there.items() if found)


def missing(parts: Iterable[str]) -> list[str]:
    """Return sentences about the parts that are not there."""
    return [sentence for part, sentence in PARTS.items() if part not in frozenset(parts)]


def leave_network() -> str:
    """Cut this process and its children off from every network; return how: `namespace` or `audit hook`.

    A namespace also keeps the process from reading other processes' memory and environment. If the kernel or the
    container refuses a namespace, Python's own sockets are refused instead; C code can then still reach the network.
    """
    if sys.platform == "linux" and (_enter(_CLONE_NEWUSER | _CLONE_NEWNET) or _enter(_CLONE_NEWNET)):
        return "namespace"
    sys.addaudithook(refuse_addresses)
    return "audit hook"


def give_up_rights() -> None:
    """Forbid new privileges to this process and its children, and drop those that the namespace granted."""
    if sys.platform == "linux":
        libc = landlock.libc()
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
        libc.capset(header, nothing)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit at once if the parent has ended already."""
    if sys.platform == "linux":
        landlock.libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _set_dumpable(dumpable: bool) -> None:
    """Set if processes of the same user may look into this one."""
    if sys.platform == "linux":
        landlock.libc().prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0)


def hide() -> None:
    """Refuse other processes of the same user a look into this one."""
    _set_dumpable(False)


def _own_entries() -> list[str]:
    """Return what a process reads about itself and the machine in /proc and /sys."""
    # Open for ever: if the kernel dropped the folder from its caches, its next one would be another file.
    os.open("/proc/self", os.O_PATH | os.O_CLOEXEC)
    return ["/proc/self", *_MACHINE]


def adopt() -> None:
    """Adopt every descendant of this process when its own parent ends."""
    if sys.platform == "linux":
        landlock.libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Return this process's children, adopted ones too; none where the system does not list them. For one thread."""
    with suppress(OSError):  # not on Linux
        return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_bytes().split()))
    return set()


def limit(memory_bytes: int, file_bytes: int = resource.RLIM_INFINITY) -> None:
    """Limit this process's memory growth and files, disable core dumps, and make it the OOM killer's first choice.

    The process is made dumpable for a moment: the kernel refuses the OOM setting to an ordinary user's process that is
    not dumpable. Raises `OSError` where the kernel refuses the setting anyway.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_NOFILE, MAX_FILES)
    if file_bytes != resource.RLIM_INFINITY:
        _lower(resource.RLIMIT_FSIZE, file_bytes)
    if (standing := _address_space_bytes()) is not None:
        _lower(resource.RLIMIT_AS, standing + memory_bytes)
    if sys.platform == "linux":
        dumpable = landlock.libc().prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 1
        _set_dumpable(True)
        try:
            Path("/proc/self/oom_score_adj").write_bytes(b"1000")
        finally:
            _set_dumpable(dumpable)


def trim() -> None:
    """Return unused memory to the system."""
    gc.collect()
    with suppress(AttributeError):  # of glibc
        landlock.libc().malloc_trim(0)


def threads(pid: int | None = None) -> int:
    """Return the number of threads of a process, by default this one; 1 where unknown."""
    with suppress(OSError):  # not on Linux, or it has ended
        stat = Path(f"/proc/{pid or 'self'}/stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[17])
    return 1


def private_bytes() -> int:
    """Return the bytes of memory that this process shares with no file and no other process; 0 where unknown."""
    with suppress(OSError):
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_bytes().split())
        return (resident - shared) * _PAGE_BYTES
    return 0


def _enter(spaces: int) -> bool:
    """Enter new namespaces, as the same user and group; return False if it is refused."""
    if not _can_enter(spaces):
        return False
    _unshare(spaces)
    return True


def _can_enter(spaces: int) -> bool:
    """Return True if this process can enter new namespaces.

    Where AppArmor guards user namespaces, entering one succeeds, but mapping the user fails.
    """
    return _works(partial(_unshare, spaces))


def _works(act: Callable[[], object]) -> bool:
    """Return True if a fork can do this."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _restrict() -> None:
    give_up_rights()
    landlock.restrict((), ())


def _deny() -> None:
    give_up_rights()
    system_calls.deny()


def _counts_threads_by_namespace() -> bool:
    """Return True if RLIMIT_NPROC is a limit of a user namespace (Linux 5.14), not of the user's whole machine."""
    major, minor, *_ = map(int, re.findall(r"\d+", os.uname().release))
    return (major, minor) >= (5, 14)


def _unshare(spaces: int) -> None:
    user, group = os.geteuid(), os.getegid()
    if landlock.libc().unshare(spaces) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if spaces & _CLONE_NEWUSER:
        with suppress(FileNotFoundError):  # kernels before 3.19 do not ask for it
            Path("/proc/self/setgroups").write_bytes(b"deny")
        Path("/proc/self/uid_map").write_bytes(f"{user} {user} 1".encode())
        Path("/proc/self/gid_map").write_bytes(f"{group} {group} 1".encode())


def refuse_addresses(event: str, args: tuple[Any, ...]) -> None:
    """Refuse every call that names a host. Unix sockets remain: their addresses are no tuples."""
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        raise PermissionError("processors have no network")
    if event.startswith("socket.") and any(isinstance(arg, tuple) for arg in args):
        raise PermissionError("processors have no network")


def _lower(which: int, wanted: int) -> None:
    _, hard = resource.getrlimit(which)
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(which, (value, value))


def _address_space_bytes() -> int | None:
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_bytes().split()[0]) * _PAGE_BYTES
    return None
