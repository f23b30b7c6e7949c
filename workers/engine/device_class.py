"""The kind of machine that computes a model: machines of one kind give the same bits, other kinds may differ."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from penstock.errors import ModelUnavailable
from penstock.models import Model

#: Instruction sets for which libraries have networks of their own, the widest first, as /proc/cpuinfo names them.
_SETS = ("amx_tile", "avx512_bf16", "avx512f", "avx2", "sve", "asimd")
#: Present where the kernel has an NVIDIA driver; on WSL; with an AMD GPU, which torch calls CUDA too.
_CUDA = Path("/dev/nvidiactl")
_DRIVERS = (_CUDA, Path("/dev/dxg"), Path("/dev/kfd"))


def device_class(model: Model) -> str:
    """Return the kind of machine on which this worker computes a model, such as `cpu-avx2` or `cuda-nvidia-h100`.

    The name holds letters, digits and hyphens.
    """
    name = _accelerator() if model.device != "cpu" else None
    return f"cpu-{_instructions()}" if name is None else f"cuda-{name}"


def uses_cuda(model: Model) -> bool:
    """Return True for a model that runs on this worker's CUDA device."""
    return model.device != "cpu" and _accelerator() is not None


def has_gpu() -> bool:
    """Return True if this machine has a GPU and lets this process use it; libraries would take seconds to say so."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip()
    return any(path.exists() for path in _DRIVERS) and bool(visible) and not visible.startswith("-")


def device_problem(model: Model) -> str | None:
    """Return the problem of a model that needs a GPU where there is none; None for any other."""
    if model.device.startswith("cuda") and not has_gpu():
        return f"model {model.name!r} needs a CUDA device and this machine has none"
    return None


def require_device(model: Model) -> None:
    """Raise `ModelUnavailable` for a model that needs a GPU where there is none."""
    if (problem := device_problem(model)) is not None:
        raise ModelUnavailable(problem)


@cache
def _accelerator() -> str | None:
    """Return the name of the CUDA device; None without one. Torch takes seconds to import: not where no driver is."""
    if not _CUDA.exists():
        return None
    try:
        import torch
    except ImportError:  # functions bring their own
        return "nvidia"
    return _plain(torch.cuda.get_device_name()) if torch.cuda.is_available() else None


@cache
def _instructions() -> str:
    """Return the widest instruction set of this processor; `plain` where it is not known."""
    try:
        found = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text().lower()))
    except OSError:
        found = set()
    return next((_plain(name) for name in _SETS if name in found), "plain")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
