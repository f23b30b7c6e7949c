"""The six-band cloud, shadow, water and snow U-Net of `ukis-csmask` (DLR, Apache-2.0), rebuilt from its ONNX file.

The published graph takes N x 256 x 256 x 6 only; the same operations in torch take any height and width that are
multiples of 16. Classes: 0 cloud shadow, 1 water, 2 snow or ice, 3 land, 4 cloud.

A pixel's result depends on pixels up to 96 px away (80 px is not enough). So tiles whose origins are multiples
of 16 and that have 96 px of halo equal the whole image bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import onnx
import torch
from google.protobuf.message import DecodeError
from onnx import numpy_helper
from torch import Tensor, nn

from penstock.errors import ModelUnavailable
from penstock.workers.engine.torch.networks import Network

BANDS, CLASSES, STRIDE_PX = 6, 5, 16
_WIDTHS = (32, 64, 128, 256, 512)
_LAYERS = ("Conv", "BatchNormalization", "ConvTranspose")


def _block(inputs: int, outputs: int) -> nn.Sequential:
    """Return two 3x3 convolutions; batch normalisation follows ReLU, as trained, and cannot be folded into them."""
    return nn.Sequential(
        *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True), nn.BatchNorm2d(outputs, eps=1e-6)),
        *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(inplace=True), nn.BatchNorm2d(outputs, eps=1e-6)),
    )


class CsmaskUNet(nn.Module):
    """The U-Net: normalised reflectance (N, 6, H, W) to probabilities (N, 5, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        narrowing = _WIDTHS[-2::-1]
        self.down = nn.ModuleList(_block(a, b) for a, b in pairwise((BANDS, *_WIDTHS)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in narrowing)
        self.merge = nn.ModuleList(_block(2 * width, width) for width in narrowing)
        self.head = nn.Conv2d(_WIDTHS[0], CLASSES, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the softmax over the classes."""
        skips = [self.down[0](pixels)]
        for block in self.down[1:]:
            skips.append(block(nn.functional.max_pool2d(skips[-1], 2)))
        wide = skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            wide = merge(torch.cat((up(wide), skips.pop()), dim=1))
        return torch.softmax(self.head(wide), dim=1, dtype=torch.float32)

    def layers(self) -> Iterator[nn.Module]:
        """Yield the layers that have weights, in the order of the published graph."""
        stages = [*self.down, *(m for pair in zip(self.up, self.merge, strict=True) for m in pair), self.head]
        for stage in stages:
            yield from (m for m in stage.modules() if isinstance(m, nn.Conv2d | nn.BatchNorm2d | nn.ConvTranspose2d))


def load_csmask(weights: bytes) -> Network:
    """Build the network from the ONNX file's bytes; raise `ModelUnavailable` for another network."""
    try:
        graph = onnx.load_model_from_string(weights).graph
    except DecodeError as error:
        raise ModelUnavailable("the weights are not an ONNX file") from error
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    groups = [[arrays[name] for name in node.input[1:]] for node in graph.node if node.op_type in _LAYERS]
    network = CsmaskUNet()
    try:
        for layer, group in zip(network.layers(), groups, strict=True):
            _fill(layer, group)
    except (ValueError, RuntimeError) as error:
        raise ModelUnavailable("the weights are not those of the six-band csmask U-Net") from error
    return network_of(network)


def network_of(module: CsmaskUNet) -> Network:
    """Return the network with its input constraints."""
    return Network(module.eval(), bands=BANDS, classes=CLASSES, stride_px=STRIDE_PX)


@torch.no_grad()
def _fill(layer: nn.Module, arrays: Sequence[object]) -> None:
    names = ("weight", "bias", "running_mean", "running_var")[: len(arrays)]
    for name, array in zip(names, arrays, strict=True):
        getattr(layer, name).copy_(torch.tensor(array))
