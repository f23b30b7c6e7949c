"""LLaVA-NeXT's geometry: the resolution that an image is resized to, and its number of tokens.

After "LLaVA-NeXT: Improved reasoning, OCR, and world knowledge" (Liu et al., 2024). The arithmetic is that of
transformers, because its rounding decides the number of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Side = tuple[int, int]  #: (height, width) in pixels or patches


def best_resolution(shape: Side, resolutions: Sequence[Side]) -> Side:
    """Return the resolution that keeps most of an image's pixels; of several, the one with the least padding."""
    height, width = shape

    def merit(resolution: Side) -> tuple[int, int]:
        scale = min(resolution[1] / width, resolution[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - resolution[0] * resolution[1]

    return max(resolutions, key=merit)


def fitted(shape: Side, resolution: Side) -> Side:
    """Return the largest size with the image's aspect ratio that fits into a resolution."""
    height, width = shape
    by_width, by_height = resolution[1] / width, resolution[0] / height
    if by_width < by_height:
        return min(math.ceil(height * by_width), resolution[0]), resolution[1]
    return resolution[0], min(math.ceil(width * by_height), resolution[1])


def tiled_tokens(shape: Side, tiles: Side, grid: int) -> int:
    """Return the number of tokens of an image's tiles: (down, across) tiles with `grid` x `grid` patches each.

    Patches of padding have no token. Each row of patches has one additional token at its end.
    """
    height, width = shape
    rows, columns = tiles[0] * grid, tiles[1] * grid
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    return rows * columns + rows
