"""Sessions of onnxruntime on a model's device, and translation of its errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime as ort
import structlog

from penstock.cores import cores
from penstock.errors import DeviceLost, ModelUnavailable, OutOfMemory, PenstockError, ProcessorFailed
from penstock.models import Model

_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
#: Texts of onnxruntime and CUDA's libraries for a lack of memory.
_NO_MEMORY = ("Failed to allocate memory", "bad_alloc", "bad allocation", "out of memory", "ALLOC_FAILED")
#: Longest quoted text of an error, in characters: some errors quote a whole graph.
_MAX_SAID = 300
#: File that NVIDIA's driver makes on a machine with a GPU, and its container runtime in a container.
_DRIVER = Path("/dev/nvidiactl")

log = structlog.get_logger(__name__)


def open_session(model: Model, path: Path, *, threads: int = 0, content: bytes | None = None) -> Any:
    """Return a session for a checked ONNX file, or for other `content` in its place.

    Raises `ModelUnavailable` with onnxruntime's error.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads or cores()
    options.inter_op_num_threads = 1
    # Threads that spin while they wait would take the cores from the IO processes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # An arena would keep the largest memory of any shape for as long as the model is loaded.
    options.enable_cpu_mem_arena = False
    providers = _providers(model)
    try:
        session = ort.InferenceSession(str(path) if content is None else content, options, providers=providers)
    except Exception as error:  # onnxruntime's errors have no common base
        raise ModelUnavailable(
            f"onnxruntime cannot load {path.name} of model {model.name!r}: {_said(error)}"
        ) from error
    if providers[0] != _CPU and _CUDA not in session.get_providers():
        raise ModelUnavailable(f"model {model.name!r}: onnxruntime cannot use CUDA here: its libraries are missing")
    return session


@contextmanager
def onnx_errors() -> Iterator[None]:
    """Translate onnxruntime's errors of a forward pass by their texts, which only this function knows."""
    try:
        yield
    except PenstockError:
        raise
    except MemoryError as error:
        raise OutOfMemory from error
    except Exception as error:
        words = str(error)
        if any(sign in words for sign in _NO_MEMORY):
            raise OutOfMemory from error
        if "CUDA error" in words or "CUDA failure" in words:
            raise DeviceLost from error
        raise ProcessorFailed(f"the network failed on its input: {_said(error)}") from error


def _providers(model: Model) -> Sequence[Any]:
    """Return the execution providers of the model's `device`."""
    kind, _, index = model.device.partition(":")
    there = _CUDA in ort.get_available_providers()
    if kind not in ("auto", "cpu", "cuda") or not (index or "0").isdecimal():
        raise ModelUnavailable(f"model {model.name!r} names the device {model.device!r}, which onnxruntime lacks")
    if kind == "cuda" and not there:
        raise ModelUnavailable(
            f"model {model.name!r} needs a CUDA device and this onnxruntime has none: pip install onnxruntime-gpu"
        )
    if kind == "auto" and not there:
        warn_of_idle_gpu(model)
    if kind == "cpu" or not there:
        return [_CPU]
    if hasattr(ort, "preload_dlls"):  # from 1.21 on
        ort.preload_dlls()  # CUDA's libraries from the packages that torch brings
    return [(_CUDA, {"device_id": int(index or 0), "arena_extend_strategy": "kSameAsRequested"}), _CPU]


def warn_of_idle_gpu(model: Model, driver: Path = _DRIVER) -> None:
    """Log that a model computes on the processor of a machine with a GPU, because of the build of onnxruntime."""
    if driver.exists():
        remedy = "install onnxruntime-gpu in place of onnxruntime, or set device = 'cpu'"
        log.warning("onnx.gpu_idle", model=model.name, found="this onnxruntime has no CUDA", remedy=remedy)


def _said(error: BaseException) -> str:
    """Return the text of onnxruntime's error, which a library may have wrapped, on one line and without prefix."""
    words = " ".join(str(error.__cause__ or error).split())
    _, _, rest = words.rpartition(" : FAIL : ") if " : FAIL : " in words else ("", "", words)
    return rest if len(rest) <= _MAX_SAID else f"{rest[:_MAX_SAID]}..."
