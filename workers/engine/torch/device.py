"""Devices for runners that use torch: choice, copies, execution, and translation of torch's errors.

On CUDA the job's own thread copies a prompt from pinned memory on a copy stream, while the device works on the batch
before: `send` in `Runner.admit`, `receive` in `Runner.step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from traceback import clear_frames
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from penstock.errors import DeviceLost, ModelUnavailable, OutOfMemory
from penstock.models import Model
from penstock.processors.base import Array, Value
from penstock.processors.prompt_names import PIXELS, RADIOMETRY, VALID, has_numbers
from penstock.workers.engine.torch.passes import Passes

#: Bytes of an array that is cheaper to copy in the step than on a stream of its own: a picture of 224 px has 602,112.
_SMALL_BYTES = 2**20
#: Numbers that are normalised together on a CPU: they stay in its cache, and torch wakes no threads for so few, which
#: would take twice the processor time beside other work.
_CACHED_NUMBERS = 2**15
#: Kinds of attention that need nothing for a new length.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

S = TypeVar("S")
D = TypeVar("D")
#: Smallest output that is copied into pinned memory; jobs hold few such outputs at a time.
_PINNED_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Sent:
    """A tensor on its way to the device."""

    tensor: Tensor
    #: Event at the end of the copy, which the device's work must wait for; None without a copy.
    copied: torch.cuda.Event | None = None
    #: The tensor's order on the device.
    channels_last: bool = False


@dataclass(frozen=True, slots=True)
class SentNumbers:
    """A file's own numbers on their way to the device, where they are normalised (see `processors.numbers`)."""

    #: (bands, H, W) in the file's data type.
    numbers: Sent
    #: Bool (H, W).
    valid: Sent
    #: Float64 (4, bands).
    radiometry: Sent
    channels_last: bool


