"""A file's own numbers on a device of torch."""

from __future__ import annotations

import torch
from torch import Tensor

#: Numbers that are normalised together on a CPU: they stay in its cache, and torch wakes no threads for so few, which
#: would take twice the processor time beside other work.
_CACHED_NUMBERS = 2**15


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
