"""The `input` of page jobs. Their JSON Schemas are the API's: neither numpy nor Pillow is imported here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.models import ITEMS, MediaReference

PageOutput = Literal["annotated"]

Pages = Annotated[
    MediaReference | Annotated[list[MediaReference], Field(min_length=1, max_length=10_000), ITEMS],
    Field(description="One picture of a page or a list of them (PNG, JPEG, WebP, TIFF, BMP or GIF)"),
]


class PagesRequest(BaseModel):
    """Pages to look at."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    images: Pages
    min_score: float = Field(default=0.5, ge=0, le=1, description="What is less certain than this is left out.")
    outputs: tuple[PageOutput, ...] = Field(
        default=("annotated",),
        description="annotated: annotated-1.png and so on, each page with what was found on it. May be empty.",
    )

    @property
    def references(self) -> list[str]:
        """The pages, in order."""
        return [self.images] if isinstance(self.images, str) else self.images


class TextRequest(PagesRequest):
    """Pages to read."""


class LayoutRequest(PagesRequest):
    """Pages to take apart."""
