"""The `input` of image jobs. The API publishes their JSON Schemas, so neither numpy nor Pillow is imported here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from penstock.media_types import IMAGE_FILES
from penstock.models import ITEMS, MediaReference, Record

BoxOutput = Literal["boxes", "annotated"]
DepthOutput = Literal["depth", "preview", "values"]
EmbeddingOutput = Literal["json", "safetensors"]
InstanceOutput = Literal["mask", "overlay", "segments"]
MapOutput = Literal["mask", "overlay"]

_KINDS = "PNG, JPEG, WebP, TIFF, BMP, GIF, AVIF or HEIC; only the first frame is used"

Images = Annotated[
    MediaReference | Annotated[list[MediaReference], Field(min_length=1, max_length=10_000), ITEMS],
    Field(description=f"One image or a list of them ({_KINDS})", json_schema_extra=IMAGE_FILES),
]


Label = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class ImageRequest(Record):
    """A request with images."""

    images: Images

    @property
    def references(self) -> list[str]:
        """The media references of the images, in order."""
        return [self.images] if isinstance(self.images, str) else self.images


class ClassificationRequest(ImageRequest):
    """Images to classify."""

    top_k: int = Field(default=5, ge=1, le=1000, description="Number of classes per image in the result, best first.")


class ImageEmbeddingRequest(ImageRequest):
    """Images to embed."""

    outputs: tuple[EmbeddingOutput, ...] = Field(
        default=("json",),
        min_length=1,
        description="json: the embeddings in the result; safetensors: the artifact embeddings.safetensors.",
    )


class SingleImageRequest(Record):
    """A request with one image."""

    image: MediaReference = Field(description=f"The image ({_KINDS})", json_schema_extra=IMAGE_FILES)


class DepthEstimationRequest(SingleImageRequest):
    """An image to estimate depth from."""

    outputs: tuple[DepthOutput, ...] = Field(
        default=("depth", "preview"),
        min_length=1,
        description="depth: depth.png, 16 bits per pixel, and depth.json with its scale; preview: preview.png, lighter "
        "is nearer; values: values.safetensors, the depths as float32.",
    )


class ObjectDetectionRequest(SingleImageRequest):
    """An image to detect objects in."""

    threshold: float = Field(default=0.5, ge=0, le=1, description="Objects need a score above this.")
    outputs: tuple[BoxOutput, ...] = Field(
        default=("boxes", "annotated"),
        min_length=1,
        description="boxes: boxes.json, a copy of the result; annotated: annotated.png, the image with boxes.",
    )


class InstanceSegmentationRequest(SingleImageRequest):
    """An image to divide into segments."""

    threshold: float = Field(default=0.9, ge=0, le=1, description="Segments need a score above this.")
    mask_threshold: float = Field(
        default=0.5, ge=0, le=1, description="Minimum probability times score for a pixel to count as a segment's own."
    )
    overlap_threshold: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Segments need a larger share of their own pixels than this after overlaps are resolved.",
    )
    outputs: tuple[InstanceOutput, ...] = Field(
        default=("mask", "overlay", "segments"),
        min_length=1,
        description="mask: mask.png, segment ids with a palette, 0 without a segment; overlay: overlay.png, the image "
        "blended with the segments' colours; segments: segments.json, a copy of the result.",
    )


class ZeroShotClassificationRequest(ImageRequest):
    """Images to classify by your own labels."""

    labels: list[Label] = Field(
        min_length=1,
        max_length=1000,
        description="What the images may show, such as `a cat`.",
        examples=[["a house", "a cat"]],
    )
    template: str = Field(
        default="This is a photo of {}.",
        max_length=1000,
        pattern=r"^[^{}]*\{\}[^{}]*$",
        description="A sentence whose {} is replaced by each label.",
    )
    top_k: int | None = Field(
        default=None, ge=1, le=1000, description="Number of labels per image in the result, best first; default: all."
    )


class ImageSegmentationRequest(SingleImageRequest):
    """An image to segment."""

    outputs: tuple[MapOutput, ...] = Field(
        default=("mask", "overlay"),
        description="mask: mask.png, class ids with a palette; overlay: overlay.png, the image in their colours.",
    )
