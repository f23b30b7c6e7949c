"""Clay 1 and 1.5: an encoder that takes the bands' wavelengths and the size of a pixel beside the pixels.

The network is TerraTorch's copy of Clay's own. TerraTorch's `Clay1_5ModelFactory` puts a decoder behind it and leaves
the class token out, which is Clay's vector of a tile; so of that factory the arguments alone are used here. Time and
place are zeros, as for a fifth of the tiles of Clay's training and in TerraTorch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

FACTORY = "Clay1_5ModelFactory"


class _Bands(BaseModel):
    model_config = ConfigDict(frozen=True)

    #: Micrometres, by the band's name.
    wavelength: Mapping[str, PositiveFloat] = Field(min_length=1)


class _Sensor(BaseModel):
    model_config = ConfigDict(frozen=True)

    #: Metres of a pixel's side.
    gsd: PositiveFloat
    bands: _Bands


class Clay(BaseModel):
    """Arguments of `Clay1_5ModelFactory` that the encoder needs; the others are not read."""

    model_config = ConfigDict(frozen=True)

    #: Name of the sensor in `metadata`.
    platform: str
    #: Sensors, as in `configs/metadata.yaml` of Clay.
    metadata: Mapping[str, _Sensor]
    dim: PositiveInt = Field(multiple_of=4)
    depth: PositiveInt
    heads: PositiveInt
    dim_head: PositiveInt
    mlp_ratio: PositiveFloat
    patch_size: PositiveInt = 8

    @model_validator(mode="after")
    def _check_platform(self) -> Clay:
        if self.platform not in self.metadata:
            raise ValueError(f"metadata has no platform {self.platform}")
        return self

    @property
    def band_count(self) -> int:
        """The number of bands."""
        return len(self.bands)

    def network(self) -> nn.Module:
        """Build the network with random weights."""
        from terratorch.models.embedding_output_model import EmbeddingOutputModel

        network: nn.Module = EmbeddingOutputModel(ClayEncoder(self))
        return network

    @property
    def sensor(self) -> _Sensor:
        """The sensor of the scenes."""
        return self.metadata[self.platform]

    @property
    def bands(self) -> list[str]:
        """The names of the bands, in the order of the input."""
        return list(self.sensor.bands.wavelength)


class ClayEncoder(nn.Module):
    """Clay's encoder, from (batch, bands, H, W) to a list of one (batch, 1 + patches, dim), class token first."""

    def __init__(self, clay: Clay) -> None:
        """Build the network with random weights."""
        from terratorch.models.backbones.clay_v15.model import Encoder

        super().__init__()
        self.clay_encoder = Encoder(
            mask_ratio=0.0, shuffle=False, patch_size=clay.patch_size, dim=clay.dim, depth=clay.depth,
            heads=clay.heads, dim_head=clay.dim_head, mlp_ratio=clay.mlp_ratio,
        )  # fmt: skip
        self.out_channels = [clay.dim]
        wavelengths = torch.tensor(list(clay.sensor.bands.wavelength.values()))
        self.register_buffer("waves", wavelengths, persistent=False)
        self.register_buffer("gsd", torch.tensor(clay.sensor.gsd), persistent=False)

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """Return the tokens of each tile."""
        unknown = pixels.new_zeros(len(pixels), 4)
        known = {"pixels": pixels, "waves": self.waves, "gsd": self.gsd}
        tokens: Tensor = self.clay_encoder({**known, "time": unknown, "latlon": unknown})[0]
        return [tokens]
