"""A decoder that was taken over: each attempt of SECURITY.md's table is made, and ends as the table says."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from penstock.errors import ProcessorFailed
from penstock.models import Model
from penstock.workers.io import landlock, sandbox
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.job_log import AttemptLog
from penstock.workers.processing import Work
from tests.corpus.captured import ATTEMPTS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux contains a process like this")

MIB = 2**20
ROOT = Path(__file__).parents[2]
MODEL = Model(name="captured", title="Captured", runner="fake", processor="captured", source="-", revision="1")
OPTIONS = ForkOptions(
    512 * MIB, file_bytes=64 * MIB, processors={"captured": "tests.corpus.captured:Captured"}
)  # fmt: skip
#: Errors by which the kernel refuses an attempt.
REFUSED = {"PermissionError"}


@pytest.fixture(scope="module")
def pool() -> Iterator[IOPool]:
    with closing(IOPool(3, OPTIONS)) as pool:
        yield pool


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(MODEL, {}, {}, tmp_path / "room" / "job" / "artifacts", "a tenant", tmp_path / "room")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file of the service beside the scratch folder, as the signing secret, objects and the AOF are."""
    file = tmp_path / "secret"
    file.write_text("of the service")
    return file


def attempt(pool: IOPool, work: Work, name: str, **fields: object) -> str:
    asked = {"attempt": name, "worker": os.getpid(), "server": pool.server.pid, **fields}
    with pool.open(replace(work, input=asked), check=lambda: None, say=lambda _: None) as session:
        return session.finish(iter(())).result.text or ""


@pytest.mark.parametrize(
    "name",
    [
        "leave a process behind", "clone a process", "run a program", "become a program",
        "hold memory in memory files", "hold System V memory",
        "trace the worker", "trace the fork server", "look into the worker", "look into the fork server",
        "kill the worker", "kill the fork server", "kill everybody", "limit the worker", "slow the worker",
        "unshare", "enter a namespace", "bpf", "keyctl", "load a module", "io_uring",
    ],
)  # fmt: skip
def test_the_kernel_refuses_what_is_not_the_jobs_business(pool: IOPool, work: Work, name: str) -> None:
    assert attempt(pool, work, name) in REFUSED
    assert attempt(pool, work, "stay for the next job").endswith("jobs seen")


def test_programs_run_where_the_operator_allows_them_and_end_with_the_job(work: Work, secret: Path) -> None:
    with closing(IOPool(1, replace(OPTIONS, programs=True))) as pool:
        assert attempt(pool, work, "run a program") == "it runs"
        left = int(attempt(pool, work, "leave a process behind"))
        assert not psutil.pid_exists(left)
        for name in ("read", "write"):
            assert attempt(pool, work, name, file=str(secret)) in REFUSED
        for name in ("trace the worker", "hold memory in memory files", "unshare", "connect"):
            assert attempt(pool, work, name) in REFUSED
        if landlock.version() >= 6:
            assert attempt(pool, work, "kill the worker") in REFUSED


def test_no_file_of_the_service_is_read_or_changed(pool: IOPool, work: Work, secret: Path) -> None:
    for name in ("read", "write", "lay a link", "read by handle"):
        assert attempt(pool, work, name, file=str(secret)) in {*REFUSED, "OSError"}, name
    assert attempt(pool, work, "list", file=str(secret.parent)) in REFUSED
    assert attempt(pool, work, "mount", file=str(secret.parent)) in REFUSED
    assert secret.read_text() == "of the service"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("write", "/proc/sys/kernel/core_pattern"), ("write", "/proc/self/oom_score_adj"), ("write", "/dev/shm/x"),
        ("write", "/tmp/penstock-containment"), ("read", "/etc/shadow"), ("read", "/proc/{worker}/environ"),
        ("read", "/proc/{worker}/cmdline"), ("read", "/proc/{server}/maps"), ("read", "/proc/1/cmdline"),
        ("read", str(ROOT / "pyproject.toml")), ("list", str(Path.home())), ("list", "/"),
    ],
)  # fmt: skip
def test_no_file_of_the_machine_is_read_or_changed(pool: IOPool, work: Work, name: str, file: str) -> None:
    file = file.format(worker=os.getpid(), server=pool.server.pid)
    assert attempt(pool, work, name, file=file) in REFUSED
    assert not Path("/tmp/penstock-containment").exists()


