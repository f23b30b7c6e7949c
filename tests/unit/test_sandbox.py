"""What an IO process may not do, piece by piece, each in a process of its own."""

from __future__ import annotations

import mmap
import os
import resource
import subprocess
import sys

import pytest

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


def test_blocks_of_a_scene_are_decoded_by_a_quarter_of_the_cores() -> None:
    threads = int(sandbox.environment()["GDAL_NUM_THREADS"])
    assert threads == max(1, (os.cpu_count() or 1) // 4)


@LINUX
def test_private_memory_is_counted() -> None:
    before = sandbox.private_bytes()
    with mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(os.urandom(32 * MIB))
        assert sandbox.private_bytes() - before > 24 * MIB
