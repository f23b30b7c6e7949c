"""The runner `terratorch`: one forward pass of a network that TerraTorch built.

Prompts have `pixels`, float32 (dates * bands, H, W), date after date. A network of several modalities gets the bands of
each as a tensor of its own, by name; they follow one another in `pixels`, in the record's order. If the network was
trained with them and they are known, prompts also have `temporal_coords`, float32 (dates, 2) of year and day of the
year from 0, and `location_coords`, float32 (2,) of latitude and longitude. Outputs have `probability`, float32
(classes, H, W), `values`, float32 (quantities, H, W), or `embedding`, float32 (dimensions, rows, columns) or
(dimensions,), as TerraTorch's backbone gives it, or of length 1 with `options.normalize = true`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner, shapes_of
from penstock.workers.engine.sensors import sensors_of
from penstock.workers.engine.terratorch.checkpoint import Checkpoint
from penstock.workers.engine.terratorch.network import Built, build, outline
from penstock.workers.engine.terratorch.recipe import Recipe
from penstock.workers.engine.torch.device import Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.weights import naming

PIXELS, TIME, LOCATION = "pixels", "temporal_coords", "location_coords"

#: A prompt's arrays on their way to the device.
State = Mapping[str, Sent]


class TerraTorchRunner:
    """A network of TerraTorch. On a CPU prompts run one by one, for the same bits (see `torch.runner`)."""

    def __init__(
        self,
        built: Built,
        recipe: Recipe,
        device: TorchDevice,
        *,
        max_batch: int,
        normalises: bool = False,
        sensors: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Move the network to the device. `normalises`: vectors have the length 1.

        `sensors` has the number of bands of each modality, in the order of the prompts' bands.
        """
        self._recipe, self._device, self._normalises = recipe, device, normalises
        self._sensors = sensors
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
            name, tensor = self._named(self._module(self._images(batch.pop(PIXELS)), **batch))
            return [Done(Output({name: array})) for array in arrays_of(tensor)]

    def close(self) -> None:
        """Free the device's memory."""
        self._device.free(self._module)

    def _images(self, pixels: Tensor) -> Tensor | dict[str, Tensor]:
        """Return the network's images: those of several modalities by name, in the order of the network's arguments."""
        if len(self._recipe.modalities) < 2:
            return pixels
        found = dict(zip(self._sensors, torch.split(pixels, list(self._sensors.values()), dim=1), strict=True))
        return {name: found[name] for name in self._recipe.modalities}

    def _named(self, answer: Any) -> tuple[str, Tensor]:
        if self._recipe.task == "embedding_generation":
            vectors: Tensor = answer[-1].float()
            return "embedding", functional.normalize(vectors, dim=1) if self._normalises else vectors
        tensor = answer.output.float()
        if self._recipe.task == "segmentation":
            return "probability", torch.softmax(tensor, dim=1)
        # TerraTorch drops the axis of a single channel.
        return "values", tensor[:, None] if tensor.ndim == 3 else tensor

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
        normalises = model.options.get("normalize") is True
        device = TorchDevice.of(model)
        return TerraTorchRunner(
            built, checkpoint.recipe, device, max_batch=model.max_batch, normalises=normalises,
            sensors=sensors_of(model),
        )  # fmt: skip


def check_terratorch(model: Model) -> None:
    """Check what `load_terratorch` would load, without the numbers of the weights; raise `ModelUnavailable`."""
    with naming(model):
        outline(Checkpoint.of(model))
