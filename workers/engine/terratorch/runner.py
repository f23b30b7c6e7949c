"""The runner `terratorch`: one forward pass of a network that TerraTorch built.

Prompts have `pixels`, float32 (dates * bands, H, W), date after date. If the network was trained with them and they are
known, prompts also have `temporal_coords`, float32 (dates, 2) of year and day of the year from 0, and
`location_coords`, float32 (2,) of latitude and longitude. Outputs have `probability`, float32 (classes, H, W), or
`values`, float32 (quantities, H, W).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner, shapes_of
from penstock.workers.engine.terratorch.checkpoint import Checkpoint, Recipe
from penstock.workers.engine.terratorch.network import Built, build
from penstock.workers.engine.torch.device import Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.weights import naming

PIXELS, TIME, LOCATION = "pixels", "temporal_coords", "location_coords"

#: A prompt's arrays on their way to the device.
State = Mapping[str, Sent]


class TerraTorchRunner:
    """A network of TerraTorch. On a CPU prompts run one by one, for the same bits (see `torch.runner`)."""

    def __init__(self, built: Built, recipe: Recipe, device: TorchDevice, *, max_batch: int) -> None:
        """Move the network to the device."""
        self._recipe, self._device = recipe, device
        coordinates: dict[str, tuple[int, ...]] = {TIME: (recipe.dates, 2), LOCATION: (2,)}
        takes = {TIME: built.takes_time, LOCATION: built.takes_location}
        #: Shapes of the network's inputs beside the pixels, by name.
        self._coordinates = {name: shape for name, shape in coordinates.items() if takes[name]}
        self._memory_bytes = weights_bytes(built.module)
        self._module: nn.Module = device.place(built.module)
        self._max_batch = 1 if device.is_cpu else max_batch

    @property
    def max_batch(self) -> int:
        """The model's `max_batch`, or 1 on a CPU."""
        return self._max_batch

    @property
    def memory_bytes(self) -> int:
        """The bytes of the weights."""
        return self._memory_bytes

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the prompt's shapes: tiles of one shape and with the same coordinates present share a batch."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> State:
        """Return the prompt's arrays on their way to the device, several dates on an axis of their own."""
        pixels = self._checked(prompt)
        if self._recipe.stacks_dates:
            dated = pixels.reshape(self._recipe.dates, -1, *pixels.shape[1:])
            pixels = np.ascontiguousarray(dated.transpose(1, 0, 2, 3))
        coordinates = {name: self._device.send(prompt.data[name]) for name in self._coordinates if name in prompt.data}
        return {PIXELS: self._device.send(pixels), **coordinates}

    def step(self, states: Sequence[State]) -> Sequence[Done]:
        """Run the network once."""
        with self._device.running():
            batch = {name: self._device.stack([state[name] for state in states]) for name in states[0]}
            answer = self._module(batch.pop(PIXELS), **batch).output.float()
            name, tensor = self._named(answer)
            return [Done(Output({name: array})) for array in arrays_of(tensor)]

    def close(self) -> None:
        """Free the device's memory."""
        self._device.free(self._module)

    def _named(self, answer: Tensor) -> tuple[str, Tensor]:
        if self._recipe.task == "segmentation":
            return "probability", torch.softmax(answer, dim=1)
        # TerraTorch drops the axis of a single channel.
        return "values", answer[:, None] if answer.ndim == 3 else answer

    def _checked(self, prompt: Prompt) -> np.ndarray[tuple[int, int, int], np.dtype[np.float32]]:
        unknown = prompt.data.keys() - {PIXELS, *self._coordinates}
        if unknown:
            raise ProcessorFailed(
                f"the network takes {', '.join([PIXELS, *self._coordinates])}, not {', '.join(unknown)}"
            )
        for name, shape in self._coordinates.items():
            array = prompt.data.get(name)
            if array is not None and (not isinstance(array, np.ndarray) or array.dtype != np.float32):
                raise ProcessorFailed(f"the network takes `{name}`, a float32 array {shape}")
            if array is not None and array.shape != shape:
                raise ProcessorFailed(f"the network takes `{name}` of the shape {shape}, not {array.shape}")
        pixels = prompt.data.get(PIXELS)
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.float32 or pixels.ndim != 3 or not pixels.size:
            raise ProcessorFailed("the network takes `pixels`, a float32 array (dates * bands, height, width)")
        dates, bands = self._recipe.dates, self._recipe.bands
        if (bands and len(pixels) != dates * bands) or len(pixels) % dates:
            raise InvalidInput(
                f"the network takes {bands or 'its'} bands of {dates} date(s), the prompt has {len(pixels)}"
            )
        return pixels


def load_terratorch(model: Model) -> Runner:
    """Load a checkpoint's directory (see `checkpoint`); raise `ModelUnavailable`."""
    with naming(model):
        checkpoint = Checkpoint.of(model)
        built = build(checkpoint)
        _check_coordinates(model, built, checkpoint.recipe.file)
        return TerraTorchRunner(built, checkpoint.recipe, TorchDevice.of(model), max_batch=model.max_batch)


def check_terratorch(model: Model) -> None:
    """Check the files that `load_terratorch` would load, without TerraTorch or weights; raise `ModelUnavailable`."""
    with naming(model):
        Checkpoint.of(model)


def _check_coordinates(model: Model, built: Built, config: str) -> None:
    """Compare the record's `coordinates` with the inputs that the network was trained with."""
    coordinates = model.options.get("coordinates") or {}
    for name, takes in (("time", built.takes_time), ("location", built.takes_location)):
        if coordinates.get(name, "no") != "no" and not takes:
            raise ModelUnavailable(
                f"options.coordinates.{name} is {coordinates[name]!r}, and the network of {config} takes no {name} "
                f"(its backbone's coords_encoding does not have it)"
            )
