"""Peak resident memory of this process."""

from __future__ import annotations

from pathlib import Path


def peak_mb() -> int:
    """Return the peak in MiB. `ru_maxrss` is not used, because it starts with the parent process's value."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise RuntimeError("no VmHWM in /proc/self/status")
