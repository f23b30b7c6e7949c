"""Chats about images: the images' features are put into the text's embeddings, from which `generate` goes on.

Features are kept: a second question about an image does not encode it again. The network's own encoder and projector
make them. All types without a shape here get their images by the library's own `generate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Array, Prompt
from penstock.workers.engine.base import Runner
from penstock.workers.engine.encoder_cache import Encoded, EncoderCache, counted, encoding_key, limit_bytes
from penstock.workers.engine.torch.device import Sent, TorchDevice
from penstock.workers.engine.transformers.beginnings import EMBEDS
from penstock.workers.engine.transformers.directory import HubDirectory, library, read_config
from penstock.workers.engine.transformers.generation import Counts, Opening, generator_of
from penstock.workers.engine.transformers.inputs import IDS, MASK

Layout = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SentImage:
    """An image on its way to the device."""

    #: Cache key of the encoding.
    key: bytes
    pixels: Sent
    #: The image's layout, see `ImageOpener`.
    layout: Layout


@dataclass(frozen=True, slots=True)
class Shape:
    """The images that a kind of network takes."""

    #: Axes of `pixels`; None = any length.
    axes: tuple[int | None, ...]
    #: Number of values of a layout.
    layout: int
    #: Makes the arguments of the network's method beside the pixels.
    arguments: Callable[[Tensor], dict[str, Tensor]]
    #: Patches per side of a token, for networks with positions inside images.
    merge: int | None = None


@dataclass(frozen=True, slots=True)
class ImageOpener:
    """The opener of chats.

    Prompts have `input_ids` with a token for each feature of an image, the images `image_0`, ... and `layouts`.
    Images are float32: (1, 3, side, side) for Llava, (1 + tiles, 3, side, side) with the layout [height, width] of
    the image for LLaVA-NeXT, (patches, values) with the layout [frames, rows, columns] for Qwen2-VL.
    """

    model: Model
    network: Any
    shape: Shape
    image_token_id: int
    encodings: EncoderCache[Tensor]

    def admit(self, prompt: Prompt, device: TorchDevice) -> Opening:
        """Return the prompt's images on their way to the device, and positions for networks that take them."""
        layouts = _layouts(prompt.data.get("layouts", []), self.shape.layout)
        arrays = [self._checked(prompt.data.get(f"image_{number}")) for number in range(len(layouts))]
        images = tuple(
            SentImage(encoding_key(self.model, prompt, pixels, layout), device.send(pixels), layout)
            for pixels, layout in zip(arrays, layouts, strict=True)
        )
        if self.shape.merge is None:
            return Opening(images)
        ids = prompt.data["input_ids"]
        return Opening(images, grid_positions(ids == self.image_token_id, layouts, self.shape.merge))

    def inputs(self, tokens: Tensor, opening: Opening, device: TorchDevice) -> tuple[dict[str, Any], Counts]:
        """Return the tokens' embeddings with the images' features at their places, and the counts of cached images."""
        embedded = self.network.get_input_embeddings()(tokens[None])
        places = tokens == self.image_token_id
        encoded = self._encoded(opening.images, device)
        features = [one.value for one in encoded]
        made = sum(map(len, features))
        if made != int(places.sum()):
            raise InvalidInput(
                f"the prompt has {int(places.sum())} places for images' tokens, and the images make {made}"
            )
        if features:
            embedded[0, places] = torch.cat(features).to(embedded)
        inputs = {IDS: tokens[None], EMBEDS: embedded, MASK: torch.ones_like(tokens)[None]}
        if opening.positions is not None:
            inputs["position_ids"] = torch.from_numpy(opening.positions)[:, None].to(embedded.device)
        return inputs, counted(encoded) if encoded else {}

    def close(self) -> None:
        """Drop the encodings."""
        self.encodings.clear()

    def _encoded(self, images: Sequence[SentImage], device: TorchDevice) -> list[Encoded[Tensor]]:
        def make(missing: Sequence[int]) -> list[Tensor]:
            return [self._features(images[at], device) for at in missing]

        return self.encodings.encode([image.key for image in images], make)

    def _features(self, image: SentImage, device: TorchDevice) -> Tensor:
        pixels = device.receive(image.pixels).to(self.network.dtype)
        return image_features(self.network, self.shape, pixels, image.layout)

    def _checked(self, pixels: Array) -> Array:
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.float32:
            raise ProcessorFailed("the network takes each of its `layouts` with an image `image_N`, a float32 array")
        axes = self.shape.axes
        if pixels.ndim != len(axes) or any(a not in (None, b) for a, b in zip(axes, pixels.shape, strict=True)):
            wanted = ", ".join("any" if axis is None else str(axis) for axis in axes)
            raise InvalidInput(f"the network takes images of the shape ({wanted}), not {pixels.shape}")
        return pixels


