"""LLaVA-NeXT's geometry: which resolution a picture is brought to, and how many tokens stand for it. Pure.

After "LLaVA-NeXT: Improved reasoning, OCR, and world knowledge" (Liu et al., 2024), in transformers' arithmetic, whose
roundings decide how many tokens there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Side = tuple[int, int]  #: (height, width) in pixels or patches


def best_resolution(shape: Side, resolutions: Sequence[Side]) -> Side:
    """Return the resolution that keeps most of a picture's pixels, and among equals wastes least."""
    height, width = shape

    def merit(resolution: Side) -> tuple[int, int]:
        scale = min(resolution[1] / width, resolution[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - resolution[0] * resolution[1]

    return max(resolutions, key=merit)


def fitted(shape: Side, resolution: Side) -> Side:
    """Return the size of a picture in its own proportions that fills a resolution as far as it goes."""
    height, width = shape
    by_width, by_height = resolution[1] / width, resolution[0] / height
    if by_width < by_height:
        return min(math.ceil(height * by_width), resolution[0]), resolution[1]
    return resolution[0], min(math.ceil(width * by_height), resolution[1])


def tiled_tokens(shape: Side, tiles: Side, grid: int) -> int:
    """Return how many tokens a picture's tiles make, (down, across) of them with `grid` x `grid` patches each.

    The padding's are left out, and each row has one more that ends it.
    """
    height, width = shape
    rows, columns = tiles[0] * grid, tiles[1] * grid
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    return rows * columns + rows
