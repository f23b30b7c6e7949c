"""The `input` of picture jobs. Their JSON Schemas are the API's: neither numpy nor Pillow is imported here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from penstock.models import ITEMS, MediaReference

BoxOutput = Literal["boxes", "annotated"]
DepthOutput = Literal["depth", "preview", "values"]
EmbeddingOutput = Literal["json", "safetensors"]
InstanceOutput = Literal["mask", "overlay", "segments"]
MapOutput = Literal["mask", "overlay"]

_KINDS = "PNG, JPEG, WebP, TIFF, BMP or GIF; the first frame counts"

Images = Annotated[
    MediaReference | Annotated[list[MediaReference], Field(min_length=1, max_length=10_000), ITEMS],
    Field(description=f"One picture or a list of them ({_KINDS})"),
]


Label = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class ImageRequest(BaseModel):
    """Pictures to look at."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    images: Images

    @property
    def references(self) -> list[str]:
        """The pictures, in order."""
        return [self.images] if isinstance(self.images, str) else self.images


class ClassificationRequest(ImageRequest):
    """Pictures to classify."""

    top_k: int = Field(default=5, ge=1, le=1000, description="How many classes to name for each picture, best first.")


class ImageEmbeddingRequest(ImageRequest):
    """Pictures to embed."""

    outputs: tuple[EmbeddingOutput, ...] = Field(
        default=("json",),
        min_length=1,
        description="json: the embeddings in the result; safetensors: the artifact embeddings.safetensors.",
    )


class OnePictureRequest(BaseModel):
    """A picture to look at."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: MediaReference = Field(description=f"The picture ({_KINDS})")


class DepthEstimationRequest(OnePictureRequest):
    """A picture whose depth is wanted."""

    outputs: tuple[DepthOutput, ...] = Field(
        default=("depth", "preview"),
        min_length=1,
        description="depth: depth.png, 16 bits a pixel, and depth.json with its scale; preview: preview.png, lighter "
        "is nearer; values: values.safetensors, the numbers themselves as float32.",
    )


class ObjectDetectionRequest(OnePictureRequest):
    """A picture to find objects in."""

    threshold: float = Field(default=0.5, ge=0, le=1, description="Objects with a score above this are told.")
    outputs: tuple[BoxOutput, ...] = Field(
        default=("boxes", "annotated"),
        min_length=1,
        description="boxes: boxes.json, what the result also says; annotated: annotated.png, the picture with them.",
    )


class InstanceSegmentationRequest(OnePictureRequest):
    """A picture to part into objects."""

    threshold: float = Field(default=0.9, ge=0, le=1, description="Segments with a score above this are told.")
    mask_threshold: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="The probability, times the score, from which on a pixel is a segment's own.",
    )
    overlap_threshold: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Segments of whose own pixels others took so many that no larger share is left are dropped.",
    )
    outputs: tuple[InstanceOutput, ...] = Field(
        default=("mask", "overlay", "segments"),
        min_length=1,
        description="mask: mask.png, segment ids with a palette, 0 where there is none; overlay: overlay.png, the "
        "picture in their colours; segments: segments.json, what the result also says.",
    )


class ZeroShotClassificationRequest(ImageRequest):
    """Pictures to classify by labels of your own."""

    labels: list[Label] = Field(min_length=1, max_length=1000, description="What the pictures may show, in words.")
    template: str = Field(
        default="This is a photo of {}.",
        max_length=1000,
        pattern=r"^[^{}]*\{\}[^{}]*$",
        description="The sentence that a label is put into, where its {} stands.",
    )
    top_k: int | None = Field(
        default=None, ge=1, le=1000, description="How many labels to tell for each picture, best first; all by default."
    )


class ImageSegmentationRequest(OnePictureRequest):
    """A picture to segment."""

    outputs: tuple[MapOutput, ...] = Field(
        default=("mask", "overlay"),
        description="mask: mask.png, class ids with a palette; overlay: overlay.png, the picture in their colours.",
    )
