"""Page files: reading and annotating, for all processors of pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from penstock.models import Limits
from penstock.processors.base import ArtifactSink, Media
from penstock.processors.limits import check_items
from penstock.processors.outputs import OUTPUTS
from penstock.processors.pages.annotation import Annotation, annotate
from penstock.processors.pages.request import PagesRequest
from penstock.processors.vision.image import ImageArray, measure, read_image

ANNOTATED = OUTPUTS.spec("annotated", "annotated-1.png and so on: each page with the results drawn onto it", kind="png")

_DUMMY_PX = (1024, 768)


@dataclass(frozen=True, slots=True)
class PagesContext:
    """Request state for `post_process`."""

    request: PagesRequest
    sources: tuple[Path | bytes, ...]
    limits: Limits
    #: (height, width) of each decoded page, after EXIF rotation.
    shapes: list[tuple[int, int]] = field(default_factory=list)

    def read(self) -> Iterator[ImageArray]:
        """Decode the pages one by one; a page is not kept in memory."""
        for source in self.sources:
            page = read_image(source, self.limits)
            self.shapes.append((page.shape[0], page.shape[1]))
            yield page

    def annotate(self, number: int, annotations: Sequence[Annotation], sink: ArtifactSink) -> None:
        """Add an annotated copy of the page with an index, if the request wants it."""
        if "annotated" in self.request.outputs:
            page = read_image(self.sources[number], self.limits)
            OUTPUTS.put(sink, f"annotated-{number + 1}", annotate(page, annotations), kind="png")


def open_pages(request: PagesRequest, media: Media, limits: Limits) -> tuple[PagesContext, int]:
    """Read the headers of all pages; return the context and the number of pixels of all pages.

    Raises the errors of `measure`, and `InvalidInput` for more pages than the model takes.
    """
    check_items(len(request.references), limits, "/input/images", "pages")
    sources = tuple(media.source(reference) for reference in request.references)
    cost = sum(height * width for height, width in (measure(source, limits) for source in sources))
    return PagesContext(request, sources, limits), cost


def write_dummy(folder: Path, limits: Limits) -> Path:
    """Write a page with a few lines of text, of ordinary size or the largest that the limits allow."""
    height, width = _DUMMY_PX
    shrink = min(1.0, ((limits.max_pixels or height * width) / (height * width)) ** 0.5)
    image = Image.new("RGB", (max(1, int(width * shrink)), max(1, int(height * shrink))), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(max(8.0, 28 * shrink))
    for line in range(8):
        place = (40 * shrink, (60 + 100 * line) * shrink)
        draw.text(place, f"Line {line} of a page", fill="black", font=font)
    path = folder / "dummy.png"
    Image.fromarray(np.asarray(image)).save(path)
    return path
