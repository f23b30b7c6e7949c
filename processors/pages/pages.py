"""What processors of pages share: files whose headers were read, and annotated copies of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from penstock.models import Limits
from penstock.processors.base import ArtifactSink, Media
from penstock.processors.inputs import INPUTS
from penstock.processors.limits import check_items
from penstock.processors.outputs import OUTPUTS
from penstock.processors.pages.drawing import Mark, annotated
from penstock.processors.pages.request import PagesRequest
from penstock.processors.vision.picture import Picture, measure

ANNOTATED = OUTPUTS.spec("annotated", "annotated-1.png and so on: each page with what was found on it", kind="png")

_DUMMY_PX = (1024, 768)


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    request: PagesRequest
    paths: tuple[Path, ...]
    limits: Limits
    #: (height, width) of each page that was decoded, as people see it: its header says it before any rotation.
    shapes: list[tuple[int, int]] = field(default_factory=list)

    def read(self) -> Iterator[Picture]:
        """Decode the pages one by one: none is held while the engine looks at others."""
        for path in self.paths:
            page: Picture = INPUTS.read("picture", path, self.limits)
            self.shapes.append((page.shape[0], page.shape[1]))
            yield page

    def annotate(self, number: int, marks: Sequence[Mark], sink: ArtifactSink) -> None:
        """Hand over a copy of a page, counted from 0, with the marks on it, if that was asked for."""
        if "annotated" in self.request.outputs:
            page: Picture = INPUTS.read("picture", self.paths[number], self.limits)
            OUTPUTS.put(sink, f"annotated-{number + 1}", annotated(page, marks), kind="png")


def open_pages(request: PagesRequest, media: Media, limits: Limits) -> tuple[Context, int]:
    """Read the headers of all pages; return them with their pixels.

    Raises as `measure` does, and `InvalidInput` for more pages than the model takes.
    """
    check_items(len(request.references), limits, "/input/images", "pages")
    paths = tuple(media.path(reference) for reference in request.references)
    cost = sum(height * width for height, width in (measure(path, limits) for path in paths))
    return Context(request, paths, limits), cost


def write_dummy(folder: Path, limits: Limits) -> Path:
    """Write a page with a few lines of text, as large as an ordinary one or as the limits allow."""
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
