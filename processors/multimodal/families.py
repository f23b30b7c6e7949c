"""Families of image-text networks: the input pixels and the number of tokens that each family makes of an image.

The `model_type` of `config.json` names the family. A model is rejected if `config.json` and the preprocessor's config
contradict each other, because its network would see images unlike those it was trained on. Tests compare every family
with transformers' own processors, number by number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from PIL import Image

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Array
from penstock.processors.directory import read_config
from penstock.processors.vision.image import ImageArray
from penstock.processors.vision.preprocessor import FILE, Preprocessor, parse_preprocessor

#: Maximum ratio of an image's sides, as in Qwen2-VL's own preprocessor.
MAX_ASPECT = 200
#: Default resolutions of LLaVA-NeXT.
_RESOLUTIONS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image as the input of a network."""

    #: float32; the shape depends on the family.
    pixels: Array
    #: Geometry for the network: empty, [height, width], or the grid of patches.
    layout: list[int]
    #: Number of tokens that represent the image in the text.
    tokens: int


class Family(Protocol):
    """A family of networks with the same image input."""

    @property
    def image_token_id(self) -> int:
        """Id of the placeholder token of images."""
        ...

    def prepare(self, image: ImageArray) -> PreparedImage:
        """Convert an image, uint8 (height, width, 3), to the network's input; raise `InvalidInput` if it cannot be."""
        ...


@dataclass(frozen=True, slots=True)
class Llava:
    """Llava: one image of a fixed size. Pixels (1, 3, side, side)."""

    image_token_id: int
    preprocessor: Preprocessor
    tokens: int

    def prepare(self, image: ImageArray) -> PreparedImage:
        """Resize and crop the image."""
        return PreparedImage(self.preprocessor.apply(image)[None], [], self.tokens)


@dataclass(frozen=True, slots=True)
class LlavaNext:
    """LLaVA-NeXT and Granite Vision: the whole image, then its tiles. Pixels (1 + tiles, 3, side, side)."""

    image_token_id: int
    preprocessor: Preprocessor
    side_px: int
    patch_px: int
    resolutions: tuple[Side, ...]

    def prepare(self, image: ImageArray) -> PreparedImage:
        """Pad the image to the best resolution and cut it into tiles, row by row."""
        shape = image.shape[0], image.shape[1]
        resolution = best_resolution(shape, self.resolutions)
        tiles = [self._resized(image, (self.side_px, self.side_px)), *self._tiles(image, resolution)]
        pixels = np.stack([self.preprocessor.apply(tile) for tile in tiles])
        grid = self.side_px // self.patch_px
        down, across = resolution[0] // self.side_px, resolution[1] // self.side_px
        return PreparedImage(pixels, list(shape), grid**2 + tiled_tokens(shape, (down, across), grid))

    def _tiles(self, image: ImageArray, resolution: Side) -> list[ImageArray]:
        height, width = fitted((image.shape[0], image.shape[1]), resolution)
        canvas = np.zeros((*resolution, 3), dtype=np.uint8)
        top, left = (resolution[0] - height) // 2, (resolution[1] - width) // 2
        canvas[top : top + height, left : left + width] = self._resized(image, (height, width))
        side = self.side_px
        corners = [(y, x) for y in range(0, resolution[0], side) for x in range(0, resolution[1], side)]
        return [canvas[y : y + side, x : x + side] for y, x in corners]

    def _resized(self, image: ImageArray, shape: Side) -> ImageArray:
        return _resized(image, shape, self.preprocessor)


