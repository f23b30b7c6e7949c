"""Networks of the hub for images: scores of labels, classes per pixel, or an embedding.

On a CPU in float32 a prompt alone gets the same bits every time (see `torch.runner`). Other images of its batch may
change the last bits of labels and embeddings. Class maps and probabilities run one by one on a CPU, so that tiles of a
scene do not depend on other jobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.processors.base import Array, Prompt
from penstock.workers.engine.base import Runner
from penstock.workers.engine.output_cache import with_output_cache
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.passes import PassRunner, named, pass_runner

#: Classes whose scores are in memory at the size of the answer at the same time.
_CLASSES_AT_A_TIME = 8
_MAX_SIDE_PX = 65_536


#: Makes the name and the arrays of outputs from a network, a batch of images and the size of the answer.
Named = Callable[[Any, Tensor, tuple[int, int] | None], tuple[str, Tensor]]


def load_classifier(directory: HubDirectory) -> Runner:
    """Load a network that returns `logits`, float32 (classes,)."""
    return _runner(directory, "AutoModelForImageClassification", _logits)


def load_segmenter(directory: HubDirectory) -> Runner:
    """Load a network that returns `probability`, float32 (classes, H, W).

    Prompts with `size`, and models with the option `answer = "classes"`, get `classes` (H, W) instead, uint8 (uint16
    above 256 classes).
    """
    answer = directory.model.options.get("answer", "probability")
    if answer not in ("probability", "classes"):
        raise ModelUnavailable(f"`options.answer` is 'probability' or 'classes', not {answer!r}")
    runner = _runner(directory, "AutoModelForSemanticSegmentation", _segmentation(answer == "classes"), pixelwise=True)
    if runner.network.config.num_labels < 2:
        raise ModelUnavailable("config.json has fewer than two classes in `id2label`")
    return runner


def pooling_of(options: Mapping[str, Any]) -> str:
    """Return how an embedding is made of an image's vectors; raise `ModelUnavailable` for an unknown way."""
    pooling = options.get("pooling", "pooler")
    if not isinstance(pooling, str) or pooling not in _POOLINGS:
        raise ModelUnavailable(f"`options.pooling` is one of {', '.join(_POOLINGS)}, not {pooling!r}")
    return pooling


def load_image_embedder(directory: HubDirectory) -> Runner:
    """Load a network that returns `embedding`.

    Options: `pooling` ("pooler", "cls", "mean", or "patches" for float32 (D, rows, columns)), `normalize` (true),
    `encoder_cache_bytes` (0), a cache.
    """
    pooling = pooling_of(directory.model.options)
    normalize = directory.model.options.get("normalize", True)

    def answer(network: Any, batch: Tensor, size: tuple[int, int] | None) -> tuple[str, Tensor]:  # noqa: ARG001
        embedding = _POOLINGS[pooling](network, batch).float()
        return "embedding", nn.functional.normalize(embedding, dim=1) if normalize else embedding

    unused = (lambda _: False) if pooling == "pooler" else _is_pooler
    return with_output_cache(_runner(directory, "AutoModel", answer, unused=unused), directory.model)


def checked_pixels(pixels: Array, channels: int, only_size: tuple[int, int] | None) -> Array:
    """Return a checked image; raise `InvalidInput` for wrong sizes, `ProcessorFailed` for any other value."""
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.float32 or pixels.ndim != 3:
        raise ProcessorFailed("the network takes `pixels`, a float32 array (channels, height, width)")
    found, height, width = pixels.shape
    if found != channels:
        raise InvalidInput(f"the network takes {channels} channels, the prompt has {found}")
    if not height or not width:
        raise InvalidInput(f"the network takes no empty image ({height} x {width})")
    if only_size not in (None, (height, width)):
        wanted = " x ".join(map(str, only_size or ()))
        raise InvalidInput(f"the network takes images of {wanted} pixels, not {height} x {width}")
    return pixels


def _runner(
    directory: HubDirectory,
    auto_class: str,
    answer: Named,
    *,
    pixelwise: bool = False,
    unused: Callable[[str], bool] = lambda _: False,
) -> PassRunner:
    """Return the runner of a network: prompts have `pixels`, float32 (channels, H, W), prepared for it.

    With `pixelwise` they may have `size`, the answer's [height, width].
    """
    network = directory.load(auto_class, unused=unused)
    config = getattr(network.config, "vision_config", network.config)
    channels, only_size = getattr(config, "num_channels", 3), only_size_of(network, config)

    def read(prompt: Prompt) -> tuple[dict[str, Array], tuple[int, int] | None]:
        pixels = checked_pixels(prompt.data.get("pixels"), channels, only_size)
        return {"pixel_values": pixels[None]}, _size(prompt) if pixelwise else None

    def answers(network: Any, inputs: Mapping[str, Tensor], sizes: Sequence[Any]) -> Sequence[Mapping[str, Array]]:
        name, arrays = answer(network, inputs["pixel_values"], sizes[0])
        return named(**{name: arrays})

    return pass_runner(directory, network, read, answers, shared=("size",), channels_last=True, alone_on_cpu=pixelwise)


