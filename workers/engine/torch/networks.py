"""A loaded torch network and its input constraints."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True)
class Network:
    """A network with its weights: float32 (N, bands, H, W) in, float32 probabilities (N, classes, H, W) out.

    H and W must be multiples of `stride_px`, the network's largest reduction of the image.
    """

    module: nn.Module
    bands: int
    classes: int
    stride_px: int
