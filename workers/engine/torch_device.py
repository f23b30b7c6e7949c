"""What the runners that use torch share: the choice of a device, copies to it, running on it, torch's errors as ours.

On CUDA a prompt is copied by the job's own thread on a stream of copies, from pinned memory, while the device works on
the batch before: `send` in `Runner.admit`, `receive` in `Runner.step`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from traceback import clear_frames
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import DeviceLost, ModelUnavailable, OutOfMemory
from penstock.models import Model
from penstock.processors.base import Array


@dataclass(frozen=True, slots=True)
class Sent:
    """A tensor on its way to the device."""

    tensor: Tensor
    #: Its copy, which the device's work must wait for; None if there is none to wait for.
    copied: torch.cuda.Event | None = None


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """Where a model runs, and in which precision."""

    device: torch.device
    #: bfloat16 means autocast: weights stay as they are, what is safe to compute in less is.
    dtype: torch.dtype = torch.float32
    #: Whether `place` compiles networks.
    compiles: bool = False
    _copies: torch.cuda.Stream | None = field(default=None, repr=False)

    @classmethod
    def of(cls, model: Model) -> TorchDevice:
        """Return what the model's `device`, `dtype` and `options.compile` ask for; raise `ModelUnavailable`."""
        device = _device(model)
        with torch_errors():
            copies = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        return cls(device, getattr(torch, model.dtype), model.options.get("compile") is True, copies)

    @property
    def is_cpu(self) -> bool:
        """Whether there is no device beside the processor."""
        return self.device.type == "cpu"

    def place(self, module: nn.Module, *, channels_last: bool = False) -> nn.Module:
        """Return the network on the device, for inference; `channels_last` suits convolutional ones."""
        with torch_errors():
            module.eval().requires_grad_(requires_grad=False).to(self.device)
            if channels_last:
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            if self.compiles:
                module.compile()
        return module

    def send(self, array: Array, *, channels_last: bool = False) -> Sent:
        """Start copying an array to the device; a CPU's tensor may share the array's memory.

        Safe in any thread. Where the device has no room the copy waits in pinned memory until `receive`.
        """
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        with torch_errors():
            tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
            if self._copies is None:
                return Sent(tensor.contiguous(memory_format=memory_format))
            return self._copy(tensor.pin_memory(), self._copies, memory_format)

    def receive(self, sent: Sent) -> Tensor:
        """Return a sent tensor on the device, for use by the current stream."""
        if self._copies is None:
            return sent.tensor
        stream = torch.cuda.current_stream(self.device)
        if sent.copied is None:
            return sent.tensor.to(self.device, non_blocking=True)
        stream.wait_event(sent.copied)
        sent.tensor.record_stream(stream)
        return sent.tensor

    def stack(self, sent: Sequence[Sent]) -> Tensor:
        """Return sent tensors of one shape as one batch with a new first axis."""
        return torch.stack([self.receive(one) for one in sent])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run networks inside: no gradients, autocast where the model allows it, torch's errors as ours."""
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)
        with torch_errors(), torch.inference_mode(), autocast:
            yield

    def free(self, module: nn.Module) -> None:
        """Let go of a network's memory."""
        if getattr(module, "is_quantized", False):  # their weights have no place that takes no memory
            _take_apart(module)
        else:
            module.to(device="meta")
        if not self.is_cpu:
            torch.cuda.empty_cache()

    def _copy(self, pinned: Tensor, copies: torch.cuda.Stream, memory_format: torch.memory_format) -> Sent:
        try:
            with torch.cuda.stream(copies):
                # Put in order there: the processor would take longer for it than the copy does.
                tensor = pinned.to(self.device, non_blocking=True).contiguous(memory_format=memory_format)
        except torch.OutOfMemoryError:
            return Sent(pinned.contiguous(memory_format=memory_format))
        return Sent(tensor, copies.record_event())


def _take_apart(module: nn.Module) -> None:
    for part in list(module.modules()):
        own = (part.named_parameters(recurse=False), part.named_buffers(recurse=False), part.named_children())
        for name in [name for named in own for name, _ in named]:
            delattr(part, name)


def weights_bytes(module: nn.Module) -> int:
    """Return the memory of a network's parameters and buffers; shared ones count once.

    Quantised ones count with their scales, and not as what they stand for.
    """
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(map(_held_bytes, tensors.values()))


def _held_bytes(tensor: Tensor) -> int:
    if hasattr(tensor, "__tensor_flatten__"):  # torchao's say the size of what they stand for
        names, _ = tensor.__tensor_flatten__()
        return sum(_held_bytes(getattr(tensor, name)) for name in names)
    scales = getattr(tensor, "quant_state", None)  # beside the four-bit weights of bitsandbytes
    return tensor.nbytes + (0 if scales is None else sum(one.nbytes for one in scales.as_dict(packed=True).values()))


def arrays_of(batch: Tensor) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """Return the samples of a batch as numpy arrays, each with memory of its own; bfloat16 becomes float32.

    They are copied from the device whole: reduce them before (see `class_ids`).
    """
    if batch.dtype in (torch.bfloat16, torch.float16):
        batch = batch.float()
    if batch.is_cuda and len(batch) and batch[0].nbytes >= _PINNED_BYTES:
        return _fetched(batch)
    # Clones, so that one output does not keep its whole batch in memory.
    return [sample.clone(memory_format=torch.contiguous_format).numpy() for sample in batch.cpu()]


def _fetched(batch: Tensor) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """Return the samples in pinned memory, each its own, to which the device copies at the full speed of its bus.

    An H100 took 1.4 ms for 47 MB, and 50 ms into ordinary memory: five times what the network took.
    """
    samples = [torch.empty(batch.shape[1:], dtype=batch.dtype, pin_memory=True) for _ in batch]
    for sample, there in zip(samples, batch.contiguous(), strict=True):
        sample.copy_(there, non_blocking=True)
    torch.cuda.current_stream(batch.device).synchronize()
    return [sample.numpy() for sample in samples]


def class_ids(scores: Tensor) -> Tensor:
    """Return the best class per pixel of scores (N, classes, ...): (N, ...), uint8, or uint16 above 256 classes.

    On the device, so that one byte a pixel crosses the bus and not four for each class.
    """
    return scores.argmax(dim=1).to(torch.uint8 if scores.shape[1] <= 256 else torch.uint16)


@contextmanager
def torch_errors() -> Iterator[None]:
    """Translate what torch raises: the only place that knows its words."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        _let_go(error)
        raise OutOfMemory from error
    except RuntimeError as error:
        words = str(error)
        if any(sign in words for sign in _NO_MEMORY):
            _let_go(error)
            raise OutOfMemory from error
        if "CUDA error" in words:
            raise DeviceLost from error
        raise


#: From this size on an output is copied into pinned memory, of which there is no more than jobs hold outputs.
_PINNED_BYTES = 2**16
#: How the processor's allocator, CUDA and its libraries say that there is no memory left.
_NO_MEMORY = (
    "can't allocate memory", "not enough memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)  # fmt: skip


def _let_go(error: BaseException) -> None:
    """Free what the network had made until there was no room: the error's frames hold it, and a retry needs it."""
    clear_frames(error.__traceback__)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _device(model: Model) -> torch.device:
    if model.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(model.device)
    except RuntimeError as error:
        raise ModelUnavailable(f"model {model.name!r} names the device {model.device!r}, which torch lacks") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelUnavailable(f"model {model.name!r} needs a CUDA device and this machine has none")
    return device