@dataclass(frozen=True, slots=True)
class Qwen2VL:
    """Qwen2-VL: patches of the image at nearly its own size. Pixels (patches, 3 * frames * patch * patch)."""

    image_token_id: int
    preprocessor: Preprocessor
    patch_px: int
    frames: int
    merge: int
    min_pixels: int
    max_pixels: int

    def prepare(self, image: ImageArray) -> PreparedImage:
        """Resize the image to a whole number of patches; patches that are merged into one token are adjacent."""
        height, width = self._size(image.shape[0], image.shape[1])
        pixels = self.preprocessor.apply(_resized(image, (height, width), self.preprocessor))
        rows, columns, m, p = height // self.patch_px, width // self.patch_px, self.merge, self.patch_px
        blocks = pixels.reshape(3, rows // m, m, p, columns // m, m, p).transpose(1, 4, 2, 5, 0, 3, 6)
        # An image is treated as a video of identical frames.
        video = np.broadcast_to(blocks[:, :, :, :, :, None], (*blocks.shape[:5], self.frames, p, p))
        patches = video.reshape(rows * columns, 3 * self.frames * p * p)
        return PreparedImage(patches, [1, rows, columns], rows * columns // m**2)

    def _size(self, height: int, width: int) -> Side:
        if max(height, width) > MAX_ASPECT * min(height, width):
            raise InvalidInput(f"The image has {width} x {height} pixels; the ratio may be at most {MAX_ASPECT}.")
        step = self.patch_px * self.merge
        found = round(height / step) * step, round(width / step) * step
        if found[0] * found[1] > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            return (
                max(step, math.floor(height / shrink / step) * step),
                max(step, math.floor(width / shrink / step) * step),
            )
        if found[0] * found[1] < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            return math.ceil(height * grow / step) * step, math.ceil(width * grow / step) * step
        return found


def read_family(model: Model) -> Family:
    """Return the family of a model's directory; raise `ModelUnavailable` if it is not supported or contradictory."""
    config = read_config(model)
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise ModelUnavailable(
            f"model {model.name!r}: image-text-to-text does not support the model_type {kind!r}; "
            f"supported: {', '.join(FAMILIES)}"
        )
    try:
        return FAMILIES[kind](config, _preparation(model))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"missing: {error}" if isinstance(error, KeyError) else str(error)
        raise ModelUnavailable(f"model {model.name!r}: config.json and {FILE} do not fit {kind}: {reason}") from error


def _preparation(model: Model) -> Mapping[str, Any]:
    """Return the preprocessor's config: the option `preprocessor`, or one of two files."""
    joint = read_config(model, "processor_config.json").get("image_processor")
    found: Mapping[str, Any] = model.options.get("preprocessor") or read_config(model, FILE) or joint or {}
    if not found:
        raise ModelUnavailable(f"model {model.name!r}: there is neither a file {FILE} nor an option `preprocessor`")
    return found


def _llava(config: Mapping[str, Any], data: Mapping[str, Any]) -> Family:
    tower = _VisionTower.of(config)
    if data.get("do_pad"):
        raise ValueError("do_pad, which makes images square, is not supported")
    return Llava(_image_token(config, 32_000), _preprocessor(data, tower), tower.grid**2 + tower.extra)


def _llava_next(config: Mapping[str, Any], data: Mapping[str, Any]) -> Family:
    tower = _VisionTower.of(config)
    if tower.extra:
        raise ValueError("its vision tower and vision_feature_select_strategy do not give square tiles of patches")
    given = config.get("image_grid_pinpoints") or _RESOLUTIONS
    if data.get("image_grid_pinpoints", given) != given:
        raise ValueError("the files have different image_grid_pinpoints")
    resolutions = tuple((int(height), int(width)) for height, width in given)
    if not resolutions or any(side < 1 or side % tower.side_px for pair in resolutions for side in pair):
        raise ValueError(f"image_grid_pinpoints must be multiples of the vision tower's {tower.side_px} px")
    return LlavaNext(
        _image_token(config, 32_000), _preprocessor(data, tower), tower.side_px, tower.patch_px, resolutions
    )


def _qwen2_vl(config: Mapping[str, Any], data: Mapping[str, Any]) -> Family:
    vision = config.get("vision_config") or {}
    sizes = {"patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2} | vision
    mine = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, **data}
    wanted = sizes["patch_size"], sizes["temporal_patch_size"], sizes["spatial_merge_size"]
    if (mine["patch_size"], mine["temporal_patch_size"], mine["merge_size"]) != wanted:
        raise ValueError("the files have different patch sizes")
    size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280} | (data.get("size") or {})
    fewest, most = data.get("min_pixels") or size["shortest_edge"], data.get("max_pixels") or size["longest_edge"]
    if not 0 < fewest <= most:
        raise ValueError("min_pixels and max_pixels are not a valid range")
    preprocessor = parse_preprocessor(_as_clip(data, "size") | {"do_resize": False, "do_center_crop": False})
    return Qwen2VL(_image_token(config, 151_655), preprocessor, *wanted, int(fewest), int(most))


#: Functions by `model_type` that make a family from `config.json` and the preprocessor's config.
FAMILIES: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Family]] = MappingProxyType(
    {"llava": _llava, "llava_next": _llava_next, "qwen2_vl": _qwen2_vl}
)