#: An input of the network on its way to the device.
Input = Sent | SentNumbers


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """The device and precision of a model."""

    device: torch.device
    #: bfloat16: autocast; weights keep their precision, and operations that are safe in bfloat16 run in it.
    dtype: torch.dtype = torch.float32
    #: True where `place` compiles networks.
    compiles: bool = False
    _copies: torch.cuda.Stream | None = field(default=None, repr=False)
    #: Passes side by side on a CPU; None: one pass in the thread that asks for it.
    _passes: Passes | None = field(default=None, repr=False)

    @classmethod
    def of(cls, model: Model) -> TorchDevice:
        """Return the device of the model's `device`, `dtype`, and `compile` and `threads` of its options.

        Raises `ModelUnavailable`.
        """
        device = _device(model)
        with torch_errors():
            copies = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        passes = Passes.of(model) if device.type == "cpu" else None
        return cls(device, getattr(torch, model.dtype), model.options.get("compile") is True, copies, passes)

    @property
    def is_cpu(self) -> bool:
        """True for the CPU."""
        return self.device.type == "cpu"

    def batch(self, most: int) -> int:
        """Return the largest batch, `most` on a GPU.

        On a CPU prompts run one by one or side by side, for the same bits; batches are slower there (four tiles of
        512 px took 1.8 times as long).
        """
        if not self.is_cpu:
            return most
        return 1 if self._passes is None else self._passes.at_once

    def answers(self, step: Callable[[Sequence[S]], Sequence[D]], states: Sequence[S]) -> Sequence[D]:
        """Return the answers of `step` to the states of a batch, on a CPU of a pass for each state."""
        return step(states) if self._passes is None else self._passes.run(step, states)

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
        """Start copying an array to the device; on a CPU the tensor may share the array's memory.

        Safe in any thread. A small array, and one without room on the device, waits in pinned memory for `receive`.
        """
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        with torch_errors():
            if self._copies is not None and array.nbytes <= _SMALL_BYTES:
                return Sent(_pinned(array), channels_last=channels_last)
            tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
            if self._copies is None:
                return Sent(tensor.contiguous(memory_format=memory_format))
            return self._copy(tensor.pin_memory(), self._copies, memory_format)

    def send_input(self, data: Mapping[str, Value], name: str, *, channels_last: bool = False) -> Input:
        """Start copying a prompt's pixels (bands, H, W) or another array; a batch axis comes before channels last."""
        if name == PIXELS and has_numbers(data):
            numbers, valid, radiometry = (self.send(data[each]) for each in (PIXELS, VALID, RADIOMETRY))
            return SentNumbers(numbers, valid, radiometry, channels_last)
        return self.send(data[name][None] if channels_last else data[name], channels_last=channels_last)

    def receive(self, sent: Input) -> Tensor:
        """Return a sent tensor on the device, for use by the current stream; numbers are normalised."""
        if isinstance(sent, SentNumbers):
            numbers, valid, radiometry = map(self.receive, (sent.numbers, sent.valid, sent.radiometry))
            return normalised(numbers, valid, radiometry, channels_last=sent.channels_last)
        if self._copies is None:
            return sent.tensor
        stream = torch.cuda.current_stream(self.device)
        if sent.copied is None:
            tensor = sent.tensor.to(self.device, non_blocking=True)
            return tensor.contiguous(memory_format=torch.channels_last) if sent.channels_last else tensor
        stream.wait_event(sent.copied)
        sent.tensor.record_stream(stream)
        return sent.tensor

    def stack(self, sent: Sequence[Input]) -> Tensor:
        """Return sent tensors of one shape as one batch with a new first axis."""
        return torch.stack([self.receive(one) for one in sent])

    def join(self, sent: Sequence[Sent]) -> Tensor:
        """Return sent tensors (1, ...) of one shape as one batch."""
        if self._copies is None or any(one.copied for one in sent):
            return torch.cat([self.receive(one) for one in sent])
        first = sent[0].tensor
        batch = torch.empty((len(sent), *first.shape[1:]), dtype=first.dtype, device=self.device)
        for row, one in zip(batch, sent, strict=True):
            row.copy_(one.tensor[0], non_blocking=True)
        return batch.contiguous(memory_format=torch.channels_last) if sent[0].channels_last else batch

    @contextmanager
    def running(self, *, grows: bool = False) -> Iterator[None]:
        """Run networks inside the block: no gradients, autocast for bfloat16, torch's errors translated.

        `grows`: each pass has a longer text than the one before it. cuDNN's attention is left out then: it prepares
        itself anew for each length, which took 3 ms for each layer on an H100, and the pass of a layer 0.05 ms.
        """
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)
        attention = sdpa_kernel(_ATTENTION) if grows and not self.is_cpu else nullcontext()
        with torch_errors(), torch.inference_mode(), autocast, attention:
            yield

    def free(self, module: nn.Module) -> None:
        """Free a network's memory, and end its passes."""
        if self._passes is not None:
            self._passes.close()
        if getattr(module, "is_quantized", False):  # quantised weights cannot move to the meta device
            _delete_tensors(module)
        else:
            module.to(device="meta")
        if not self.is_cpu:
            torch.cuda.empty_cache()

    def _copy(self, pinned: Tensor, copies: torch.cuda.Stream, memory_format: torch.memory_format) -> Sent:
        try:
            with torch.cuda.stream(copies):
                # Reordered on the device: on the CPU this takes longer than the copy.
                tensor = pinned.to(self.device, non_blocking=True).contiguous(memory_format=memory_format)
        except torch.OutOfMemoryError:
            return Sent(pinned.contiguous(memory_format=memory_format))
        return Sent(tensor, copies.record_event())


@dataclass(frozen=True, slots=True)
class NetworkRunner:
    """The common part of runners of one network on a device."""

    network: Any
    device: TorchDevice
    max_batch: int
    memory_bytes: int

    def close(self) -> None:
        """Free the device's memory."""
        self.device.free(self.network)


def _delete_tensors(module: nn.Module) -> None:
    for part in list(module.modules()):
        own = (part.named_parameters(recurse=False), part.named_buffers(recurse=False), part.named_children())
        for name in [name for named in own for name, _ in named]:
            delattr(part, name)


def weights_bytes(module: nn.Module) -> int:
    """Return the bytes of a network's parameters and buffers; shared ones count once.

    Quantised tensors count by their quantised size, with their scales.
    """
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(map(_held_bytes, tensors.values()))


def _held_bytes(tensor: Tensor) -> int:
    if hasattr(tensor, "__tensor_flatten__"):  # torchao's `nbytes` is that of the unquantised tensor
        names, _ = tensor.__tensor_flatten__()
        return sum(_held_bytes(getattr(tensor, name)) for name in names)
    scales = getattr(tensor, "quant_state", None)  # beside the four-bit weights of bitsandbytes
    return tensor.nbytes + (0 if scales is None else sum(one.nbytes for one in scales.as_dict(packed=True).values()))


