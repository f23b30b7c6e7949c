"""Accelerators of this machine: each worker that `penstock up` starts uses one of them.

Devices are found without CUDA: a supervisor that opened a device would hold some of its memory.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: Names the devices that a process may use (CUDA's programming guide, "CUDA environment variables").
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Seconds that `nvidia-smi` has to list the devices: a driver takes that long where it is not kept loaded.
LIST_S = 30.0

_GPU = re.compile(r"GPU \d+: .*\(UUID: (?P<id>GPU-[0-9A-Za-z-]+)\)")
_MIG = re.compile(r"\s+MIG .*\(UUID: (?P<id>MIG-[0-9A-Za-z/-]+)\)")


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the machine's accelerators that one worker uses."""

    #: The value of `CUDA_VISIBLE_DEVICES`; None = unchanged.
    device: str | None
    #: Workers that divide the memory between them, this one included.
    workers: int


def visible_devices(
    environ: Mapping[str, str] = os.environ, listed: Callable[[], str] | None = None
) -> tuple[str, ...]:
    """Return the ids of the devices that processes of this environment may use, in their order.

    `CUDA_VISIBLE_DEVICES` counts where it is set, up to the first id that is not one, as in CUDA. Otherwise those that
    `listed` returns in the format of `nvidia-smi -L`: instances of a GPU that is partitioned (MIG), else the GPU.
    """
    named = environ.get(VISIBLE)
    if named is None:
        return _parsed((listed or _nvidia_smi)())
    found: list[str] = []
    for name in map(str.strip, named.split(",")):
        if not name or name.startswith("-") or name in found:
            break
        found.append(name)
    return tuple(found)


def share_of(number: int, devices: tuple[str, ...], most: int) -> Share:
    """Return the share of the nth of at most so many workers: one device each, in turn.

    Workers beyond the number of devices share them. Without devices all workers share the machine's memory. Pure.
    """
    if not devices:
        return Share(None, most)
    index = (number - 1) % len(devices)
    return Share(devices[index], len(range(index, most, len(devices))))


def _parsed(text: str) -> tuple[str, ...]:
    found: list[str] = []
    whole = False  # the last device is a GPU without instances so far
    for line in text.splitlines():
        if (gpu := _GPU.match(line)) is not None:
            found.append(gpu["id"])
            whole = True
        elif (part := _MIG.match(line)) is not None:
            found[-1:] = [part["id"]] if whole else [*found[-1:], part["id"]]
            whole = False
    return tuple(found)


def _nvidia_smi() -> str:
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=LIST_S, check=False)  # noqa: S607
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return listing.stdout if listing.returncode == 0 else ""
