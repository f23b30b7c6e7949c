"""Clay 1 and 1.5: an encoder that takes the bands' wavelengths and the size of a pixel beside the pixels.

The network is TerraTorch's copy of Clay's own. TerraTorch's `Clay1_5ModelFactory` puts a decoder behind it and leaves
the class token out, which is Clay's vector of a tile; so of that factory the arguments alone are used here. Time and
place are zeros, as for a fifth of the tiles of Clay's training and in TerraTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError
from torch import Tensor, nn

from penstock.errors import ModelUnavailable

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

    @classmethod
    def of(cls, args: Mapping[str, Any], file: str) -> Clay:
        """Return the arguments of a file or option; raise `ModelUnavailable` naming what is missing or wrong."""
        try:
            clay = cls.model_validate(dict(args))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ModelUnavailable(f"{file} is not of {FACTORY}: {where}: {first['msg']}") from error
        if clay.platform not in clay.metadata:
            raise ModelUnavailable(f"{file} has no metadata of the platform {clay.platform}")
        return clay

    @property
    def sensor(self) -> _Sensor:
        """The sensor of the scenes."""
        return self.metadata[self.platform]

    @property
    def bands(self) -> list[str]:
        """The names of the bands, in the order of the input."""
        return list(self.sensor.bands.wavelength)


class ClayEncoder(nn.Module):
    """Clay's encoder of tiles (batch, bands, H, W): a list of one tensor (batch, 1 + patches, dim), class token first."""

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