def _size(prompt: Prompt) -> tuple[int, int] | None:
    size = prompt.data.get("size")
    if size is None:
        return None
    sides = list(size) if isinstance(size, list | tuple) else []
    if len(sides) != 2 or not all(type(side) is int and 0 < side <= _MAX_SIDE_PX for side in sides):
        raise InvalidInput("`size` is the answer's [height, width] in pixels")
    return sides[0], sides[1]


def only_size_of(network: Any, config: Any) -> tuple[int, int] | None:
    """Return the only image size of a network, or of its class, with learned positions; None for any other."""
    size = getattr(config, "image_size", None)
    forward = getattr(network, "get_image_features", network.forward)
    if size is None or "interpolate_pos_encoding" not in inspect.signature(forward).parameters:
        return None
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _is_pooler(name: str) -> bool:
    return name.startswith("pooler.") or ".pooler." in name


def _logits(network: Any, batch: Tensor, size: tuple[int, int] | None) -> tuple[str, Tensor]:  # noqa: ARG001
    return "logits", network(pixel_values=batch).logits.float()


def _segmentation(always_classes: bool) -> Named:
    def answer(network: Any, batch: Tensor, size: tuple[int, int] | None) -> tuple[str, Tensor]:
        logits = network(pixel_values=batch).logits.float()
        height, width = batch.shape[-2:]
        if size or always_classes:
            return "classes", best_classes(logits, size or (height, width))
        scores = interpolate(logits, size=(height, width), mode="bilinear", align_corners=False)
        return "probability", torch.softmax(scores, dim=1)

    return answer


def best_classes(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the best class per pixel of logits (N, classes, h, w) enlarged to `size`: (N, height, width).

    Some classes at a time: 150 classes of a 12-megapixel photo would take 7 GB at once.
    """
    best, ids = None, None
    for first in range(0, logits.shape[1], _CLASSES_AT_A_TIME):
        part = logits[:, first : first + _CLASSES_AT_A_TIME]
        scores, indexes = interpolate(part, size=size, mode="bilinear", align_corners=False).max(dim=1)
        if best is None or ids is None:
            best, ids = scores, indexes
        else:
            # Strictly better: among equals the first class wins, as with argmax.
            better = scores > best
            best, ids = torch.where(better, scores, best), torch.where(better, indexes + first, ids)
    assert ids is not None  # noqa: S101  (a network has classes)
    return ids.to(torch.uint8 if logits.shape[1] <= 256 else torch.uint16)


def _features(network: Any, batch: Tensor) -> Any:
    """Return the outputs of a network's image encoder."""
    if hasattr(network, "get_image_features"):
        return network.get_image_features(pixel_values=batch)
    return network(pixel_values=batch)


def _pooler(network: Any, batch: Tensor) -> Tensor:
    pooled = _features(network, batch)
    pooled = pooled if isinstance(pooled, Tensor) else pooled.pooler_output
    # Convolutional networks keep two axes of one pixel.
    return torch.flatten(pooled, 1)


def _cls(network: Any, batch: Tensor) -> Tensor:
    return torch.as_tensor(network(pixel_values=batch).last_hidden_state[:, 0])


def _mean(network: Any, batch: Tensor) -> Tensor:
    hidden = network(pixel_values=batch).last_hidden_state
    return torch.as_tensor(hidden.mean(dim=1) if hidden.ndim == 3 else hidden.mean(dim=(2, 3)))


def _patches(network: Any, batch: Tensor) -> Tensor:
    """Return (N, D, rows, columns): the last tokens are those of the patches; class and register tokens come first."""
    hidden = torch.as_tensor(network(pixel_values=batch).last_hidden_state)
    if hidden.ndim == 4:
        return hidden
    size = getattr(network.config, "patch_size", None)
    sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if not all(isinstance(side, int) for side in sides):
        raise ProcessorFailed("the network has no `patch_size` in its config.json: it has no patches")
    rows, columns = (pixels // side for pixels, side in zip(batch.shape[-2:], sides, strict=True))
    if hidden.shape[1] < rows * columns:
        raise ProcessorFailed(f"the network gives {hidden.shape[1]} vectors of {rows * columns} patches")
    return hidden[:, -rows * columns :].transpose(1, 2).reshape(len(hidden), -1, rows, columns)


_POOLINGS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "pooler": _pooler, "cls": _cls, "mean": _mean, "patches": _patches,
}  # fmt: skip
