"""Mirrored copies of tiles: the passes of a network whose spread is the uncertainty of its answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.processors.base import Array

#: Axes along which a pass mirrors rows and columns: none, left to right, top to bottom, both.
FLIPS: Final[tuple[tuple[int, ...], ...]] = ((), (-1,), (-2,), (-2, -1))


def mirror(numbers: npt.NDArray[Any], at: int) -> npt.NDArray[Any]:
    """Return the view (..., rows, columns) of a pass. It is its own inverse: the answer is turned back by it."""
    return np.flip(numbers, FLIPS[at]) if at else numbers


def mirrored_inputs(inputs: Mapping[str, Array], at: int, names: Collection[str]) -> dict[str, Array]:
    """Return a prompt's inputs for a pass: those with these names have rows and columns, and are mirrored copies."""
    if not at:
        return dict(inputs)
    return {name: mirror(value, at).copy() if name in names else value for name, value in inputs.items()}
