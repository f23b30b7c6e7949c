"""A job's `input`. No numpy here: whoever validates requests imports this module alone."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.models import MediaReference


class BrightnessRequest(BaseModel):
    """Pictures, and what to tell of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pictures: Annotated[list[MediaReference], Field(min_length=1)]
    bins: int = Field(default=4, ge=2, le=256, description="How many bars each histogram has.")
    outputs: tuple[Literal["map"], ...] = Field(default=(), description="map: also a grey picture of each, as PNG.")