def arrays_of(batch: Tensor) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """Return the samples of a batch as numpy arrays, each with memory of its own; bfloat16 becomes float32.

    Whole samples are copied from the device: reduce them before (see `class_ids`).
    """
    if batch.dtype in (torch.bfloat16, torch.float16):
        batch = batch.float()
    if batch.is_cuda and len(batch) and batch[0].nbytes >= _PINNED_BYTES:
        return _fetched(batch)
    # Copies: one output must not keep its whole batch in memory.
    batch = batch.cpu()
    if batch.ndim > 1 and batch.is_contiguous():
        return [sample.copy() for sample in batch.numpy()]
    return [sample.clone(memory_format=torch.contiguous_format).numpy() for sample in batch]


def _pinned(array: Array) -> Tensor:
    """Return a copy in pinned memory, made with one call that lets other threads run."""
    tensor = torch.empty(array.shape, dtype=_torch_dtype(array.dtype), pin_memory=True)
    np.copyto(tensor.numpy(), array)
    return tensor


@cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _fetched(batch: Tensor) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """Return the samples, each in pinned memory of its own, which the device fills at the full speed of its bus.

    An H100 copied 47 MB in 1.4 ms, and in 50 ms into ordinary memory: five times the network's own time.
    """
    samples = [torch.empty(batch.shape[1:], dtype=batch.dtype, pin_memory=True) for _ in batch]
    for sample, there in zip(samples, batch.contiguous(), strict=True):
        sample.copy_(there, non_blocking=True)
    torch.cuda.current_stream(batch.device).synchronize()
    return [sample.numpy() for sample in samples]


def class_ids(scores: Tensor) -> Tensor:
    """Return the best class per pixel of scores (N, classes, ...): (N, ...), uint8, or uint16 above 256 classes.

    Of equal scores the first class wins, and NaN is above all. Computed on the device, so that one byte per pixel
    crosses the bus instead of four bytes per class. On a CPU `max` finds the index of `argmax` in a twentieth of the
    time.
    """
    best = scores.argmax(dim=1) if scores.is_cuda else scores.max(dim=1).indices
    return best.to(torch.uint8 if scores.shape[1] <= 256 else torch.uint16)


@contextmanager
def torch_errors() -> Iterator[None]:
    """Translate torch's errors by their texts, which only this function knows."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        _free_frames(error)
        raise OutOfMemory from error
    except RuntimeError as error:
        words = str(error)
        if any(sign in words for sign in _NO_MEMORY):
            _free_frames(error)
            raise OutOfMemory from error
        if "CUDA error" in words:
            raise DeviceLost from error
        raise


#: Texts of the CPU's allocator, CUDA and its libraries for a lack of memory.
_NO_MEMORY = (
    "can't allocate memory", "not enough memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)  # fmt: skip


def _free_frames(error: BaseException) -> None:
    """Free the tensors of a failed pass, which the error's frames hold: a retry needs the memory."""
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


def normalised(numbers: Tensor, valid: Tensor, radiometry: Tensor, *, channels_last: bool) -> Tensor:
    """Return float32 (bands, H, W) of numbers, or (1, bands, H, W) channels last; see `processors.numbers`.

    Eager operations on tensors, in float64: a fused multiplication and addition would round once less, and CUDA
    divides by a plain number through its rounded reciprocal. On a CPU the temporaries stay in its cache.
    """
    shape = (1, *numbers.shape)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    pixels = torch.empty(shape, dtype=torch.float32, device=numbers.device, memory_format=layout)
    scale, offset, mean, std = radiometry[:, :, None, None].unbind()
    empty = -mean / std
    rows = numbers.shape[1] if numbers.is_cuda else max(1, _CACHED_NUMBERS // (len(numbers) * numbers.shape[2]))
    for top in range(0, numbers.shape[1], rows):
        part = slice(top, top + rows)
        values = numbers[:, part].to(torch.float64).mul_(scale).add_(offset).sub_(mean).div_(std)
        pixels[0, :, part] = torch.where(valid[part], values, empty)
    return pixels if channels_last else pixels[0]
