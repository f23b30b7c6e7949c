"""The runner `terratorch`: one forward pass of a network that TerraTorch built.

Prompts have `pixels`, float32 (dates * bands, H, W), date after date; and, where they are known and the network was
trained with them, `temporal_coords`, float32 (dates, 2) of year and day of the year from 0, and `location_coords`,
float32 (2,) of latitude and longitude. Outputs have `probability`, float32 (classes, H, W), or `values`, float32
(quantities, H, W).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner, shapes_of
from penstock.workers.engine.terratorch.checkpoint import Checkpoint, Recipe
from penstock.workers.engine.terratorch.network import Built, build
from penstock.workers.engine.torch_device import Sent, TorchDevice, arrays_of, weights_bytes

PIXELS, TIME, LOCATION = "pixels", "temporal_coords", "location_coords"

#: A prompt's arrays on their way to the device.
State = Mapping[str, Sent]


class TerraTorchRunner:
    """Runs a network. On a CPU prompts run one by one, for the same bits (see `torch_runner`)."""

    def __init__(self, built: Built, recipe: Recipe, device: TorchDevice, *, max_batch: int) -> None:
        """Move the network to the device."""
        self._recipe, self._device = recipe, device
        told: dict[str, tuple[int, ...]] = {TIME: (recipe.dates, 2), LOCATION: (2,)}
        takes = {TIME: built.takes_time, LOCATION: built.takes_location}
        #: The shapes of what the network is told beside the pixels.
        self._told = {name: shape for name, shape in told.items() if takes[name]}
        self._memory_bytes = weights_bytes(built.module)
        self._module: nn.Module = device.place(built.module)
        self._max_batch = 1 if device.is_cpu else max_batch

    @property
    def max_batch(self) -> int:
        """The model's, or one on a CPU."""
        return self._max_batch

    @property
    def memory_bytes(self) -> int:
        """What the weights take."""
        return self._memory_bytes

    def bucket(self, prompt: Prompt) -> Hashable:
        """Tiles of one shape share a batch, if the same is known of them."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> State:
        """Return the prompt's arrays on their way to the device, dates on an axis of their own where there are many."""
        pixels = self._checked(prompt)
        if self._recipe.stacks_dates:
            dated = pixels.reshape(self._recipe.dates, -1, *pixels.shape[1:])
            pixels = np.ascontiguousarray(dated.transpose(1, 0, 2, 3))
        told = {name: self._device.send(prompt.data[name]) for name in self._told if name in prompt.data}
        return {PIXELS: self._device.send(pixels), **told}

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
        # TerraTorch leaves out the axis of a single channel.
        return "values", answer[:, None] if answer.ndim == 3 else answer

    def _checked(self, prompt: Prompt) -> np.ndarray[tuple[int, int, int], np.dtype[np.float32]]:
        unknown = prompt.data.keys() - {PIXELS, *self._told}
        if unknown:
            raise ProcessorFailed(f"the network takes {', '.join([PIXELS, *self._told])}, not {', '.join(unknown)}")
        for name, shape in self._told.items():
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
    with _about(model):
        checkpoint = Checkpoint.of(model)
        built = build(checkpoint)
        _check_coordinates(model, built)
        return TerraTorchRunner(built, checkpoint.recipe, TorchDevice.of(model), max_batch=model.max_batch)


def check_terratorch(model: Model) -> None:
    """Look at what `load_terratorch` would load, without TerraTorch and any weights; raise `ModelUnavailable`."""
    with _about(model):
        Checkpoint.of(model)


def _check_coordinates(model: Model, built: Built) -> None:
    """Compare what the record says that the network is told with what it was trained with."""
    told = model.options.get("coordinates") or {}
    for name, takes in (("time", built.takes_time), ("location", built.takes_location)):
        if told.get(name, "no") != "no" and not takes:
            raise ModelUnavailable(
                f"options.coordinates.{name} is {told[name]!r}, and the network of config.json takes no {name} "
                f"(its backbone's coords_encoding does not have it)"
            )


@contextmanager
def _about(model: Model) -> Iterator[None]:
    """Begin what is wrong with a directory with the model's name."""
    try:
        yield
    except ModelUnavailable as error:
        if repr(model.name) in error.detail:
            raise
        raise ModelUnavailable(f"model {model.name!r} cannot be loaded: {error.detail}") from error