def image_features(network: Any, shape: Shape, pixels: Tensor, layout: Layout) -> Tensor:
    """Return the features of one image: (tokens, D)."""
    sizes = torch.tensor([layout], device=pixels.device)
    found = network.get_image_features(pixel_values=pixels, **shape.arguments(sizes))
    features: Tensor = found.pooler_output[0]
    return features


def load_conversation(directory: HubDirectory) -> Runner:
    """Load a network that answers chats about images: with a shape of this module, or the general way."""
    model = directory.model
    device = TorchDevice.of(model)
    check_conversation(directory)
    network = directory.load("AutoModelForImageTextToText", dtype=device.dtype)
    config = network.config
    if config.model_type not in _SHAPES:
        return generator_of(network, model, device)
    encodings = EncoderCache[Tensor](limit_bytes(model), size_of=lambda features: features.nbytes)
    opener = ImageOpener(model, network, _SHAPES[config.model_type](config), config.image_token_id, encodings)
    return generator_of(network, model, device, opener)


def check_conversation(directory: HubDirectory) -> None:
    """Raise `ModelUnavailable` for a network that cannot answer chats, without reading its weights."""
    config = read_config(directory.model)
    network = library().MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    if network is None or not network.can_generate():
        raise ModelUnavailable(f"the network of the model_type {config.model_type!r} does not make texts")


def _llava(config: Any) -> Shape:
    side = config.vision_config.image_size
    return Shape((1, 3, side, side), 0, lambda _: {})


def _llava_next(config: Any) -> Shape:
    side = config.vision_config.image_size
    return Shape((None, 3, side, side), 2, lambda sizes: {"image_sizes": sizes})


def _qwen2_vl(config: Any) -> Shape:
    vision = config.vision_config
    values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    return Shape((None, values), 3, lambda grids: {"image_grid_thw": grids}, merge=vision.spatial_merge_size)


_SHAPES: Mapping[str, Callable[[Any], Shape]] = MappingProxyType(
    {"llava": _llava, "llava_next": _llava_next, "qwen2_vl": _qwen2_vl}
)


def _layouts(given: Any, length: int) -> list[Layout]:
    found = [tuple(layout) if isinstance(layout, list | tuple) else (None,) for layout in given or ()]
    if not isinstance(given, Sequence) or not all(_is_layout(layout, length) for layout in found):
        raise ProcessorFailed(f"the network takes `layouts`, a list of {length} whole numbers for each image")
    return found


def _is_layout(layout: tuple[Any, ...], length: int) -> bool:
    return len(layout) == length and all(type(number) is int and number > 0 for number in layout)


def grid_positions(
    in_image: npt.NDArray[np.bool_], grids: Sequence[Sequence[int]], merge: int
) -> npt.NDArray[np.int64]:
    """Return the positions (3, T) of tokens: time, row and column.

    `in_image` (T,) is true for tokens of images; `grids` has each image's (frames, rows, columns) of patches, of which
    `merge` x `merge` are one token. A text's tokens count on from the largest position before them.

    Raises `InvalidInput` if tokens and grids do not match.
    """
    found: list[npt.NDArray[Any]] = []
    at, following = 0, 0
    for frames, rows, columns in grids:
        shape = frames, rows // merge, columns // merge
        text, count = _until(in_image, at), int(np.prod(shape))
        if not in_image[text : text + count].all() or text + count > len(in_image):
            raise InvalidInput(f"an image makes {count} tokens, and the prompt has fewer places for them")
        found.append(_text(text - at, following))
        following += text - at
        found.append(np.indices(shape).reshape(3, count) + following)
        following += max(shape[1:])
        at = text + count
    if in_image[at:].any():
        raise InvalidInput("the prompt has places for more images than there are")
    return np.concatenate([*found, _text(len(in_image) - at, following)], axis=1).astype(np.int64)


def _until(in_image: npt.NDArray[np.bool_], at: int) -> int:
    """Return the index where the next image begins."""
    ahead = np.flatnonzero(in_image[at:])
    return at + int(ahead[0]) if len(ahead) else len(in_image)


def _text(count: int, first: int) -> npt.NDArray[Any]:
    return np.broadcast_to(np.arange(first, first + count), (3, count))
