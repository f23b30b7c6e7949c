"""The runner `lightgbm`: a LightGBM model of single pixels or table rows.

Prompts have `pixels`, float32 (bands, H, W), and outputs `probability`, float32 (classes, H, W); or prompts have
`features`, float32 (rows, columns), and outputs `values`, float32 (rows,) or (rows, numbers), as LightGBM gives them. A
pixel's or row's result does not depend on what shares its tile or its batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner, shapes_of
from penstock.workers.engine.weights import read_weights


@dataclass(frozen=True, slots=True)
class LightGbmRunner:
    """A LightGBM model on the CPU, with as many threads as there are cores."""

    booster: Any
    bands: int
    #: Approximate bytes of the trees.
    memory_bytes: int
    #: 1: a tile has enough pixels for all threads.
    max_batch: int = 1

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the prompt's shape: tiles of one shape share a batch."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> npt.NDArray[np.float32]:
        """Return the prompt's pixels or rows as they are."""
        if (rows := prompt.data.get("features")) is not None:
            return self._table(rows)
        pixels = prompt.data.get("pixels")
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.float32 or pixels.ndim != 3:
            raise ProcessorFailed("the model takes `pixels`, a float32 array (bands, height, width)")
        if pixels.shape[0] != self.bands:
            raise InvalidInput(f"the model takes {self.bands} bands, the prompt has {pixels.shape[0]}")
        return pixels

    def step(self, states: Sequence[npt.NDArray[np.float32]]) -> Sequence[Done]:
        """Classify every pixel, or predict every row."""
        return [
            Done(
                Output({"values": self._predict(state)} if state.ndim == 2 else {"probability": self._classify(state)})
            )
            for state in states
        ]

    def close(self) -> None:
        """Free nothing."""

    def _table(self, rows: Any) -> npt.NDArray[np.float32]:
        if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.ndim != 2:
            raise ProcessorFailed("the model takes `features`, a float32 array (rows, columns)")
        if rows.shape[1] != self.bands:
            raise ProcessorFailed(f"the model takes {self.bands} columns, the prompt has {rows.shape[1]}")
        return rows

    def _predict(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.asarray(self.booster.predict(rows), dtype=np.float32)

    def _classify(self, pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        table = np.ascontiguousarray(pixels.reshape(self.bands, -1).T)
        scores = np.asarray(self.booster.predict(table))
        # For two classes LightGBM returns the second one's probability alone.
        columns = np.stack([1 - scores, scores]) if scores.ndim == 1 else scores.T
        return np.ascontiguousarray(columns, dtype=np.float32).reshape(-1, *pixels.shape[1:])


def load_lightgbm(model: Model) -> Runner:
    """Load a model from its text file; raise `ModelUnavailable` if the file is not a LightGBM model."""
    weights = read_weights(model)
    try:
        booster = lightgbm.Booster(model_str=weights.decode())
    except (UnicodeDecodeError, lightgbm.basic.LightGBMError) as error:
        raise ModelUnavailable(f"the weights of model {model.name!r} are not a LightGBM model") from error
    return LightGbmRunner(booster, booster.num_feature(), len(weights))
