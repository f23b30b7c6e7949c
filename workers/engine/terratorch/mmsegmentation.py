"""Prithvi 1.0's fine-tunes in the layout of MMSegmentation: floods, burn scars and crops, without MMSegmentation.

Their code is NASA-IMPACT/hls-foundation-os: `TemporalEncoderDecoder` of a vision transformer, a neck of transposed
convolutions, and the head `FCNHead`. The encoder is TerraTorch's, whose weights have the same names.

For several dates the training folded (dates * bands) channels into (bands, dates) as they lay, which mixes both axes.
The published weights learned that order, so this network folds its input the same way.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from penstock.models import Record

FACTORY = "TemporalEncoderDecoder"
#: Name of a weight in every checkpoint of MMSegmentation's decoders.
WEIGHT = "decode_head.conv_seg.weight"


class Temporal(Record):
    """Sizes of the network, by their names in the published configs."""

    num_classes: PositiveInt
    num_frames: PositiveInt = 1
    in_chans: PositiveInt = 6
    img_size: PositiveInt = 224
    embed_dim: PositiveInt = 768
    depth: PositiveInt = 12
    num_heads: PositiveInt = 12
    #: Channels between both layers of the head.
    channels: PositiveInt = 256

    @property
    def band_count(self) -> int:
        """The number of bands of each date."""
        return self.in_chans

    def network(self) -> nn.Module:
        """Build the network with random weights."""
        return TemporalEncoderDecoder(self)


class TemporalEncoderDecoder(nn.Module):
    """The network. Its input is (batch, bands, dates, H, W), or (batch, bands, H, W) for one date."""

    def __init__(self, sizes: Temporal) -> None:
        """Build the network with random weights."""
        from terratorch.models.backbones.prithvi_mae import PrithviViT

        super().__init__()
        of_backbone = sizes.model_dump(exclude={"num_classes", "channels"})
        self.backbone = PrithviViT(patch_size=(1, 16, 16), **of_backbone)
        self.neck = _Neck(sizes.embed_dim * sizes.num_frames)
        self.decode_head = _Head(sizes.embed_dim * sizes.num_frames, sizes.channels, sizes.num_classes)

    def forward(self, pixels: Tensor) -> Any:
        """Return TerraTorch's `ModelOutput` of (batch, classes, H, W)."""
        from terratorch.models.model import ModelOutput

        if pixels.ndim == 4:
            pixels = pixels[:, :, None]
        rows, columns = pixels.shape[-2] // 16, pixels.shape[-1] // 16
        tokens = self.backbone.forward_features(_mixed(pixels))[-1][:, 1:]
        features = tokens.transpose(1, 2).reshape(len(pixels), -1, rows, columns)
        return ModelOutput(output=self.decode_head(self.neck(features)))


def _mixed(pixels: Tensor) -> Tensor:
    """Return (batch, bands, dates, H, W) in the order of the training: date after date, folded as it lies."""
    return pixels.transpose(1, 2).reshape(pixels.shape)


class _Norm(nn.Module):
    """Normalisation of the channels of each pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, features: Tensor) -> Tensor:
        found: Tensor = self.ln(features.movedim(1, -1)).movedim(-1, 1)
        return found


class _Neck(nn.Sequential):
    """Four transposed convolutions, each of which doubles the side."""

    def __init__(self, channels: int) -> None:
        def twice() -> nn.Sequential:
            up = [nn.ConvTranspose2d(channels, channels, kernel_size=2, stride=2) for _ in range(2)]
            return nn.Sequential(up[0], _Norm(channels), nn.GELU(), up[1])

        super().__init__(OrderedDict(fpn1=twice(), fpn2=twice()))


class _Head(nn.Module):
    """MMSegmentation's `FCNHead` of one convolution, without its dropout."""

    def __init__(self, channels: int, between: int, classes: int) -> None:
        super().__init__()
        convolution = OrderedDict(
            conv=nn.Conv2d(channels, between, kernel_size=3, padding=1, bias=False), bn=nn.BatchNorm2d(between)
        )
        self.convs = nn.Sequential(nn.Sequential(convolution))
        self.conv_seg = nn.Conv2d(between, classes, kernel_size=1)

    def forward(self, features: Tensor) -> Tensor:
        found: Tensor = self.conv_seg(functional.relu(self.convs(features)))
        return found
