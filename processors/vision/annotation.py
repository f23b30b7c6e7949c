"""Annotated images: detected objects drawn as boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from penstock.processors.vision.colours import colour
from penstock.processors.vision.image import ImageArray

#: Width of lines and height of letters, as fractions of the image's longer side.
_LINE = 1 / 400
_LETTER = 1 / 60
_LEAST_LINE_PX = 1
_LEAST_LETTER_PX = 10
#: Maximum number of objects drawn; more would cover each other.
_MAX_OBJECTS = 300


def annotate(image: ImageArray, objects: Sequence[Mapping[str, Any]]) -> ImageArray:
    """Return a copy of the image with the boxes, labels and scores of objects; the best object is drawn on top."""
    canvas = Image.fromarray(image)
    draw = ImageDraw.Draw(canvas)
    longer = max(canvas.size)
    line = max(_LEAST_LINE_PX, round(longer * _LINE))
    font = ImageFont.load_default(max(_LEAST_LETTER_PX, round(longer * _LETTER)))
    for one in reversed(objects[:_MAX_OBJECTS]):
        box = one["box"]
        # Colour 0 is black; a label of nothing known has the first one.
        paint = colour((one["label_id"] or 0) % 255 + 1)
        draw.rectangle((box["xmin"], box["ymin"], box["xmax"], box["ymax"]), outline=paint, width=line)
        _write(draw, (box["xmin"], box["ymin"]), f"{one['label']} {one['score']:.2f}", paint, font)
    return np.asarray(canvas, dtype=np.uint8)


def mark(
    image: ImageArray, points: Sequence[tuple[Sequence[float], bool]], boxes: Sequence[Sequence[float]]
) -> ImageArray:
    """Return a copy of the image with boxes (left, top, right, bottom) and points, green on objects, red beside."""
    canvas = Image.fromarray(image)
    draw = ImageDraw.Draw(canvas)
    line = max(_LEAST_LINE_PX, round(max(canvas.size) * _LINE))
    for box in boxes:
        draw.rectangle(tuple(box), outline="white", width=line)
    for (x, y), on_it in points:
        draw.circle((x, y), 3 * line, fill=(0, 200, 0) if on_it else (220, 0, 0), outline="white", width=line)
    return np.asarray(canvas, dtype=np.uint8)


def _write(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, paint: tuple[int, int, int], font: Any
) -> None:
    """Write a text above a corner, or below it at the upper edge, on a background of the box's colour."""
    left, top, right, bottom = draw.textbbox(at, text, font=font)
    height = bottom - top + 2
    y = at[1] - height if at[1] >= height else at[1]
    draw.rectangle((at[0], y, at[0] + right - left + 2, y + height), fill=paint)
    dark = sum(paint) < 3 * 128
    draw.text((at[0] + 1, y + 1 - (top - at[1])), text, fill="white" if dark else "black", font=font)
