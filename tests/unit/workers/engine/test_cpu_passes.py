"""The variables for passes on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.workers.engine.cpu_passes import as_given, keep_to_cores, let_threads_sleep, use_huge_pages

#: Does what `penstock worker` does before it imports torch. OpenMP then shows its settings. Prints the bytes of a
#: tensor of 64 MiB that lie in huge pages, and the flags of its memory.
WORKER = """
import os, re, sys
from pathlib import Path
from penstock.workers.engine.cpu_passes import let_threads_sleep, use_huge_pages
let_threads_sleep(os.environ)
use_huge_pages(os.environ)
assert "torch" not in sys.modules
import torch
def huge_bytes():
    return 1024 * int(re.search(r"AnonHugePages: +(\\d+)", Path("/proc/self/smaps_rollup").read_text())[1])
before = huge_bytes()
kept = torch.ones(2**24)
middle = kept.data_ptr() + 2**25
for lines in re.split(r"\\n(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text()):
    begin, end = (int(place, 16) for place in lines.split(" ", 1)[0].split("-"))
    if begin <= middle < end:
        print(huge_bytes() - before, *re.search("VmFlags: (.*)", lines)[1].split())
"""
#: The kernel's choices; the one in force is in brackets.
OFFERED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def run_worker() -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch")
    left_out = ("OMP_", "GOMP_", "KMP_", "THP_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    environment["OMP_DISPLAY_ENV"] = "true"
    return subprocess.run(
        [sys.executable, "-c", WORKER], env=environment, check=True, capture_output=True, text=True
    )  # fmt: skip


@pytest.mark.breadth
def test_the_threads_of_a_pass_sleep_while_they_wait() -> None:
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in run_worker().stderr


def test_large_tensors_lie_in_huge_pages() -> None:
    if not OFFERED.exists() or "[never]" in OFFERED.read_text():
        pytest.skip("the kernel gives nobody huge pages")
    huge_bytes, *flags = run_worker().stdout.split()
    assert "hg" in flags, "the kernel was asked for them"
    assert int(huge_bytes) >= 2**21, "one page at least: the kernel may lack free ones for the rest"


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_a_choice_of_the_environment_counts(name: str) -> None:
    chosen = {name: "active", "THP_MEM_ALLOC_ENABLE": "0"}
    let_threads_sleep(chosen)
    use_huge_pages(chosen)
    assert chosen == as_given(chosen) == {name: "active", "THP_MEM_ALLOC_ENABLE": "0"}


def test_another_program_does_not_get_what_was_set_here() -> None:
    environment = {"PATH": "/bin"}
    let_threads_sleep(environment)
    use_huge_pages(environment)
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert environment["THP_MEM_ALLOC_ENABLE"] == "1"
    assert as_given(environment) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("count", "given", "threads"),
    [
        (8, {}, None),
        (7, {}, "7"),
        (12, {}, None),
        (7, {"OMP_NUM_THREADS": "3"}, "3"),
        (7, {"OMP_NUM_THREADS": ""}, "7"),
    ],
    ids=["as many", "fewer", "more than physical ones", "the user's own", "an empty number is none"],
)
def test_a_pass_takes_no_more_threads_than_there_are_cores(
    count: int, given: dict[str, str], threads: str | None
) -> None:
    environment = dict(given)
    keep_to_cores(environment, count, physical=8)
    assert environment.get("OMP_NUM_THREADS") == threads
