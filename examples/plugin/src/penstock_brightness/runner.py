"""The runner `weighted-sum`: a network of one weight per colour, computed with numpy on the CPU."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Array, Output, Prompt
from penstock.processors.io_signature import IOSignature
from penstock.workers.engine.base import Done, Runner, RunnerSpec, shapes_of


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """A loaded model. Prompts have `pixels`, float32 (colours, H, W); outputs have `luminance`, float32 (H, W)."""

    #: Float32 (colours,).
    weights: Array
    max_batch: int

    @property
    def memory_bytes(self) -> int:
        """The bytes of the weights."""
        return int(self.weights.nbytes)

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the shape of the image: images of one shape share a batch."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> Array:
        """Return the image; raise `ProcessorFailed` or `InvalidInput` for one that the model does not take."""
        pixels = prompt.data.get("pixels")
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.float32 or pixels.ndim != 3:
            raise ProcessorFailed("the model takes `pixels`, a float32 array (colours, height, width)")
        if len(pixels) != len(self.weights):
            raise InvalidInput(f"the model takes {len(self.weights)} colours, the image has {len(pixels)}")
        return pixels

    def step(self, states: Sequence[Array]) -> Sequence[Done]:
        """Return the luminance of each image of a batch."""
        return [Done(Output({"luminance": np.tensordot(self.weights, pixels, axes=1)})) for pixels in states]

    def close(self) -> None:
        """Free nothing: Python frees the weights with the runner."""


def load(model: Model) -> Runner:
    """Read the weights and return the runner; raise `ModelUnavailable`."""
    return WeightedSum(np.array(_weights(model)), model.max_batch)


def check(model: Model) -> None:
    """Check the weights file without reading the weights; raise `ModelUnavailable`."""
    _weights(model)


def _weights(model: Model) -> Array:
    try:
        weights: Array = np.load(model.source, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"model {model.name!r} cannot be read: {error}") from error
    if weights.dtype != np.float32 or weights.ndim != 1:
        raise ModelUnavailable(
            f"model {model.name!r} has weights {weights.dtype} {weights.shape}, not float32 (colours,)"
        )
    return weights


#: The values that prompts and outputs have.
_SIGNATURE = IOSignature(prompt={"pixels": "float32 (colours, H, W)"}, output={"luminance": "float32 (H, W)"})

RUNNER = RunnerSpec(load, check, hub_files=lambda _model: ("*.npy",), io_signatures={"images": (_SIGNATURE,)})
