"""What a torch network is to its runner."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True)
class Network:
    """A network with its weights: float32 (N, bands, H, W) in, float32 probabilities (N, classes, H, W) out.

    H and W must be multiples of `stride_px`, which is how much the network shrinks the image at its narrowest.
    """

    module: nn.Module
    bands: int
    classes: int
    stride_px: int
