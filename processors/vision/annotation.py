"""Drawing found objects into their picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from penstock.processors.vision.colours import colour
from penstock.processors.vision.picture import Picture

#: Lines and letters grow with the picture: these are parts of its longer side.
_LINE = 1 / 400
_LETTER = 1 / 60
_LEAST_LINE_PX = 1
_LEAST_LETTER_PX = 10
#: More than this would be drawn over each other.
_MOST = 300


def annotate(picture: Picture, objects: Sequence[Mapping[str, Any]]) -> Picture:
    """Return the picture with the boxes, labels and scores of objects; the best are drawn last, on top."""
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    longer = max(image.size)
    line = max(_LEAST_LINE_PX, round(longer * _LINE))
    font = ImageFont.load_default(max(_LEAST_LETTER_PX, round(longer * _LETTER)))
    for one in reversed(objects[:_MOST]):
        box = one["box"]
        # 0 is black in the map of colours.
        paint = colour(one["id"] % 255 + 1)
        draw.rectangle((box["xmin"], box["ymin"], box["xmax"], box["ymax"]), outline=paint, width=line)
        _write(draw, (box["xmin"], box["ymin"]), f"{one['label']} {one['score']:.2f}", paint, font)
    return np.asarray(image, dtype=np.uint8)


def _write(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, paint: tuple[int, int, int], font: Any
) -> None:
    """Write above a corner, or below where there is no room, on a ground of the box's colour."""
    left, top, right, bottom = draw.textbbox(at, text, font=font)
    height = bottom - top + 2
    y = at[1] - height if at[1] >= height else at[1]
    draw.rectangle((at[0], y, at[0] + right - left + 2, y + height), fill=paint)
    dark = sum(paint) < 3 * 128
    draw.text((at[0] + 1, y + 1 - (top - at[1])), text, fill="white" if dark else "black", font=font)
