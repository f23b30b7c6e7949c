"""From picture files to prompts: one each, `pixels` float32 (3, height, width)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from penstock.models import Limits
from penstock.processors.base import Media, Prompt
from penstock.processors.inputs import INPUTS
from penstock.processors.limits import check_items
from penstock.processors.vision.picture import Picture, measure
from penstock.processors.vision.recipe import Recipe

#: The network's input.
INPUT_NAME = "pixels"
#: The side of an ordinary picture: networks see fewer pixels, and a warm-up should not wait for decoders.
_DUMMY_PX = 1024


@dataclass(frozen=True, slots=True)
class Pictures:
    """A job's pictures as files whose headers were read."""

    paths: tuple[Path, ...]
    cost: int

    def prompts(self, recipe: Recipe, limits: Limits) -> Iterator[Prompt]:
        """Decode them one by one as they are asked for."""
        for path in self.paths:
            pixels = recipe.apply(INPUTS.read("picture", path, limits))
            yield Prompt({INPUT_NAME: pixels}, cost=pixels.shape[1] * pixels.shape[2])


def open_pictures(references: Sequence[str], media: Media, recipe: Recipe, limits: Limits) -> Pictures:
    """Read the headers of all pictures; raise as `read_picture` does, and `InvalidInput` for more than `max_items`."""
    check_items(len(references), limits, "/input/images", "pictures")
    paths = tuple(media.path(reference) for reference in references)
    return Pictures(paths, sum(recipe.cost(*measure(path, limits)) for path in paths))


def one_prompt(
    path: Path, recipe: Recipe, limits: Limits, *, sized: bool = False, **asked: float
) -> tuple[Picture, Prompt]:
    """Decode a job's only picture; return it with its prompt, which also says what is asked.

    The prompt has `shown` if some of its pixels are padding, and with `sized` the picture's `size`: [height, width].
    """
    picture: Picture = INPUTS.read("picture", path, limits)
    pixels = recipe.apply(picture)
    data: dict[str, Any] = {INPUT_NAME: pixels, **asked}
    if recipe.pads:
        data["shown"] = list(recipe.shown(*picture.shape[:2]))
    if sized:
        data["size"] = list(picture.shape[:2])
    return picture, Prompt(data, cost=pixels.shape[1] * pixels.shape[2])


def write_dummy(folder: Path, limits: Limits) -> Path:
    """Write a picture of noise, as large as an ordinary one or as the limits allow."""
    side = min(_DUMMY_PX, int((limits.max_pixels or _DUMMY_PX**2) ** 0.5))
    path = folder / "dummy.png"
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, compress_level=0)
    return path
