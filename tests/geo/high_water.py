"""The peak of this process's resident memory."""

from __future__ import annotations

from pathlib import Path


def peak_mb() -> int:
    """Return it in MiB. Not `ru_maxrss`: that begins with what the process that started this one held."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise RuntimeError("no VmHWM in /proc/self/status")
