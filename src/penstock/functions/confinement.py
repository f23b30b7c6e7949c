"""The limits of a model process: its network, its end with the worker's, and its place before the OOM killer."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.functions.importable import fitted

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 1, 22, 2, 38
_STEP_BYTES = 8
#: Variables of the service's environment that a user's file gets, and beginnings of such names.
_NAMES = (
    "PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "PYTHON_CPU_COUNT",
)  # fmt: skip
_BEGINNINGS = (
    "LC_",
    "CUDA_",
    "NVIDIA_",
    "HIP_",
    "ROCR_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "XDG_",
    "TORCH_",
    "HF_HOME",
    "HF_HUB_",
    "VLLM_",
)
_NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_LOCAL = ("localhost", "127.0.0.1", "::1")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def environment(*, network: bool = False, secrets: Iterable[str] = (), gpu: bool = False) -> dict[str, str]:
    """Return the environment of a process with a user's file: no settings and no secrets but its own.

    With `gpu` it sees the device of this process, otherwise none.
    """
    wanted = {*_NAMES, *(_PROXIES if network else ()), *secrets}
    found = {name: text for name, text in os.environ.items() if name in wanted or name.startswith(_BEGINNINGS)}
    return {**found, "PYTHONUNBUFFERED": "1", **({} if gpu else _NO_GPU)}


def environment_of(
    python: Path, *, network: bool = False, secrets: Iterable[str] = (), gpu: bool = False
) -> dict[str, str]:
    """Return the environment of a process of an interpreter, which imports `penstock` from here."""
    return fitted(environment(network=network, secrets=secrets, gpu=gpu), python)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the worker ends; exit at once if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def go_first() -> None:
    """Make this process the OOM killer's first choice."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_bytes(b"1000")


def socket_filter() -> bytes | None:
    """Return a seccomp filter, for `refuse_sockets`, that leaves Unix sockets only; None without libseccomp.

    The worker makes it: the model's environment need not have libseccomp's Python module.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError):
        return None
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refused = pyseccomp.ERRNO(errno.EACCES)
    rules.add_rule(refused, "socket", pyseccomp.Arg(0, pyseccomp.NE, socket.AF_UNIX))
    for name in ("io_uring_setup", "io_uring_enter", "io_uring_register"):  # they could make sockets too
        if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) >= 0:
            rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), name)
    with os.fdopen(os.memfd_create("filter"), "w+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def refuse_sockets(program: bytes) -> bool:
    """Apply a seccomp filter, which the worker made; return False where the kernel refuses it."""
    libc, kept = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(program, len(program))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = _Program(len(program) // _STEP_BYTES, ctypes.addressof(kept))
    return bool(libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(header), 0, 0) == 0)


def allow_hosts(hosts: tuple[str, ...]) -> None:
    """Refuse Python's connections to other hosts, for the rest of this process's life.

    This keeps code from calling the wrong host. Code that means to can go round it: the file is the operator's.
    """
    known = {*hosts, *(_LOCAL if set(hosts) & set(_LOCAL) else ())}
    addresses = set[str]()

    def check(event: str, args: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo":
            host = args[0].decode() if isinstance(args[0], bytes) else args[0]
            if host not in known | addresses:
                raise PermissionError(f"the model may not call {host!r}: add it to `network` of its decorator")
        elif event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] not in known | addresses:
            if not (resolved := _resolved(known)) >= {args[1][0]}:
                raise PermissionError(f"the model may not call {args[1][0]!r}: add it to `network` of its decorator")
            addresses.update(resolved)

    sys.addaudithook(check)


def _resolved(hosts: set[str]) -> set[str]:
    found = set[str]()
    for host in hosts:
        with suppress(OSError):
            found |= {str(row[4][0]) for row in socket.getaddrinfo(host, None)}
    return found


def no_network() -> None:
    """Refuse Python's sockets, where the kernel has no seccomp."""

    def check(event: str, args: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo" or (event == "socket.connect" and isinstance(args[1], tuple)):
            raise PermissionError("the model has no network: say `network=[...]` in its decorator")

    sys.addaudithook(check)
