"""The `input` of image generation jobs. The API publishes their JSON Schemas, so nothing heavy is imported here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from penstock.media_types import IMAGE_FILES
from penstock.models import ITEMS, STEPS, MediaReference, Record

Format = Literal["png", "webp"]

#: Maxima of one job, for every model.
MAX_IMAGES, MAX_STEPS, MAX_SIDE_PX, MAX_PREVIEWS = 100, 10_000, 8192, 20

_KINDS = "PNG, JPEG, WebP, TIFF, BMP, GIF, AVIF or HEIC; only the first frame is used"
_Side = Annotated[int, Field(ge=8, le=MAX_SIDE_PX)]


class ImageGenerationRequest(Record):
    """Images to generate. The same request gives the same images."""

    n: Annotated[int, Field(ge=1, le=MAX_IMAGES), ITEMS] = Field(
        default=1, description="Number of images; their seeds are `seed`, `seed + 1`, ..."
    )
    seed: int = Field(default=0, ge=0, lt=2**62, description="Seed of the noise: another seed gives another image.")
    steps: Annotated[int, Field(ge=1, le=MAX_STEPS), STEPS] | None = Field(
        default=None, description="Number of denoising steps; default: the model's own."
    )
    previews: int = Field(
        default=0, ge=0, le=MAX_PREVIEWS, description="Number of previews of each image, sent as `job.preview` events."
    )
    format: Format = Field(default="png", description="Format of the files; WebP is lossless.")


class GuidedRequest(ImageGenerationRequest):
    """Images to generate with guidance."""

    guidance_scale: float | None = Field(
        default=None,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Strength of the guidance by the prompt or label; up to 1 there is no guidance, in half the time.",
    )


class TextToImageRequest(GuidedRequest):
    """Images to generate from a text, or to change by one. A model refuses fields that its pipeline does not take."""

    prompt: str = Field(max_length=10_000, description="What the images show.")
    negative_prompt: str = Field(default="", max_length=10_000, description="What the images should not show.")
    width: _Side | None = Field(default=None, description="Width in pixels; default: the image's or the model's own.")
    height: _Side | None = Field(default=None, description="Height in pixels; default: as for the width.")
    image: MediaReference | None = Field(
        default=None,
        description=f"An image to change by the prompt ({_KINDS}); it is resized to `width` and `height`.",
        json_schema_extra=IMAGE_FILES,
    )
    mask: MediaReference | None = Field(
        default=None,
        description="An image of the size of `image` that marks the part to paint anew; the rest stays.",
        json_schema_extra=IMAGE_FILES,
    )
    mask_edits: Literal["white", "transparent"] = Field(
        default="white",
        description="The pixels of the mask that are painted anew. With `transparent` and without a mask, the "
        "transparent pixels of `image` itself are.",
    )
    strength: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="How much of `image` changes, from 0 to 1; of the steps only this share is computed.",
    )
    true_cfg_scale: float | None = Field(
        default=None,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Strength of the guidance by the negative prompt, for pipelines whose `guidance_scale` is an input "
        "of the network (Flux, Qwen-Image).",
    )


class LabelToImageRequest(GuidedRequest):
    """Images to generate of one of the model's labels."""

    label: int | Annotated[str, Field(max_length=200)] = Field(description="The label's name or number.")
