"""Embeddings in place of images in chats of vLLM, for tenants with `raw_tensors`.

Some shapes that do not fit the model end vLLM's engine, so each file is checked first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import InvalidInput
from penstock.models import Model
from penstock.processors.base import Array
from penstock.processors.directory import read_config
from penstock.processors.multimodal.processed import Described, read_processed
from penstock.processors.openai.body import Medium, part_of
from penstock.processors.openai.options import EngineOptions, RequestOptions

#: The part of a message, and the arrays of its file by the library's names.
PART, VALUES, GRID = "image_embeds", "image_embeds", "image_grid_thw"
#: Supported values of `model_type`. vLLM 0.32 also accepts embeddings for Qwen2.5-Omni, but its engine crashes.
_TYPES = ("qwen2_vl",)
#: vLLM's engine argument that permits embeddings.
_SWITCH = "enable_mm_embeds"
#: The largest side of a grid, in patches.
_MOST = 2**15


@dataclass(frozen=True, slots=True)
class ImageEmbeddings:
    """The shape of the embeddings of one image for a model."""

    #: Numbers of an embedding: the width of the language model.
    width: int
    #: Patches of an embedding in each direction.
    merge: int

    @classmethod
    def of(cls, model: Model, options: RequestOptions) -> ImageEmbeddings | None:
        """Return the shape of a model's embeddings by its `config.json`; None for a model that accepts none."""
        config: Mapping[str, Any] = read_config(model) if isinstance(options, EngineOptions) else {}
        if config.get("model_type") not in _TYPES or not (
            isinstance(options, EngineOptions) and options.engine.get(_SWITCH) is True
        ):
            return None
        width = config.get("text_config", config).get("hidden_size")
        merge = config.get("vision_config", {}).get("spatial_merge_size", 2)
        return cls(width, merge) if isinstance(width, int) and isinstance(merge, int) else None

    def read(self, path: Path) -> tuple[Array, list[int]]:
        """Return the float32 embeddings (embeddings, width) of a .safetensors file, and the grid of their patches.

        Raises `InvalidInput` where they do not fit the model or one another, `MediaUnreadable` like `open_tensors`.
        """
        known = {
            VALUES: Described((np.dtype(np.float32),), (None, self.width)),
            GRID: Described((np.dtype(np.int64),), (1, 3)),
        }
        arrays = read_processed(path, known, VALUES)
        if GRID not in arrays:
            raise InvalidInput(f"The file lacks `{GRID}`, {known[GRID]}.")
        grid, rows = [int(size) for size in arrays[GRID][0]], len(arrays[VALUES])
        _, *sides = grid
        if not all(0 < size <= _MOST for size in grid) or any(side % self.merge for side in sides):
            raise InvalidInput(f"`{GRID}` is {grid}; its rows and columns are multiples of {self.merge} above 0.")
        if rows != (fits := prod(grid) // self.merge**2):
            raise InvalidInput(f"`{VALUES}` has {rows} embeddings; those of a `{GRID}` of {grid} are {fits}.")
        return arrays[VALUES], grid

    def inserted(self, body: Mapping[str, Any], media: Sequence[Medium]) -> list[Medium]:
        """Return the media with embeddings as vLLM reads them, and put their grids into the body.

        Raises the errors of `read`.
        """
        return [self._inserted(body, medium) if medium.at[-2] == PART else medium for medium in media]

    def _inserted(self, body: Mapping[str, Any], medium: Medium) -> Medium:
        values, grid = self.read(medium.path)
        part = part_of(body, medium)
        part.clear()
        part |= {VALUES: "", GRID: grid}
        with BytesIO() as file:
            np.save(file, values)
            return replace(medium, at=(*medium.at[:-1], VALUES), data=file.getvalue())
