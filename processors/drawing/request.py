"""The `input` of image generation jobs. Their JSON Schemas are the API's: neither numpy nor Pillow is imported here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.models import ITEMS, STEPS

Format = Literal["png", "webp"]

#: Of one job, whatever its model's limits are.
MAX_IMAGES, MAX_STEPS, MAX_SIDE_PX, MAX_PREVIEWS = 100, 10_000, 8192, 20

_Side = Annotated[int, Field(ge=8, le=MAX_SIDE_PX)]


class ImageGenerationRequest(BaseModel):
    """Images to make out of noise. The same request gives the same images."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: Annotated[int, Field(ge=1, le=MAX_IMAGES), ITEMS] = Field(
        default=1, description="How many images; each has a seed of its own: `seed`, `seed + 1`, ..."
    )
    seed: int = Field(default=0, ge=0, lt=2**62, description="Another seed gives another image.")
    steps: Annotated[int, Field(ge=1, le=MAX_STEPS), STEPS] | None = Field(
        default=None,
        description="In how many steps the noise is taken out; without it as many as the model's record says.",
    )
    previews: int = Field(
        default=0,
        ge=0,
        le=MAX_PREVIEWS,
        description="How often each image is shown on its way, as `job.preview` events.",
    )
    format: Format = Field(default="png", description="Of the files; WebP without loss.")


class GuidedRequest(ImageGenerationRequest):
    """Images of what a network is told."""

    guidance_scale: float | None = Field(
        default=None,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="How much what was asked for counts; up to 1 the network is not guided, and half as slow.",
    )


class TextToImageRequest(GuidedRequest):
    """Images of what a text says."""

    prompt: str = Field(max_length=10_000, description="What the images show.")
    negative_prompt: str = Field(default="", max_length=10_000, description="What they are guided away from.")
    width: _Side | None = Field(
        default=None, description="Pixels; without it the size that the model was trained with."
    )
    height: _Side | None = Field(default=None, description="Pixels.")


class LabelToImageRequest(GuidedRequest):
    """Images of one of the things that a network was trained on."""

    label: int | Annotated[str, Field(max_length=200)] = Field(description="The label's name or number.")
