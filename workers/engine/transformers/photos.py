"""Networks for photographs that return several arrays: depth, boxes, or masks with their classes.

Images of one shape share a batch, whatever their prompts ask for: the network runs on the batch, and each answer comes
from the outputs of one image.
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
from penstock.workers.engine.torch.device import NetworkRunner, Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.images import checked_pixels, only_size_of
from penstock.workers.engine.transformers.segments import Wanted, queries, segment

#: Size to which Mask2Former's masks are enlarged first, as in its publication.
_MASK2FORMER_PX = (384, 384)

#: Reads a prompt's settings beside the pixels; raises `ProcessorFailed`.
Read = Callable[[Mapping[str, Any]], Any]
#: Makes each image's arrays from a network's outputs for a batch and the prompts' settings.
Answer = Callable[[Any, Sequence[Any]], Sequence[Mapping[str, Array]]]


@dataclass(frozen=True, slots=True)
class Photo:
    """An image on its way to the device."""

    pixels: Sent
    #: The (height, width) of the image at the upper left; the rest is padding.
    shown: tuple[int, int]
    asked: Any


@dataclass(frozen=True, slots=True)
class PhotoRunner(NetworkRunner):
    """A network of photographs: prompts have `pixels`, float32 (channels, H, W), prepared for the network.

    `shown` [height, width], if given, is the image's part at the upper left; the rest is padding. The loading functions
    describe the outputs.
    """

    answer: Answer
    channels: int
    only_size: tuple[int, int] | None
    takes_mask: bool
    read: Read

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the image's shape: images of one shape share a batch."""
        shape: tuple[int, ...] = prompt.data["pixels"].shape
        return shape

    def admit(self, prompt: Prompt) -> Photo:
        """Return the image on its way to the device."""
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


def load_depth_estimator(directory: HubDirectory) -> Runner:
    """Load a network that returns `depth`, float32 (h, w): the image's depth at the network's own resolution."""
    return _runner(directory, "AutoModelForDepthEstimation", _depth)


def load_detector(directory: HubDirectory) -> Runner:
    """Load a network that returns `logits`, float32 (queries, classes), and `boxes`, float32 (queries, 4).

    Boxes are centre x, centre y, width and height, as shares of the image. The model type decides if the last class
    means "nothing".
    """
    return _runner(directory, "AutoModelForObjectDetection", _boxes)


def load_instance_segmenter(directory: HubDirectory) -> Runner:
    """Load a network that returns `segments`, `classes` and `scores`; prompts have settings (see `segments.Wanted`).

    `segments` are ids (height, width) of the prompt's size, uint8 (uint16 above 255 segments), 0 for no segment;
    `classes` int64 and `scores` float32 (segments,) belong to the ids 1, 2, ...
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
        answer=answer,
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
        raise ProcessorFailed(f"`shown` is the [height, width] of the image within {list(whole)}, not {sides!r}")
    return sides[0], sides[1]


def _mask(batch: Tensor, photos: Sequence[Photo]) -> Tensor:
    """Return int64 (N, H, W): 1 for the image, 0 for padding."""
    mask = torch.zeros((len(photos), *batch.shape[-2:]), dtype=torch.int64, device=batch.device)
    for one, photo in zip(mask, photos, strict=True):
        one[: photo.shown[0], : photo.shown[1]] = 1
    return mask


def _depth(outputs: Any, asked: Sequence[Any]) -> Sequence[Mapping[str, Array]]:  # noqa: ARG001
    return [{"depth": array} for array in arrays_of(outputs.predicted_depth.float())]


def _boxes(outputs: Any, asked: Sequence[Any]) -> Sequence[Mapping[str, Array]]:  # noqa: ARG001
    both = arrays_of(outputs.logits.float()), arrays_of(outputs.pred_boxes.float())
    return [{"logits": logits, "boxes": boxes} for logits, boxes in zip(*both, strict=True)]
