"""What was found on a page, drawn onto it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from penstock.processors.vision.picture import Picture

#: Of a page's longer side: the width of a line, and the height of letters.
_LINE, _LETTER = 1 / 400, 1 / 60


@dataclass(frozen=True, slots=True)
class Mark:
    """A closed line around something, in pixels (x, y), and what is written beside it."""

    points: Sequence[tuple[float, float]]
    label: str
    colour: tuple[int, int, int]


def annotated(page: Picture, marks: Sequence[Mark]) -> Picture:
    """Return a copy of the page with all marks."""
    image = Image.fromarray(page.copy())
    draw = ImageDraw.Draw(image)
    side = max(image.size)
    font = ImageFont.load_default(max(8.0, side * _LETTER))
    width = max(1, round(side * _LINE))
    for mark in marks:
        draw.polygon([(float(x), float(y)) for x, y in mark.points], outline=mark.colour, width=width)
        x, y = mark.points[0]
        box = draw.textbbox((float(x), float(y)), mark.label, font=font)
        draw.rectangle(box, fill=mark.colour)
        draw.text((float(x), float(y)), mark.label, fill="white", font=font)
    return np.asarray(image, dtype=np.uint8)
