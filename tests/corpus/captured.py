"""A processor that a stranger's code has taken over: it tries what its request names, as machine code would."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, Prepared, Result

MIB = 2**20
#: Traces of earlier jobs in the process.
LEFT: list[str] = []

_PTRACE_ATTACH, _RLIMIT_CPU = 16, 0
_NEW_USER_AND_FILES = 0x10000000 | 0x00020000
#: Numbers of system calls that C libraries have no function for, on x86-64; those above 400 are the same everywhere.
_NUMBERS = {"bpf": 321, "keyctl": 250, "init_module": 175, "process_vm_readv": 310, "clone": 56}


class Attempt(BaseModel):
    """The attempt, and its victims."""

    attempt: str
    #: Processes: the worker, the fork server.
    worker: int = 0
    server: int = 0
    #: A file that it has no business with.
    file: str = ""
    #: Ports of this machine.
    port: int = 0


class Captured:
    """Answers with what became of an attempt: the refusal's name, or what was gained."""

    request = Attempt
    outputs = ()

    def __init__(self, model: Model) -> None:
        self._model = model

    def pre_process(self, request: Attempt, media: Media) -> Prepared[str]:  # noqa: ARG002
        return Prepared(iter(()), 0, 0, attempted(request))

    def post_process(self, outputs: Iterator[Output], context: str, sink: ArtifactSink) -> Result:  # noqa: ARG002
        return Result(text=context)


def attempted(request: Attempt) -> str:
    try:
        return str(ATTEMPTS[request.attempt](request))
    except (OSError, MemoryError) as error:
        return type(error).__name__


