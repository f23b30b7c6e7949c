"""The trial of a load in a process of its own, and the ends of this process. Real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from penstock.errors import Canceled, DeviceLost, ExecutionTimeout, LoadFailed, PenstockError
from penstock.models import Model
from penstock.workers.trial import try_load
from tests.support.deadly_runner import go_on, tries
from tests.support.polling import wait_for

pytestmark = pytest.mark.breadth


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("abort", "was ended by SIGABRT"),
        ("segfault", "was ended by SIGSEGV"),
        ("exit", "ended with the exit status 0"),
        ("oom", "was ended by SIGKILL, as when memory runs out"),
    ],
)
def test_a_load_that_ends_its_process_is_told_with_its_last_lines(
    model_of: Callable[..., Model], how: str, end: str
) -> None:
    with pytest.raises(LoadFailed, match=f"its load {end}; its last lines: the library is about to fail") as raised:
        try_load(model_of(how), go_on)
    assert raised.value.how == end
    assert raised.value.lines[-1] == "terminate called: no such symbol"


def test_a_load_that_hangs_is_ended(model_of: Callable[..., Model], tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="was ended: it took longer than nine tenths of the time that a job may take"):
        try_load(model_of("hang", timeout_s=10), go_on)
    assert_gone(tmp_path, "hang")


def test_a_load_that_raises_is_left_to_the_worker_which_reports_it(model_of: Callable[..., Model]) -> None:
    assert not try_load(model_of("raise"), go_on)
    assert try_load(model_of("well"), go_on)


@pytest.mark.parametrize("error", [Canceled, ExecutionTimeout, DeviceLost])
def test_an_error_of_the_check_ends_the_process_of_a_load(
    model_of: Callable[..., Model], tmp_path: Path, error: type[PenstockError]
) -> None:
    model = model_of("hang")

    def check() -> None:
        if tries(tmp_path, "hang"):
            raise error

    with pytest.raises(error):
        try_load(model, check)
    assert_gone(tmp_path, "hang")


def test_the_process_of_a_load_ends_with_its_worker(model_of: Callable[..., Model], tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text(model_of("hang").model_dump_json())
    code = (
        "import pathlib, sys; from penstock.models import Model; from penstock.workers.trial import try_load; "
        "try_load(Model.model_validate_json(pathlib.Path(sys.argv[1]).read_text()), lambda: None)"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, str(file)])
    try:
        wait_for(lambda: tries(tmp_path, "hang") == 1, "the load does not begin")
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait(10)
    wait_for(lambda: not alive(tmp_path, "hang"), "the process outlives its worker")


def alive(tmp_path: Path, how: str) -> bool:
    pids = [int(line) for line in (tmp_path / f"{how}.tries").read_text().splitlines()]
    return any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


def assert_gone(tmp_path: Path, how: str) -> None:
    assert tries(tmp_path, how) == 1
    assert not alive(tmp_path, how)
