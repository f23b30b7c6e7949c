"""Positions of tokens that have a place in a picture: Qwen2-VL's rotary positions of three axes. Pure.

Wang et al. 2024, "Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any Resolution", 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput


def grid_positions(
    pictured: npt.NDArray[np.bool_], grids: Sequence[Sequence[int]], merge: int
) -> npt.NDArray[np.int64]:
    """Return the positions (3, T) of tokens: of time, row and column.

    `pictured` (T,) says which tokens belong to pictures; `grids` has each picture's (frames, rows, columns) of patches,
    of which `merge` x `merge` are one token. A text's tokens count on from the largest position before them.

    Raises `InvalidInput` where tokens and grids do not fit.
    """
    found: list[npt.NDArray[Any]] = []
    at, following = 0, 0
    for frames, rows, columns in grids:
        shape = frames, rows // merge, columns // merge
        text, count = _until(pictured, at), int(np.prod(shape))
        if not pictured[text : text + count].all() or text + count > len(pictured):
            raise InvalidInput(f"a picture makes {count} tokens, and the prompt has fewer places for them")
        found.append(_text(text - at, following))
        following += text - at
        found.append(np.indices(shape).reshape(3, count) + following)
        following += max(shape[1:])
        at = text + count
    if pictured[at:].any():
        raise InvalidInput("the prompt has places for more pictures than there are")
    return np.concatenate([*found, _text(len(pictured) - at, following)], axis=1).astype(np.int64)


def _until(pictured: npt.NDArray[np.bool_], at: int) -> int:
    """Return where the next picture begins."""
    ahead = np.flatnonzero(pictured[at:])
    return at + int(ahead[0]) if len(ahead) else len(pictured)


def _text(count: int, first: int) -> npt.NDArray[Any]:
    return np.broadcast_to(np.arange(first, first + count), (3, count))
