"""Memory for models: the device's budget, and the size of a model's files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from penstock.models import Model

#: Share of a CUDA device's memory for the weights of models; the rest is for the activations of their batches.
CUDA_SHARE = 0.9
#: Seconds that `nvidia-smi` may take.
LIST_S = 10
#: Share of the machine's memory for the weights of models that run on the CPU.
HOST_SHARE = 0.5

#: Device memory of a process beside its tensors: the CUDA context with torch's kernels. About half a GiB on the GPUs of
#: the last years, as `nvidia-smi` shows for a process with one small tensor; `benchmarks.gpu contexts` measures it.
CONTEXT_BYTES = 512 * 2**20


def budget_bytes(sharers: int = 1) -> int:
    """Return the bytes that all models of this process may take together, one of `sharers` processes on its device."""
    share, total_bytes = device_memory()
    return int(share * total_bytes) // sharers


def device_memory() -> tuple[float, int]:
    """Return the share of the device's memory that models may take, and the bytes of that memory.

    Torch is queried only if a runner has imported it already: importing torch takes seconds.
    """
    if "torch" in sys.modules:
        import torch  # waits for another thread that is still importing torch

        if torch.cuda.is_available():
            return CUDA_SHARE, torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    import psutil  # here, since IO processes import this module

    return HOST_SHARE, psutil.virtual_memory().total


def device_name() -> str:
    """Return the name of this process's accelerator, `cpu` where no model uses one."""
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    return "cpu"


def process_bytes(pid: int) -> int:
    """Return the bytes of its device that another process takes, at least those of a CUDA context.

    `nvidia-smi` does not know the processes of a container everywhere: then the context is all that is known.
    """
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=LIST_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        listing = ""
    found = re.findall(rf"^{pid}, (\d+)$", listing, re.MULTILINE)
    return max(CONTEXT_BYTES, sum(map(int, found)) << 20)


def files_bytes(model: Model, pattern: str = "*.safetensors") -> int:
    """Return the size of a model's file, or of the files in its directory that match a pattern; 0 if unreadable."""
    source = Path(model.source)
    try:
        return sum(file.stat().st_size for file in ([source] if source.is_file() else source.glob(pattern)))
    except OSError:
        return 0
