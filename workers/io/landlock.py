"""Landlock: the kernel lets this process open listed files only, for the rest of its life (landlock(7)).

Two Python packages bind Landlock, both before their first stable version; its three system calls are used here
directly (`docs/decisions/0042`).
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

#: Numbers of the system calls, the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _REFER = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 13
_READ = _READ_FILE | _READ_DIR
#: Rights in the scratch folder. Links to files elsewhere are missing: the worker could follow one.
_WRITE = _READ | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
#: Number of rights to files that each version of Landlock knows; later versions know those of the last.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
#: Versions that know the rights to TCP ports, and to signals and abstract sockets.
_NETWORK_VERSION, _SCOPE_VERSION = 4, 6
_ALL_PORTS, _ALL_SCOPES = 0b11, 0b11
_OPEN = os.O_PATH | os.O_CLOEXEC


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("ports", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32))


@cache
def libc() -> ctypes.CDLL:
    """Return the C library; its functions set `ctypes.get_errno`."""
    return ctypes.CDLL(None, use_errno=True)


@cache
def version() -> int:
    """Return the kernel's version of Landlock; 0 without it."""
    if sys.platform != "linux":
        return 0
    return max(0, int(libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))


def restrict(reads: Iterable[Path | str], writes: Iterable[Path | str], *, execute: bool = False) -> None:
    """Let this process and its children read the files under `reads`, and read and change those under `writes`.

    With `execute` it may also run the programs among `reads`. Missing paths are left out. Links and devices cannot be
    created anywhere, and where the kernel's version of Landlock allows it, signals to processes outside and TCP are
    refused too. Raises `OSError`.
    """
    known = version()
    handled = (1 << _FILE_RIGHTS[min(known, max(_FILE_RIGHTS))]) - 1
    scoped = known >= _SCOPE_VERSION
    rules = _Ruleset(handled, _ALL_PORTS if known >= _NETWORK_VERSION else 0, _ALL_SCOPES if scoped else 0)
    size = 24 if scoped else 16 if known >= _NETWORK_VERSION else 8
    ruleset = _call(_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), 0)
    try:
        reading = _READ | _EXECUTE if execute else _READ
        _allow(ruleset, reads, reading & handled)
        _allow(ruleset, writes, _WRITE & handled)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, paths: Iterable[Path | str], rights: int) -> None:
    """Add a rule for each path."""
    rule = _PathRule(rights, -1)
    place = ctypes.byref(rule)
    for path in paths:
        try:
            descriptor = os.open(path, _OPEN)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        try:
            rule.rights = rights if stat.S_ISDIR(os.fstat(descriptor).st_mode) else rights & _OF_FILES
            rule.descriptor = descriptor
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, place, 0)
        finally:
            os.close(descriptor)


def _call(number: int, *args: object) -> int:
    result = int(libc().syscall(number, *args))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock ({os.strerror(ctypes.get_errno())})")
    return result
