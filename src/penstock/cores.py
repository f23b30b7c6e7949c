"""The processor cores of this process: a container or a systemd unit may use fewer than its machine has."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from math import ceil
from pathlib import Path, PurePosixPath

#: Overrides the number of cores; Python 3.13 reads it, too.
VARIABLE = "PYTHON_CPU_COUNT"
_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
#: "1" where a physical core runs two threads, so that it counts as two cores.
_TWO_THREADS = Path("/sys/devices/system/cpu/smt/active")
_COUNT, _MICROSECONDS = re.compile("[1-9][0-9]{0,4}"), re.compile("[1-9][0-9]{0,17}")

#: Returns the text of a file below the mount of the control groups, or nothing where it is missing.
Read = Callable[[PurePosixPath], str | None]


@cache
def cores() -> int:
    """Return how many cores this process may keep busy, at least 1.

    They are those of its affinity, or fewer where control groups limit its processor time: a quota of 1.5 processors is
    two cores. `PYTHON_CPU_COUNT`, a number from 1 to 99999, overrides this. The number is read once.
    """
    told = os.environ.get(VARIABLE, "")
    if _COUNT.fullmatch(told):
        return int(told)
    groups = _text(_GROUPS) or ""
    return within(_affinity(), quotas(groups, lambda path: _text(_MOUNT / path)))


def physical_cores() -> int:
    """Return the physical cores of this process's affinity, at least 1. Torch with MKL takes a thread for each."""
    two = (_text(_TWO_THREADS) or "").strip() == "1"
    return max(1, _affinity() // (2 if two else 1))


def within(count: int, limits: Iterator[float]) -> int:
    """Return the whole cores of `count` that the lowest limit (in cores) can keep busy, at least 1."""
    return max(1, min([count, *map(ceil, limits)]))


def quotas(groups: str, read: Read) -> Iterator[float]:
    """Yield the quotas, in cores, of a process's control groups and all groups around them.

    `groups` is the text of `/proc/self/cgroup`. Both versions are read:
    https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/scheduler/sched-bwc.html.
    """
    for line in groups.split("\n"):
        match line.split(":", 2):
            case ["0", "", name]:
                for group in _around(PurePosixPath(), name):
                    yield from _quota((read(group / "cpu.max") or "").split())
            case [_, controllers, name] if "cpu" in controllers.split(","):
                for group in _around(PurePosixPath("cpu"), name):
                    yield from _quota([read(group / f"cpu.cfs_{part}_us") or "" for part in ("quota", "period")])


def _around(mount: PurePosixPath, name: str) -> Iterator[PurePosixPath]:
    """Yield a group and those around it. In a container the first may not be there: its own group is the mount."""
    group = PurePosixPath(name.strip("/"))
    yield from (mount / each for each in (group, *group.parents))


def _quota(numbers: list[str]) -> Iterator[float]:
    """Yield the quota of microseconds in each period, where there is one."""
    match [number.strip() for number in numbers]:
        case [quota, period] if _MICROSECONDS.fullmatch(quota) and _MICROSECONDS.fullmatch(period):
            yield int(quota) / int(period)


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "surrogateescape")
    except OSError:
        return None
