"""Networks for photographs that return several arrays: depth, boxes, or masks with their classes.

Images of one shape share a batch, whatever their prompts ask for: the network runs on the batch, and each answer comes
from the outputs of one image.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ProcessorFailed
from penstock.processors.base import Array, Prompt
from penstock.workers.engine.base import Runner
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.images import checked_pixels, only_size_of
from penstock.workers.engine.transformers.passes import named, pass_runner
from penstock.workers.engine.transformers.segments import Wanted, queries, segment

#: Size to which Mask2Former's masks are enlarged first, as in its publication.
_MASK2FORMER_PX = (384, 384)

#: Reads a prompt's settings beside the pixels; raises `ProcessorFailed`.
Settings = Callable[[Mapping[str, Any]], Any]
#: Makes each image's arrays from a network's outputs for a batch and the prompts' settings.
Arrays = Callable[[Any, Sequence[Any]], Sequence[Mapping[str, Array]]]


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


def _runner(directory: HubDirectory, auto_class: str, arrays: Arrays, *, read: Settings = lambda _: None) -> Runner:
    """Return the runner of a network: prompts have `pixels`, float32 (channels, H, W), prepared for it.

    `shown` [height, width], if given, is the image's part at the upper left; the rest is padding.
    """
    network = directory.load(auto_class)
    channels, only_size = getattr(network.config, "num_channels", 3), only_size_of(network, network.config)
    takes_mask = "pixel_mask" in inspect.signature(network.forward).parameters

    def prepared(prompt: Prompt) -> tuple[dict[str, Array], tuple[tuple[int, int], Any]]:
        pixels = checked_pixels(prompt.data.get("pixels"), channels, only_size)
        asked = _shown(prompt.data.get("shown"), pixels.shape[1:]), read(prompt.data)
        return {"pixel_values": pixels[None]}, asked

    def answer(network: Any, inputs: Mapping[str, Tensor], asked: Sequence[Any]) -> Sequence[Mapping[str, Array]]:
        shown, settings = zip(*asked, strict=True)
        also = {"pixel_mask": _mask(inputs["pixel_values"], shown)} if takes_mask else {}
        return arrays(network(**inputs, **also), settings)

    return pass_runner(directory, network, prepared, answer, channels_last=True)


def _shown(sides: Any, whole: tuple[int, ...]) -> tuple[int, int]:
    if sides is None:
        return whole[0], whole[1]
    if len(sides) != 2 or not all(type(a) is int and 0 < a <= b for a, b in zip(sides, whole, strict=True)):
        raise ProcessorFailed(f"`shown` is the [height, width] of the image within {list(whole)}, not {sides!r}")
    return sides[0], sides[1]


def _mask(batch: Tensor, shown: Sequence[tuple[int, int]]) -> Tensor:
    """Return int64 (N, H, W): 1 for the image, 0 for padding."""
    mask = torch.zeros((len(shown), *batch.shape[-2:]), dtype=torch.int64, device=batch.device)
    for one, (height, width) in zip(mask, shown, strict=True):
        one[:height, :width] = 1
    return mask


def _depth(outputs: Any, asked: Sequence[Any]) -> Sequence[Mapping[str, Array]]:  # noqa: ARG001
    return named(depth=outputs.predicted_depth.float())


def _boxes(outputs: Any, asked: Sequence[Any]) -> Sequence[Mapping[str, Array]]:  # noqa: ARG001
    return named(logits=outputs.logits.float(), boxes=outputs.pred_boxes.float())
