"""The sandbox of an IO process: each restriction, in a process of its own."""

from __future__ import annotations

import mmap
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from penstock.cores import cores
from penstock.workers.io import sandbox

MIB = 2**20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can limit this")


def python(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that has the sandbox at hand."""
    lines = f"import os, socket, sys\nfrom penstock.workers.io import sandbox\n{script}"
    return subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=False)


def test_where_there_is_no_namespace_pythons_sockets_are_refused() -> None:
    ended = python(
        "a, b = socket.socketpair()\n"
        "sys.addaudithook(sandbox.refuse_addresses)\n"
        "a.sendall(b'x'); assert b.recv(1) == b'x'\n"
        "socket.send_fds(a, [b'x'], [0])\n"
        "for act in (lambda: socket.create_connection(('127.0.0.1', 9)), lambda: socket.getaddrinfo('localhost', 1),\n"
        "            lambda: socket.socket().bind(('127.0.0.1', 0)), lambda: socket.gethostbyname('localhost')):\n"
        "    try: act()\n"
        "    except PermissionError: print('refused')\n"
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["refused"] * 4), ended.stderr


@LINUX
def test_memory_beyond_the_limit_is_not_to_be_had() -> None:
    ended = python(
        f"sandbox.limit({64 * MIB})\nkept = bytearray({32 * MIB})\n"
        f"try: bytearray({64 * MIB})\nexcept MemoryError: print('no more')\n"
    )
    assert ended.stdout == "no more\n", ended.stderr


@LINUX
def test_no_dumps_few_files_and_first_to_go() -> None:
    ended = python(
        f"import resource; sandbox.limit({64 * MIB})\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE)[1], resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "print(open('/proc/self/oom_score_adj').read())\n"
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = sandbox.MAX_FILES if hard == resource.RLIM_INFINITY else min(sandbox.MAX_FILES, hard)
    assert ended.stdout.split() == ["0", str(files), "1000"], ended.stderr


@LINUX
def test_no_rights_are_left_or_to_be_gained() -> None:
    ended = python("sandbox.leave_network(); sandbox.give_up_rights()\nprint(open('/proc/self/status').read())")
    status = dict(line.split(":\t", 1) for line in ended.stdout.splitlines() if ":\t" in line)
    assert (status["NoNewPrivs"], int(status["CapEff"], 16), int(status["CapPrm"], 16)) == ("1", 0, 0)
    assert status["Uid"].split()[0] == str(os.getuid())


@LINUX
def test_a_process_that_nobody_may_look_into_is_the_first_to_go_too_and_stays_hidden() -> None:
    """For an ordinary user: the files of a hidden process in /proc belong to root."""
    change = "if not os.getuid(): os.setgid(65534); os.setuid(65534)\n"
    ended = python(
        f"{change}sandbox.hide()\nsandbox.limit({64 * MIB})\n"
        "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
        "print(open('/proc/self/oom_score_adj').read())\n"
    )
    assert ended.stdout.split() == ["0", "1000"], ended.stderr


@LINUX
def test_missing_parts_are_named() -> None:
    assert sandbox.missing(sandbox.PARTS) == []
    [files] = sandbox.missing(set(sandbox.PARTS) - {"files"})
    assert "Landlock" in files
    assert "network" not in sandbox.survey("audit hook")


@LINUX
def test_threads_of_a_process_are_counted() -> None:
    with ThreadPoolExecutor(3) as pool:
        before = sandbox.threads()
        list(pool.map(Barrier(3).wait, [20.0] * 3))
        assert sandbox.threads() == sandbox.threads(os.getpid()) == before + 3


@LINUX
def test_a_process_that_is_not_root_has_a_limit_of_threads() -> None:
    if "threads" not in sandbox.survey("namespace"):
        pytest.skip("root has no limit, and without user namespaces it would count all processes of the user")
    ended = python(
        "import resource\nfrom penstock.workers.io.sandbox import Confinement\n"
        f"Confinement({64 * MIB}, {MIB}, (), (), frozenset({{'threads'}})).enter()\n"
        "print(resource.getrlimit(resource.RLIMIT_NPROC)[1] == sandbox.MAX_THREADS)"
    )
    assert ended.stdout.strip() == "True", ended.stderr


@LINUX
def test_a_process_ends_with_its_parent() -> None:
    ended = python(
        "import signal\nread, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    parent = os.getppid()\n"
        "    if os.fork() == 0:\n"
        "        sandbox.end_with(os.getppid()); os.write(write, b'x')\n"
        "        signal.pause()\n"
        "    os.read(read, 1); os.close(write); os._exit(0)\n"
        "os.close(write); os.wait()\n"
        "print(repr(os.read(read, 1)))\n"  # the end of the pipe: the grandchild held it open too
    )
    assert ended.stdout.strip() == "b''", ended.stderr


def test_the_environment_has_what_libraries_need_and_nothing_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "PENSTOCK_REDIS_URL", "HF_TOKEN", "DATABASE_URL", "HOME", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("PROJ_DATA", "/proj")
    given = sandbox.environment()
    assert "secret" not in given.values()
    assert (given["PROJ_DATA"], given["OMP_NUM_THREADS"]) == ("/proj", "1")
    assert given["PATH"] == os.environ["PATH"]


@LINUX
def test_importing_what_processors_import_starts_no_thread() -> None:
    """Else each IO process of a plugin that imports them would load its processor by itself."""
    modules = "numpy, PIL.Image, av, pyarrow.parquet, tokenizers, penstock.processors.geo.read.gdal"
    script = f"import {modules}\nfrom penstock.workers.io import sandbox; print(sandbox.threads())"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False,
        env=sandbox.environment(),
    )  # fmt: skip
    assert ended.stdout.strip() == "1", ended.stderr


def test_blocks_of_a_scene_are_decoded_by_a_quarter_of_the_cores() -> None:
    threads = int(sandbox.environment()["GDAL_NUM_THREADS"])
    assert threads == max(1, cores() // 4)


@LINUX
def test_private_memory_is_counted() -> None:
    before = sandbox.private_bytes()
    with mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(os.urandom(32 * MIB))
        assert sandbox.private_bytes() - before > 24 * MIB
