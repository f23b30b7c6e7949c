"""The grid of vectors over a scene: square cells of pixels from the scene's upper left corner. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.tiling.plan import Box


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of `side_px` pixels; `covered` is the part of the scene that the results cover."""

    side_px: int
    covered: Box

    @property
    def box(self) -> Box:
        """The cells of the results."""
        return self.of(self.covered)

    def of(self, pixels: Box) -> Box:
        """Return the cells that a box of pixels touches."""
        side = self.side_px
        return Box(pixels.top // side, pixels.left // side, -(-pixels.bottom // side), -(-pixels.right // side))

    def shares(self, pixels: Box, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
        """Return float32 (rows, columns): the share of each cell's pixels that are valid, of the box's cells.

        Pixels of a cell beyond the box, as at the scene's edge, have no data.
        """
        side, cells = self.side_px, self.of(pixels)
        whole = np.zeros((cells.height * side, cells.width * side), bool)
        top, left = pixels.top - cells.top * side, pixels.left - cells.left * side
        whole[top : top + pixels.height, left : left + pixels.width] = valid
        counts = whole.reshape(cells.height, side, cells.width, side).sum(axis=(1, 3))
        return np.asarray(counts / side**2, dtype=np.float32)

    def grid(self, scene: Any) -> Any:
        """Return the header of a scene of which each pixel is one cell of the results."""
        box, side, transform, gcps = self.box, self.side_px, scene.transform, scene.gcps
        if transform is not None:
            kind = type(transform)
            transform = transform @ kind.translation(box.left * side, box.top * side) @ kind.scale(side)
        points = tuple(
            type(point)(row=point.row / side, col=point.col / side, x=point.x, y=point.y, z=point.z) for point in gcps
        )
        return replace(scene, height=box.height, width=box.width, transform=transform, gcps=points, rpcs=None)
