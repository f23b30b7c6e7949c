"""The system calls that an IO process cannot use: a seccomp filter, made by libseccomp.

No processes: an IO process starts threads, never processes, so nothing can outlive its job and the limits of one
process are the limits of the job. No signals to others, no sockets, no memory outside of the process's own limit.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from contextlib import suppress
from functools import cache
from typing import Any

from penstock.workers.io import landlock

_CLONE_THREAD, _CLONE_NEW_USER = 0x00010000, 0x10000000
#: Constants of prctl(2), and one step of a filter: operation, two jumps, value.
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_STEP, _VALUE = struct.Struct("=HBBI"), struct.Struct("=I")
#: The process's number in the filter before there is a process; no process has it.
_SELF = 0x7ACE0FF5
#: No reach into other processes and their memory.
_OTHERS = (
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp", "pidfd_open",
    "pidfd_getfd", "pidfd_send_signal", "migrate_pages", "move_pages", "tkill", "get_robust_list",
)  # fmt: skip
#: No processes and programs; `clone` without a thread and `clone3` are added below.
_PROCESSES = ("fork", "vfork", "execve", "execveat")
#: No other view of files, users and namespaces.
_VIEWS = (
    "mount", "umount", "umount2", "mount_setattr", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick",
    "pivot_root", "chroot", "setns", "unshare", "open_by_handle_at", "fanotify_init", "quotactl", "quotactl_fd",
)  # fmt: skip
#: No kernel interfaces with a history of faults, and none for administrators.
_KERNEL = (
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup",
    "keyctl", "add_key", "request_key", "init_module", "finit_module", "delete_module", "kexec_load",
    "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "syslog", "iopl", "ioperm", "modify_ldt", "personality",
    "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "vhangup",
    "lookup_dcookie", "nfsservctl", "uselib", "ustat", "sysfs", "_sysctl",
)  # fmt: skip
#: No memory that the limit of the address space does not count, and none that outlives the process.
_MEMORY = ("memfd_create", "memfd_secret", "shmget", "shmat", "shmctl", "msgget", "semget", "mq_open")
#: No sockets but those that it was given, and pairs.
_SOCKETS = ("socket", "connect", "bind", "listen")
#: Signals, which the process may send to itself alone, by its number.
_SIGNALS = ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
#: Calls that change a process, by the place of its number among the arguments; 0, the caller itself, is allowed.
_CHANGES = {
    "prlimit64": 0, "sched_setaffinity": 0, "sched_setscheduler": 0, "sched_setparam": 0, "sched_setattr": 0,
    "setpgid": 0, "setpriority": 1, "ioprio_set": 1,
}  # fmt: skip


def available() -> bool:
    """Return True where libseccomp can make the filter; if the kernel accepts it, only `deny` shows."""
    if _library() is None:
        return False
    try:
        return bool(_program(programs=False))
    except (OSError, ValueError):
        return False


def prepare(*, programs: bool = False) -> None:
    """Make the filter for the forks of this process: `deny` then takes a tenth of the time."""
    _places_of_self(programs=programs)


def deny(*, programs: bool = False) -> None:
    """Refuse the listed system calls to this process, with `PermissionError`, for the rest of its life.

    With `programs` it may start processes and send them signals; only Landlock keeps signals from others then.
    Privileges must have been given up (`no_new_privs`). Raises `OSError` if the kernel refuses the filter.
    """
    program = bytearray(_program(programs=programs))
    for place in _places_of_self(programs=programs):
        _VALUE.pack_into(program, place, os.getpid())
    count = len(program) // _STEP.size
    header = _Program(count, ctypes.addressof(ctypes.c_char.from_buffer(program)))
    if landlock.libc().prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(header), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


@cache
def _places_of_self(*, programs: bool) -> tuple[int, ...]:
    """Return the offsets of the values in the program that are the process's number."""
    steps = enumerate(_STEP.iter_unpack(_program(programs=programs)))
    return tuple(number * _STEP.size + _STEP.size - _VALUE.size for number, step in steps if step[-1] == _SELF)


@cache
def _program(*, programs: bool) -> bytes:
    """Return the filter as the kernel's program, with `_SELF` for the process's number."""
    library = _library()
    assert library is not None  # noqa: S101  (callers check `available`)
    with os.fdopen(os.memfd_create("filter"), "w+b") as file:
        _rules(library, programs=programs).export_bpf(file)
        file.seek(0)
        return file.read()


def _rules(library: Any, *, programs: bool) -> Any:
    rules = library.SyscallFilter(library.ALLOW)
    refused = library.ERRNO(errno.EPERM)
    for name in (*_OTHERS, *_VIEWS, *_KERNEL, *_MEMORY):
        _add(library, rules, refused, name)
    for name in _SOCKETS:
        _add(library, rules, library.ERRNO(errno.EACCES), name)
    _add(library, rules, library.ERRNO(errno.ENOSYS), "clone3")  # its flags cannot be seen here: libc uses clone then
    _add(library, rules, refused, "clone", library.Arg(0, library.MASKED_EQ, _CLONE_NEW_USER, _CLONE_NEW_USER))
    if not programs:
        for name in _PROCESSES:
            _add(library, rules, refused, name)
        _add(library, rules, refused, "clone", library.Arg(0, library.MASKED_EQ, _CLONE_THREAD, 0))
        for name in _SIGNALS:
            _add(library, rules, refused, name, library.Arg(0, library.NE, _SELF))
    for name, place in _CHANGES.items():
        _add(library, rules, refused, name, library.Arg(place, library.NE, 0))
    with suppress(OSError):  # libseccomp before 2.5
        rules.set_attr(library.Attr.CTL_OPTIMIZE, 2)  # a binary tree: the calls of a decoder pass in few steps
    return rules


def _add(library: Any, rules: Any, action: int, name: str, *args: Any) -> None:
    if library.resolve_syscall(library.Arch.NATIVE, name) >= 0:
        rules.add_rule(action, name, *args)


@cache
def _library() -> Any:
    """Return `pyseccomp`; None where it or libseccomp is missing."""
    if sys.platform != "linux":
        return None
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError):
        return None
    return pyseccomp