def call(number: int | str, *args: object) -> int:
    """Make a system call, and raise its error."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(_NUMBERS[number] if isinstance(number, str) else number, *args))
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def of_libc(name: str, *args: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = getattr(libc, name)(*args)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return int(result)


def stay(_: Attempt) -> str:
    LEFT.append("here")
    return f"{len(LEFT)} jobs seen"


def leave_a_process(_: Attempt) -> int:
    if (pid := os.fork()) == 0:
        os.setsid()
        threading.Event().wait()
    return pid


def run_a_program(_: Attempt) -> str:
    done = subprocess.run(["echo", "it runs"], capture_output=True, text=True, check=True)
    with subprocess.Popen(["sleep", "60"]) as long:
        long.kill()
    return done.stdout.strip()


def clone_a_process(_: Attempt) -> int:
    """Fork as the kernel sees it, without the C library."""
    pid = call("clone", 17, None, None, None, None)
    if pid == 0:
        os._exit(0)
    return pid


def start_threads(_: Attempt) -> str:
    """Start threads until there are no more, and stay."""
    threading.stack_size(64 * 1024)
    stop = threading.Event()
    try:
        for _number in range(20_000):
            threading.Thread(target=stop.wait, daemon=True).start()
    except RuntimeError:
        stop.set()
        return "RuntimeError"
    stop.wait(60)
    return "20,000 threads"


def allocate_hidden(_: Attempt) -> str:
    """Hold memory in files that live in memory alone: 64 MiB each, mapped nowhere."""
    kept = []
    for number in range(64):
        kept.append(os.memfd_create(str(number)))
        os.posix_fallocate(kept[-1], 0, 64 * MIB)
    return f"{len(kept) * 64} MiB"


def allocate_shared(_: Attempt) -> str:
    """Hold memory that is shared with nobody."""
    kept = [mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) for _ in range(64)]
    return f"{len(kept) * 64} MiB"


def allocate_system_v(_: Attempt) -> int:
    return of_libc("shmget", 0, ctypes.c_size_t(64 * MIB), 0o1600)


def write_much(request: Attempt) -> str:
    path = Path(request.file)
    try:
        with path.open("wb") as file:
            for _ in range(64):
                file.write(bytes(4 * MIB))
        return f"{path.stat().st_size} bytes"
    finally:
        path.unlink()


def write(request: Attempt) -> str:
    Path(request.file).write_text("changed")
    return "changed"


def read(request: Attempt) -> str:
    return Path(request.file).read_text(errors="replace")[:20]


def speak_for_others(_: Attempt) -> int:
    """Write a line into each memory that is open here, and keep it open for the next job; return their number."""
    line, spoken = b'[0, "info", "forged"]\n', 0
    for opened in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(opened.readlink()).startswith("/memfd:lines"):
                os.pwrite(int(opened.name), line, 0)
                os.dup(int(opened.name))
                spoken += 1
    return spoken


def read_by_handle(request: Attempt) -> int:
    """Open a file by the number of its inode."""
    handle = ctypes.create_string_buffer(128)
    ctypes.memmove(handle, (8).to_bytes(4, "little"), 4)
    return of_libc("open_by_handle_at", os.open(request.file, os.O_PATH), handle, os.O_RDONLY)


def link(request: Attempt) -> str:
    """Lay a link to a file where the worker will read an artifact."""
    path = Path(os.environ["TMPDIR"], "artifact.txt")
    with suppress(PermissionError):
        path.symlink_to(request.file)
        return "linked"
    path.hardlink_to(request.file)
    return "linked"


def connect(request: Attempt) -> str:
    with socket.create_connection(("127.0.0.1", request.port), 2):
        return "connected"


def connect_to_a_file(request: Attempt) -> str:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(request.file)
        return "connected"


def send_a_datagram(request: Attempt) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.sendto(b"x", ("127.0.0.1", request.port))
        return "sent"


def look_into(pid: int) -> int:
    room = ctypes.create_string_buffer(16)
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(room), 8)
    return call("process_vm_readv", pid, vector, 1, vector, 1, 0)


def limit_the_worker(request: Attempt) -> str:
    of_libc("prlimit", request.worker, _RLIMIT_CPU, (ctypes.c_uint64 * 2)(1, 1), None)
    return "limited"


ATTEMPTS: dict[str, Callable[[Attempt], object]] = {
    "stay for the next job": stay,
    "speak for other jobs": speak_for_others,
    "leave a process behind": leave_a_process,
    "clone a process": clone_a_process,
    "run a program": run_a_program,
    "become a program": lambda _: os.execv("/bin/true", ["true"]),
    "start 20,000 threads": start_threads,
    "hold memory in memory files": allocate_hidden,
    "hold shared memory": allocate_shared,
    "hold System V memory": allocate_system_v,
    "write much": write_much,
    "write": write,
    "read": read,
    "read by handle": read_by_handle,
    "list": lambda request: sorted(Path(request.file).iterdir()),
    "lay a link": link,
    "trace the worker": lambda request: of_libc("ptrace", _PTRACE_ATTACH, request.worker, None, None),
    "trace the fork server": lambda request: of_libc("ptrace", _PTRACE_ATTACH, request.server, None, None),
    "look into the worker": lambda request: look_into(request.worker),
    "look into the fork server": lambda request: look_into(request.server),
    "kill the worker": lambda request: os.kill(request.worker, 9),
    "kill the fork server": lambda request: os.kill(request.server, 9),
    "kill everybody": lambda _: os.kill(-1, 9),
    "limit the worker": limit_the_worker,
    "slow the worker": lambda request: os.setpriority(os.PRIO_PROCESS, request.worker, 19),
    "connect": connect,
    "connect to a file": connect_to_a_file,
    "send a datagram": send_a_datagram,
    "mount": lambda request: of_libc("mount", b"none", os.fsencode(request.file), b"tmpfs", 0, None),
    "unshare": lambda _: of_libc("unshare", _NEW_USER_AND_FILES),
    "enter a namespace": lambda _: of_libc("setns", os.open("/proc/self/ns/user", os.O_RDONLY), 0),
    "bpf": lambda _: call("bpf", 0, None, 0),
    "keyctl": lambda _: call("keyctl", 0, 0),
    "load a module": lambda _: call("init_module", None, 0, None),
    "io_uring": lambda _: call(425, 8, ctypes.create_string_buffer(120)),
}