def test_a_models_folder_gives_nothing_of_the_service_away(work: Work, tmp_path: Path) -> None:
    """A model beside the data folder, and a scratch folder elsewhere."""
    private = tmp_path / "beside" / "data"
    private.mkdir(parents=True)
    (private / "secret").write_text("of the service")
    (tmp_path / "beside" / "weights").write_text("of the model")
    model = MODEL.model_copy(update={"source": str(tmp_path)})
    with closing(IOPool(1, replace(OPTIONS, private=[private]))) as pool:
        beside = replace(work, model=model)
        assert attempt(pool, beside, "read", file=str(private / "secret")) in REFUSED
        assert attempt(pool, beside, "read", file=str(tmp_path / "beside" / "weights")) == "of the model"


def test_what_libraries_read_can_be_read(pool: IOPool, work: Work) -> None:
    import rasterio

    files = ["/proc/self/status", "/proc/cpuinfo", "/proc/meminfo", "/dev/null", "/etc/passwd", rasterio.__file__]
    for file in files:
        assert not attempt(pool, work, "read", file=file).endswith("Error"), file
    assert attempt(pool, work, "write", file="/dev/null") == "changed"


def test_no_job_sees_what_another_tenants_or_models_job_left(pool: IOPool, work: Work) -> None:
    mine = replace(work, tenant="mine")
    theirs = replace(work, tenant="theirs")
    other = replace(mine, model=MODEL.model_copy(update={"revision": "2"}))
    for stranger in (mine, theirs, other):
        assert attempt(pool, stranger, "stay for the next job") == "1 jobs seen"
    assert attempt(pool, mine, "stay for the next job") == "2 jobs seen"


def test_no_job_sees_what_any_other_left_where_processes_are_not_used_again(work: Work) -> None:
    with closing(IOPool(1, replace(OPTIONS, reuse=False))) as pool:
        assert {attempt(pool, work, "stay for the next job") for _ in range(3)} == {"1 jobs seen"}


def test_no_line_is_written_into_those_of_other_running_jobs(pool: IOPool, work: Work) -> None:
    first, second, third = AttemptLog(), AttemptLog(), AttemptLog()
    beside = {"attempt": "stay for the next job"}
    with pool.open(replace(work, input=beside, lines=first), check=lambda: None, say=lambda _: None) as session:
        for log in (second, third):  # the second time in the process that was used before
            assert int(attempt(pool, replace(work, lines=log), "speak for other jobs")) > 0
        session.finish(iter(()))
    parts = [log.next_part(last=True) for log in (first, second, third)]
    assert [part and [line.text for line in part.lines] for part in parts] == [None, ["forged"], ["forged"]]


def test_another_tenants_scratch_is_out_of_reach(pool: IOPool, work: Work, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "media").write_text("of theirs")
    assert attempt(pool, work, "read", file=str(tmp_path / "theirs" / "media")) in REFUSED
    assert attempt(pool, work, "list", file=str(tmp_path)) in REFUSED


def test_all_memory_counts(pool: IOPool, work: Work) -> None:
    before = psutil.virtual_memory().shared
    assert attempt(pool, work, "hold shared memory") in {"MemoryError", "OSError"}
    assert psutil.virtual_memory().shared - before < 512 * MIB


def test_a_file_has_a_limit(pool: IOPool, work: Work, tmp_path: Path) -> None:
    file = str(tmp_path / "room" / "much")
    assert attempt(pool, work, "write much", file=file) == "OSError"


def test_threads_have_a_limit(pool: IOPool, work: Work) -> None:
    try:
        assert attempt(pool, work, "start 20,000 threads") == "RuntimeError"
    except ProcessorFailed as error:
        assert f"more than {sandbox.MAX_THREADS} threads" in error.detail  # noqa: PT017
    assert attempt(pool, work, "stay for the next job") == "1 jobs seen"


def test_nobody_is_called(pool: IOPool, work: Work, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        port = server.getsockname()[1]
        local.bind(str(tmp_path / "room.sock"))
        local.listen()
        for name in ("connect", "send a datagram"):
            assert attempt(pool, work, name, port=port) in REFUSED
        assert attempt(pool, work, "connect to a file", file=str(tmp_path / "room.sock")) in REFUSED


def test_the_table_names_every_attempt() -> None:
    table = (ROOT / "SECURITY.md").read_text()
    named = set(re.findall(r"`([^`|]+)`", table))
    assert set(ATTEMPTS) <= named
