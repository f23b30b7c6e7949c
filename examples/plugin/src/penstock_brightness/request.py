"""The `input` of a job. Without numpy: validation imports this module alone."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.models import MediaReference


class BrightnessRequest(BaseModel):
    """The pictures, and the results to compute."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pictures: Annotated[list[MediaReference], Field(min_length=1)]
    bins: int = Field(default=4, ge=2, le=256, description="Number of bars of each histogram.")
    outputs: tuple[Literal["map"], ...] = Field(default=(), description="map: also a grey picture of each, as PNG.")
