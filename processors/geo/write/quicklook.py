"""Quicklook of a scene: its red, green and blue bands as an image of at most 1024 px, stretched for the eye."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from penstock.processors.geo.read.band_names import canonical
from penstock.processors.geo.read.inputs import Inputs
from penstock.processors.geo.read.scene_rows import open_rows
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.artifacts import ArtifactWriter

_SIDE_PX = 1024
#: Memory of a chunk of rows. Tiles of 512 rows are read in panels; files of low strips are read once.
_READ_BYTES = 2**24
_COLOURS = ("red", "green", "blue")
#: Percentiles of all three bands that become black and white. One stretch for all keeps the colours.
_LOW, _HIGH = 1.0, 99.0
#: Note in the statistics of a scene without colours.
COLOURLESS: Final = "quicklook.png was not created: the model has no bands named red, green and blue."


@dataclass(frozen=True, slots=True)
class Quicklook:
    """Quicklook of a scene's inputs."""

    inputs: Inputs

    def add(self, artifacts: ArtifactWriter) -> list[str]:
        """Add quicklook.png; return a note if the scene has no colours."""
        places = colour_places(self.inputs)
        if places is None:
            return [COLOURLESS]
        write_quicklook(path := artifacts.sink.path("quicklook.png"), self.inputs, places)
        artifacts.add(path.name, path, "image/png", title="the scene", roles=("overview",))
        return []


def colour_places(inputs: Inputs) -> tuple[int, ...] | None:
    """Return the places of the last date's red, green and blue bands; None if the model does not have all three."""
    found = []
    for colour in _COLOURS:
        named = [at for at, band in enumerate(inputs.needed) if colour in _names(band.name, band.synonyms)]
        found += named[-1:]
    return tuple(found) if len(found) == len(_COLOURS) else None


def write_quicklook(path: Path, inputs: Inputs, places: Sequence[int]) -> None:
    """Write the part of the scene that the results cover as a PNG; see `picture`."""
    Image.fromarray(picture(inputs, places).image).save(path, format="PNG", optimize=True)


@dataclass(frozen=True, slots=True)
class Picture:
    """A scene as an image: uint8 (rows, columns, 4). Pixels without data are transparent."""

    image: npt.NDArray[np.uint8]
    #: The part of the scene that is shown; pixels of it per pixel of the image; -1 for flipped rows and columns.
    box: Box
    step: int
    down: int
    across: int

    def place(self, sides: Sequence[float]) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom in the image of a box in pixels of the scene."""
        left, top, right, bottom = sides
        height, width = self.image.shape[:2]
        x = [(side - self.box.left) / self.step for side in (left, right)]
        y = [(side - self.box.top) / self.step for side in (top, bottom)]
        x = x if self.across > 0 else [width - x[1], width - x[0]]
        y = y if self.down > 0 else [height - y[1], height - y[0]]
        return x[0], y[0], x[1], y[1]


def picture(inputs: Inputs, places: Sequence[int]) -> Picture:
    """Return the part of the scene that the results cover, of at most 1024 px, from three bands at these places.

    Every n-th pixel of every n-th row is used. Rows and columns that are reversed on the ground are flipped.
    """
    box = inputs.box
    step = max(1, -(-max(box.height, box.width) // _SIDE_PX))
    numbers, valid = _thinned(inputs, places, box, step)
    for at, place in enumerate(places):
        numbers[at] = numbers[at] * inputs.radiometry.scale[place] + inputs.radiometry.offset[place]
    image = np.zeros((*valid.shape, 4), np.uint8)
    if valid.any():
        low, high = np.percentile(numbers[:, valid], (_LOW, _HIGH))
        image[..., :3] = brightness(numbers, low, high).transpose(1, 2, 0)
        image[..., 3] = np.where(valid, 255, 0)
    down, across = _directions(inputs.grid.transform)
    return Picture(np.ascontiguousarray(image[::down, ::across]), box, step, down, across)


def brightness(numbers: npt.NDArray[np.float64], low: float, high: float) -> npt.NDArray[np.uint8]:
    """Return uint8 of the same shape: 0 at `low`, 255 at `high`."""
    shares = np.clip((numbers - low) / ((high - low) or 1), 0, 1)
    return np.rint(np.nan_to_num(shares) * 255).astype(np.uint8)


def _names(name: str, synonyms: Sequence[str]) -> set[str]:
    return {canonical(each) for each in (name, *synonyms)}


def _thinned(
    inputs: Inputs, places: Sequence[int], box: Box, step: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return float64 (3, rows, columns) and the validity of every `step`-th pixel.

    A wide scene is read in panels of columns, so that memory does not grow with its width.
    """
    wide = max(1, _READ_BYTES // inputs.column_bytes // step) * step
    lefts = range(box.left, box.right, wide)
    panels = [Box(box.top, left, box.bottom, min(box.right, left + wide)) for left in lefts]
    found = [_thinned_panel(inputs, places, panel, step) for panel in panels]
    numbers, masks = zip(*found, strict=True)
    return np.concatenate(numbers, axis=2), np.concatenate(masks, axis=1)


def _thinned_panel(
    inputs: Inputs, places: Sequence[int], box: Box, step: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return `_thinned` of a panel. Each row is decoded once."""
    bands, masks = [], []
    with open_rows(inputs, bottom=box.bottom) as rows:
        for top, numbers, known in rows.read(box):
            first = (box.top - top) % step
            bands.append(numbers[list(places), first::step, ::step].astype(np.float64))
            masks.append(known[first::step, ::step])
    return np.concatenate(bands, axis=1), np.concatenate(masks)


def _directions(transform: Any | None) -> tuple[int, int]:
    """Return the steps through rows and columns that put north up and west left."""
    if transform is None or transform.b or transform.d:
        return 1, 1
    return -1 if transform.e > 0 else 1, -1 if transform.a < 0 else 1
