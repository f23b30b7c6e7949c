"""Positions of tokens inside images: Qwen2-VL's rotary positions of three axes. Pure.

Wang et al. 2024, "Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any Resolution", 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput


def grid_positions(
    in_image: npt.NDArray[np.bool_], grids: Sequence[Sequence[int]], merge: int
) -> npt.NDArray[np.int64]:
    """Return the positions (3, T) of tokens: time, row and column.

    `in_image` (T,) is true for tokens of images; `grids` has each image's (frames, rows, columns) of patches, of which
    `merge` x `merge` are one token. A text's tokens count on from the largest position before them.

    Raises `InvalidInput` if tokens and grids do not match.
    """
    found: list[npt.NDArray[Any]] = []
    at, following = 0, 0
    for frames, rows, columns in grids:
        shape = frames, rows // merge, columns // merge
        text, count = _until(in_image, at), int(np.prod(shape))
        if not in_image[text : text + count].all() or text + count > len(in_image):
            raise InvalidInput(f"an image makes {count} tokens, and the prompt has fewer places for them")
        found.append(_text(text - at, following))
        following += text - at
        found.append(np.indices(shape).reshape(3, count) + following)
        following += max(shape[1:])
        at = text + count
    if in_image[at:].any():
        raise InvalidInput("the prompt has places for more images than there are")
    return np.concatenate([*found, _text(len(in_image) - at, following)], axis=1).astype(np.int64)


def _until(in_image: npt.NDArray[np.bool_], at: int) -> int:
    """Return the index where the next image begins."""
    ahead = np.flatnonzero(in_image[at:])
    return at + int(ahead[0]) if len(ahead) else len(in_image)


def _text(count: int, first: int) -> npt.NDArray[Any]:
    return np.broadcast_to(np.arange(first, first + count), (3, count))
