"""Photographs through networks that answer with several arrays: depth, boxes, or masks with their classes.

Pictures of one shape share a batch, whatever is asked of each: the network looks at the batch, and an answer is made of
each picture's outputs alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ProcessorFailed
from penstock.processors.base import Array, Output, Prompt
from penstock.workers.engine.base import Done, Runner
from penstock.workers.engine.torch_device import Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.images import checked_pixels, only_size_of
from penstock.workers.engine.transformers.segments import Wanted, queries, segment

#: Mask2Former's masks are enlarged to this first, as where it was published.
_MASK2FORMER_PX = (384, 384)

#: Reads what a prompt asks for beside its pixels; raises `ProcessorFailed`.
Read = Callable[[Mapping[str, Any]], Any]
#: Makes each picture's arrays from a network's outputs for a batch and what the prompts ask for.
Answer = Callable[[Any, Sequence[Any]], Sequence[Mapping[str, Array]]]


@dataclass(frozen=True, slots=True)
class Photo:
    """A picture on its way to the device."""

    pixels: Sent
    #: The (height, width) at the upper left that is picture; the rest is padding.
    shown: tuple[int, int]
    asked: Any


@dataclass(frozen=True, slots=True)
class PhotoRunner:
    """Runs a network on pictures: prompts have `pixels`, float32 (channels, H, W), prepared as the network wants them.

    `shown` [height, width], if it is there, is the part at the upper left that is picture and no padding. The functions
    that load say what outputs have.
    """

    network: Any
    device: TorchDevice
    answer: Answer
    max_batch: int
    memory_bytes: int
    channels: int
    only_size: tuple[int, int] | None
    takes_mask: bool
    read: Read

    def bucket(self, prompt: Prompt) -> Hashable:
        """Pictures of one shape share a batch."""
        shape: tuple[int, ...] = prompt.data["pixels"].shape
        return shape

    def admit(self, prompt: Prompt) -> Photo:
        """Return the picture on its way to the device."""
        pixels = checked_pixels(prompt.data.get("pixels"), self.channels, self.only_size)
        shown, asked = _shown(prompt.data.get("shown"), pixels.shape[1:]), self.read(prompt.data)
        return Photo(self.device.send(pixels[None], channels_last=True), shown, asked)

    def step(self, states: Sequence[Photo]) -> Sequence[Done]:
        """Run the network once."""
        with self.device.running():
            batch = torch.cat([self.device.receive(state.pixels) for state in states])
            also = {"pixel_mask": _mask(batch, states)} if self.takes_mask else {}
            answers = self.answer(self.network(pixel_values=batch, **also), [state.asked for state in states])
            return [Done(Output(answer)) for answer in answers]

    def close(self) -> None:
        """Free the device's memory."""
        self.device.free(self.network)


def load_depth_estimator(directory: HubDirectory) -> Runner:
    """Load a network that answers `depth`, float32 (h, w): the picture's depth at the network's own resolution."""
    return _runner(directory, "AutoModelForDepthEstimation", _depth)


def load_detector(directory: HubDirectory) -> Runner:
    """Load a network that answers `logits`, float32 (queries, classes), and `boxes`, float32 (queries, 4).

    Boxes are centre x, centre y, width and height, in parts of the picture. Whether the last class means "nothing"
    depends on the model type.
    """
    return _runner(directory, "AutoModelForObjectDetection", _boxes)


def load_instance_segmenter(directory: HubDirectory) -> Runner:
    """Load a network that answers `segments`, `classes` and `scores`; prompts say how (see `segments.Wanted`).

    `segments` are ids (height, width) of the size that the prompt names, uint8 (uint16 above 255 segments), 0 where
    there is none; `classes` int64 and `scores` float32 (segments,) belong to the ids 1, 2, ...
    """
    via = _MASK2FORMER_PX if directory.config.get("model_type") == "mask2former" else None

    def answer(outputs: Any, asked: Sequence[Wanted]) -> Sequence[Mapping[str, Array]]:
        return [segment(*one, via=via) for one in zip(*queries(outputs), asked, strict=True)]

    return _runner(directory, "AutoModelForUniversalSegmentation", answer, read=Wanted.of)


def _runner(directory: HubDirectory, auto_class: str, answer: Answer, *, read: Read = lambda _: None) -> PhotoRunner:
    device = TorchDevice.of(directory.model)
    network = directory.load(auto_class)
    device.place(network, channels_last=True)
    return PhotoRunner(
        network,
        device,
        answer,
        max_batch=directory.model.max_batch,
        memory_bytes=weights_bytes(network),
        channels=getattr(network.config, "num_channels", 3),
        only_size=only_size_of(network, network.config),
        takes_mask="pixel_mask" in inspect.signature(network.forward).parameters,
        read=read,
    )


def _shown(sides: Any, whole: tuple[int, ...]) -> tuple[int, int]:
    if sides is None:
        return whole[0], whole[1]
    if len(sides) != 2 or not all(type(a) is int and 0 < a <= b for a, b in zip(sides, whole, strict=True)):
        raise ProcessorFailed(f"`shown` is the [height, width] of the picture within {list(whole)}, not {sides!r}")
    return sides[0], sides[1]


def _mask(batch: Tensor, photos: Sequence[Photo]) -> Tensor:
    """Return int64 (N, H, W): 1 where there is picture."""
    mask = torch.zeros((len(photos), *batch.shape[-2:]), dtype=torch.int64, device=batch.device)
    for one, photo in zip(mask, photos, strict=True):
        one[: photo.shown[0], : photo.shown[1]] = 1
    return mask


def _depth(outputs: Any, asked: Sequence[Any]) -> Sequence[Mapping[str, Array]]:  # noqa: ARG001
    return [{"depth": array} for array in arrays_of(outputs.predicted_depth.float())]


def _boxes(outputs: Any, asked: Sequence[Any]) -> Sequence[Mapping[str, Array]]:  # noqa: ARG001
    both = arrays_of(outputs.logits.float()), arrays_of(outputs.pred_boxes.float())
    return [{"logits": logits, "boxes": boxes} for logits, boxes in zip(*both, strict=True)]
