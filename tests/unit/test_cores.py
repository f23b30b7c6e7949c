"""The number of cores that a process may keep busy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from penstock.cores import quotas, within

#: Joins a control group, and prints the cores that Penstock counts and the threads that torch takes in a worker.
JOINS = """
import os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from penstock.cores import cores, physical_cores
from penstock.workers.engine.cpu_passes import keep_to_cores
keep_to_cores(os.environ, cores(), physical_cores())
import torch
print(cores(), torch.get_num_threads())
"""
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


def quotas_of(groups: str, files: dict[str, str]) -> list[float]:
    return list(quotas(groups, lambda path: files.get(str(path))))


def test_a_quota_of_the_own_group_and_of_those_around_it_counts() -> None:
    files = {
        "cpu.max": "max 100000",
        "system.slice/cpu.max": "400000 100000\n",
        "system.slice/penstock/cpu.max": "150000 100000\n",
    }
    assert quotas_of("0::/system.slice/penstock", files) == [1.5, 4.0]


def test_a_container_sees_its_own_group_at_the_mount() -> None:
    assert quotas_of("0::/docker/1234", {"cpu.max": "50000 100000\n"}) == [0.5]


def test_the_first_version_of_control_groups() -> None:
    files = {"cpu/a/cpu.cfs_quota_us": "250000\n", "cpu/a/cpu.cfs_period_us": "100000\n",
             "cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}  # fmt: skip
    assert quotas_of("9:memory:/a\n4:cpu,cpuacct:/a\n3:cpuset:/b\n0::/", files) == [2.5]


@pytest.mark.parametrize("text", ["", "max", "max 100000", "100000 0", "-1 100000", "a b", "9" * 400 + " 1", "1 2 3"])
def test_no_quota(text: str) -> None:
    assert quotas_of("0::/", {"cpu.max": text}) == []


@pytest.mark.parametrize(
    "groups", ["", "\n", "0:", "0::", "cpu", ":::", "1:cpu", "0::/a\x0bb\u0085c\udcff\n"], ids=repr
)
def test_an_odd_list_of_groups_is_read(groups: str) -> None:
    assert quotas_of(groups, {"cpu.max": "150000 100000"}) == ([1.5] if groups.startswith("0::") else [])
    assert quotas_of(groups + "\n4:cpu:/", {"cpu/cpu.cfs_quota_us": "5", "cpu/cpu.cfs_period_us": "2"})[-1] == 2.5


@pytest.mark.parametrize(
    ("limits", "count"), [([], 8), ([2.0], 2), ([1.5, 4.0], 2), ([0.1], 1), ([64.0], 8)], ids=str
)  # fmt: skip
def test_cores_are_whole(limits: list[float], count: int) -> None:
    assert within(8, iter(limits)) == count


def test_the_environment_says_another_number() -> None:
    script = "from penstock.cores import cores; print(cores())"
    counted = {}
    for told in ("7", "0", "default", "", "9" * 20, "\u0663"):
        environment = os.environ | {"PYTHON_CPU_COUNT": told}
        if sys.version_info >= (3, 13) and told not in ("7", "default"):
            continue  # Python itself does not start
        ended = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True)
        counted[told] = int(ended.stdout)
    assert counted.pop("7") == 7
    assert all(1 <= count <= len(os.sched_getaffinity(0)) for count in counted.values())


@pytest.fixture
def one_core() -> Iterator[Path]:
    """A control group whose processes may keep one core busy."""
    mount, files = (
        (V1, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "80000"})
        if V1.exists()
        else (V2, {"cpu.max": "80000 100000"})
    )
    group = mount / f"penstock-test-{os.getpid()}"
    try:
        group.mkdir()
        for name, text in files.items():
            (group / name).write_text(text)
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no control group of our own: {error}")
    yield group
    group.rmdir()


@pytest.mark.breadth
def test_a_worker_in_a_group_with_a_quota_takes_as_many_threads(one_core: Path) -> None:
    pytest.importorskip("torch")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "PYTHON_CPU"))}
    ended = subprocess.run(
        [sys.executable, "-c", JOINS, str(one_core)], env=environment, check=True, capture_output=True, text=True
    )  # fmt: skip
    assert ended.stdout.split() == ["1", "1"]


def test_paths_are_below_the_mount() -> None:
    asked: list[PurePosixPath] = []
    list(quotas("0::/a/b\n4:cpu:/c", lambda path: asked.append(path)))
    assert [str(path) for path in asked] == [
        "a/b/cpu.max", "a/cpu.max", "cpu.max",
        "cpu/c/cpu.cfs_quota_us", "cpu/c/cpu.cfs_period_us", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us",
    ]  # fmt: skip