#: Defaults by type of vision tower: side of the image, side of a patch, number of tokens before the patches.
_VISION_TOWERS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {"clip_vision_model": (224, 32, 1), "siglip_vision_model": (224, 16, 0)}
)


@dataclass(frozen=True, slots=True)
class _VisionTower:
    """The image encoder of a Llava network."""

    side_px: int
    patch_px: int
    #: Number of tokens beside those of the patches.
    extra: int

    @property
    def grid(self) -> int:
        """Number of patches along a side."""
        return self.side_px // self.patch_px

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> _VisionTower:
        vision = config.get("vision_config") or {"image_size": 336, "patch_size": 14}
        kind = vision.get("model_type", "clip_vision_model")
        if kind not in _VISION_TOWERS:
            raise ValueError(f"the vision tower {kind!r} is not supported; supported: {', '.join(_VISION_TOWERS)}")
        side, patch, before = _VISION_TOWERS[kind]
        cut = config.get("vision_feature_select_strategy", "default") == "default"
        return cls(vision.get("image_size", side), vision.get("patch_size", patch), before - cut)


def _preprocessor(data: Mapping[str, Any], tower: _VisionTower) -> Preprocessor:
    """Return the preprocessor of an image or tile; raise `ValueError` unless its output fits the vision tower."""
    kind = str(data.get("image_processor_type", "Llava"))
    preprocessor = parse_preprocessor(_as_clip(data, "do_pad") if "Llava" in kind else data)
    if preprocessor.apply(np.zeros((7, 9, 3), dtype=np.uint8)).shape != (3, tower.side_px, tower.side_px):
        raise ValueError(f"the preprocessor does not make images of the network's {tower.side_px} px")
    return preprocessor


def _as_clip(data: Mapping[str, Any], *own: str) -> dict[str, Any]:
    """Return a config of CLIP's kind, without the fields `own`, which only the family knows."""
    kept = {name: value for name, value in data.items() if name not in own}
    return kept | {"image_processor_type": "CLIPImageProcessor"}


def _image_token(config: Mapping[str, Any], usual: int) -> int:
    found = config.get("image_token_id", config.get("image_token_index"))
    return usual if found is None else int(found)


def _resized(image: ImageArray, shape: Side, preprocessor: Preprocessor) -> ImageArray:
    size = shape[1], shape[0]
    return np.asarray(Image.fromarray(image).resize(size, preprocessor.fields.resample), dtype=np.uint8)


Side = tuple[int, int]  #: (height, width) in pixels or patches


def best_resolution(shape: Side, resolutions: Sequence[Side]) -> Side:
    """Return the resolution that keeps most of an image's pixels; of several, the one with the least padding."""
    height, width = shape

    def merit(resolution: Side) -> tuple[int, int]:
        scale = min(resolution[1] / width, resolution[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - resolution[0] * resolution[1]

    return max(resolutions, key=merit)


def fitted(shape: Side, resolution: Side) -> Side:
    """Return the largest size with the image's aspect ratio that fits into a resolution."""
    height, width = shape
    by_width, by_height = resolution[1] / width, resolution[0] / height
    if by_width < by_height:
        return min(math.ceil(height * by_width), resolution[0]), resolution[1]
    return resolution[0], min(math.ceil(width * by_height), resolution[1])


def tiled_tokens(shape: Side, tiles: Side, grid: int) -> int:
    """Return the number of tokens of an image's tiles: (down, across) tiles with `grid` x `grid` patches each.

    Patches of padding have no token. Each row of patches has one additional token at its end.
    """
    height, width = shape
    rows, columns = tiles[0] * grid, tiles[1] * grid
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    return rows * columns + rows
