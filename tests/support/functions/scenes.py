"""Functions that take tiles of scenes, with each kind of answer, and one that answers wrongly."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch

import penstock
from penstock import Band, Boxes, Classes, Quantities, Scene, Vector

GREEN_NIR = ["green", "nir"]
Array = npt.NDArray[np.float32]
Tile = Annotated[Array, Scene(GREEN_NIR, halo_px=0, tile_px=64, stride_px=1)]
Square = Annotated[Array, Scene(GREEN_NIR, tile_px=64)]
Water = Annotated[npt.NDArray[Any], Classes({"land": "#8c9a4b", "water": "#2166ac"})]


@penstock.model
def rule(tile: Tile) -> Water:
    """Map water by a rule."""
    return tile[0] > tile[1]


@penstock.model(max_batch=4)
class Net:
    """Map fields by a network."""

    def load(self) -> None:
        torch.set_num_threads(1)  # as the built-in runner in tests: two threads may give other last bits
        self.net = torch.export.load(penstock.weights("program.pt2")).module()

    def predict(
        self,
        tiles: list[
            Annotated[
                Array,
                Scene(
                    [
                        Band("green", mean=0.1, std=0.05),
                        Band("red", mean=0.11, std=0.06),
                        Band("nir", mean=0.28, std=0.1),
                    ],
                    halo_px=4,
                    tile_px=64,
                    reflectance=1.0,
                ),
            ]
        ],
    ) -> list[Annotated[npt.NDArray[Any], Classes(["other", "field", "wood"])]]:
        with torch.inference_mode():
            return [self.net(torch.from_numpy(tile)[None])[0].softmax(0) for tile in tiles]


@penstock.model(max_batch=4)
def together(tiles: list[Tile]) -> list[Annotated[Array, Quantities({"tiles": "", "green": "1"})]]:
    """Answer the number of tiles of the call, and their green."""
    return [np.stack([np.full(tile[0].shape, len(tiles), np.float32), tile[0]]) for tile in tiles]


@penstock.model
def means(tile: Square) -> Vector:
    """Embed a tile by the means of its bands."""
    return Vector(tile.mean(axis=(1, 2)))


@penstock.model
def brightest(tile: Square) -> Annotated[Boxes, Classes(["ship", "buoy"])]:
    """Find a square of 4 pixels around each tile's brightest pixel."""
    y, x = np.unravel_index(int(tile[1].argmax()), tile[1].shape)
    return Boxes([{"label": "buoy", "score": 0.9, "box": [x - 2, y - 2, x + 2, y + 2]}])


@penstock.model
def wrong(tile: Annotated[Array, Scene(GREEN_NIR, halo_px=0, tile_px=64)]) -> Water:
    """Answer one row too few, class ids that are none, scores, or an error, by the first number of the tile."""
    print("the first number is", tile[0, 0, 0])  # noqa: T201
    match int(tile[0, 0, 0]):
        case 1:
            return np.zeros((tile.shape[1] - 1, tile.shape[2]), np.uint8)
        case 2:
            return np.full(tile.shape[1:], 2, np.int32)
        case 3:
            return tile
        case _:
            raise ZeroDivisionError("no number")
