"""Tiles of scenes as calls of a function: the prompts and outputs of raster processors."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidInput, PenstockError
from penstock.processors.base import Output, Prompt
from penstock.processors.functions.processor import raised
from penstock.processors.prompt_names import PIXELS
from penstock.workers.engine.base import shapes_of


class TileCalls:
    """Calls of tiles: a prompt is one tile, float32 (bands, H, W), and an output the arrays that its answer became."""

    has_partials = False

    def __init__(self, signature: Mapping[str, Any]) -> None:
        """Read the name of the parameter, and the bands of all dates."""
        [self._name], self._batched = signature["parameters"], signature["batched"] is not None
        options = signature["raster"]["options"]
        self._bands = len(options["bands"]) * options.get("dates", 1)

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the tile's shape: the tiles of a call have one."""
        return shapes_of(prompt)

    def value(self, prompt: Prompt) -> Mapping[str, Any]:
        """Return the arguments of a call, or one item of it; raise `InvalidInput` for a tile of other bands."""
        pixels: Any = prompt.data[PIXELS]
        if pixels.ndim != 3 or len(pixels) != self._bands:
            raise InvalidInput(f"the function takes {self._bands} bands, the prompt has the shape {pixels.shape}")
        return {"arguments": {}, "item": pixels} if self._batched else {"arguments": {self._name: pixels}}

    def output(self, answer: Mapping[str, Any], text: str, lines: Sequence[str]) -> Output:  # noqa: ARG002  (none)
        """Return the output of an answer; raise `TypeError` for one without arrays."""
        if not all(isinstance(array, np.ndarray) for array in answer.values()):
            raise TypeError("an answer to a tile has arrays only")
        return Output(dict(answer))

    def failed(self, error: Mapping[str, Any], text: str, lines: Sequence[str]) -> PenstockError:  # noqa: ARG002
        """Return the error of a call, and log its place."""
        return raised(error)
