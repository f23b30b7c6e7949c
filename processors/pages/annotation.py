"""Annotated pages: results drawn onto a copy of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from penstock.processors.vision.image import ImageArray

#: Width of lines and height of letters, as fractions of the page's longer side.
_LINE, _LETTER = 1 / 400, 1 / 60


@dataclass(frozen=True, slots=True)
class Annotation:
    """A labelled polygon on a page; its points are pixels (x, y)."""

    points: Sequence[tuple[float, float]]
    label: str
    colour: tuple[int, int, int]


def annotate(page: ImageArray, annotations: Sequence[Annotation]) -> ImageArray:
    """Return a copy of the page with all annotations."""
    image = Image.fromarray(page.copy())
    draw = ImageDraw.Draw(image)
    side = max(image.size)
    font = ImageFont.load_default(max(8.0, side * _LETTER))
    width = max(1, round(side * _LINE))
    for annotation in annotations:
        draw.polygon([(float(x), float(y)) for x, y in annotation.points], outline=annotation.colour, width=width)
        x, y = annotation.points[0]
        box = draw.textbbox((float(x), float(y)), annotation.label, font=font)
        draw.rectangle(box, fill=annotation.colour)
        draw.text((float(x), float(y)), annotation.label, fill="white", font=font)
    return np.asarray(image, dtype=np.uint8)
