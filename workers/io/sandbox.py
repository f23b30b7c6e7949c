"""What an IO process may not do: reach a network, take the machine's memory, gain rights, outlive its parent.

Against accidents, and against the simplest abuse. It runs as the worker's user and reads what that may read: whoever
must keep a determined attacker in needs containers around the workers too.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_FILES = 1024
#: Of prctl(2), unshare(2) and capget(2).
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_CAPABILITY_VERSION_3 = 0x20080522
#: Variables that a processor's libraries may need. Everything else stays with the worker and so cannot leak.
_ENVIRONMENT = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "GDAL_DATA", "PROJ_DATA", "PROJ_LIB",
)  # fmt: skip
#: One job, one core: threads of the libraries would only fight for it. Arenas are address space, which is limited. What
#: a picture or a tile took is kept for the next one: to give it back each time cost a third of a JPEG's decoding.
_TUNED = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
    # But a GPU waits for a scene's blocks to be decoded: four threads of 16 cores took a sixth off a scene's time.
    "GDAL_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 4)),
    "PYTHONUNBUFFERED": "1",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20),
}


def environment() -> dict[str, str]:
    """Return the variables that IO processes get of this process's own: no secrets, no settings, no home."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | _TUNED


def leave_network() -> str:
    """Cut this process and its children off from every network; return how: `namespace` or `audit hook`.

    A namespace of its own also keeps it from reading other processes' memory and environment. Where the kernel or the
    container refuses one, Python's own sockets are refused instead, and what is written in C is not stopped.
    """
    if sys.platform == "linux" and (_enter(_CLONE_NEWUSER | _CLONE_NEWNET) or _enter(_CLONE_NEWNET)):
        return "namespace"
    sys.addaudithook(refuse_addresses)
    return "audit hook"


def give_up_rights() -> None:
    """Have this process and its children never gain a right, and drop those that its namespace gave it."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
        libc.capset(header, nothing)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; leave at once if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def adopt() -> None:
    """Have whatever descends from this process become its child when its own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Return this process's children, adopted ones too; none where nobody tells. It has one thread."""
    with suppress(OSError):  # not on Linux
        return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    return set()


def limit(memory_bytes: int) -> None:
    """Let this process grow by so much memory from where it stands, dump no core, and be the first to go."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_NOFILE, MAX_FILES)
    if (standing := _address_space_bytes()) is not None:
        _lower(resource.RLIMIT_AS, standing + memory_bytes)
    with suppress(OSError):  # not on Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def trim() -> None:
    """Give the memory back that nothing uses."""
    gc.collect()
    with suppress(AttributeError):  # of glibc
        ctypes.CDLL(None).malloc_trim(0)


def private_bytes() -> int:
    """Return the memory that this process shares with no file and no other process' memory; 0 where nobody tells."""
    with suppress(OSError):
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
        return (resident - shared) * resource.getpagesize()
    return 0


def _enter(spaces: int) -> bool:
    """Enter new namespaces, as the same user and group, if that can be done to the end: a fork tries first.

    Where AppArmor guards user namespaces one gets in and is nobody there.
    """
    pid = os.fork()
    if pid == 0:
        try:
            _unshare(spaces)
        except BaseException:
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1] != 0:
        return False
    _unshare(spaces)
    return True


def _unshare(spaces: int) -> None:
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(spaces) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if spaces & _CLONE_NEWUSER:
        with suppress(FileNotFoundError):  # kernels before 3.19 do not ask for it
            Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def refuse_addresses(event: str, args: tuple[Any, ...]) -> None:
    """Refuse whatever names a host; Unix sockets have no tuples as addresses."""
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
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return None
