"""The `input` of page jobs. The API publishes their JSON Schemas, so neither numpy nor Pillow is imported here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from penstock.media_types import IMAGE_FILES
from penstock.models import ITEMS, MediaReference, Record

PageOutput = Literal["annotated"]

Pages = Annotated[
    MediaReference | Annotated[list[MediaReference], Field(min_length=1, max_length=10_000), ITEMS],
    Field(
        description="The image of a page, or a list of them (PNG, JPEG, WebP, TIFF, BMP, GIF, AVIF or HEIC)",
        json_schema_extra=IMAGE_FILES,
    ),
]


class PagesRequest(Record):
    """A request with pages."""

    images: Pages
    min_score: float = Field(default=0.5, ge=0, le=1, description="Results with a lower score are left out.")
    outputs: tuple[PageOutput, ...] = Field(
        default=("annotated",),
        description="annotated: annotated-1.png and so on, each page with the results drawn onto it. May be empty.",
    )

    @property
    def references(self) -> list[str]:
        """The media references of the pages, in order."""
        return [self.images] if isinstance(self.images, str) else self.images


class TextRequest(PagesRequest):
    """Pages to read text from."""


class LayoutRequest(PagesRequest):
    """Pages to detect the layout of."""
