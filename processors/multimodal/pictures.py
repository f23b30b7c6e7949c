"""What each family of image-text networks makes of a picture: its pixels, and how many tokens stand for it.

A family is known by the `model_type` of `config.json`. What that file and the one of the pictures' preparation say must
go together: where they do not, the network would see other pictures than it was trained on, so the model is refused.
Tests compare every family with transformers' own processors, number by number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from PIL import Image

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Array
from penstock.processors.directory import read_config
from penstock.processors.multimodal.anyres import Side, best_resolution, fitted, tiled_tokens
from penstock.processors.vision.picture import Picture
from penstock.processors.vision.recipe import FILE, Recipe, parse_recipe

#: A picture that is so much longer than it is high is refused by Qwen2-VL's own preparation too.
MAX_ASPECT = 200


@dataclass(frozen=True, slots=True)
class Seen:
    """A picture as a network takes it."""

    #: float32; the shape is the family's.
    pixels: Array
    #: What the network must be told of its shape, whole numbers: nothing, [height, width], or the grid of its patches.
    layout: list[int]
    #: How many tokens stand for it in the text.
    tokens: int


class Family(Protocol):
    """How networks of one kind see pictures."""

    @property
    def image_token_id(self) -> int:
        """The token that stands for pictures."""
        ...

    def see(self, picture: Picture) -> Seen:
        """Return a picture, uint8 (height, width, 3), as the network takes it; raise `InvalidInput`."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """Llava: one picture of one size. Pixels (1, 3, side, side)."""

    image_token_id: int
    recipe: Recipe
    tokens: int

    def see(self, picture: Picture) -> Seen:
        """Resize and crop it."""
        return Seen(self.recipe.apply(picture)[None], [], self.tokens)


@dataclass(frozen=True, slots=True)
class Tiled:
    """LLaVA-NeXT, Granite Vision: the whole picture, then tiles of it enlarged. Pixels (1 + tiles, 3, side, side)."""

    image_token_id: int
    recipe: Recipe
    side_px: int
    patch_px: int
    resolutions: tuple[Side, ...]

    def see(self, picture: Picture) -> Seen:
        """Pad it to the best resolution and cut that into tiles, row by row."""
        shape = picture.shape[0], picture.shape[1]
        resolution = best_resolution(shape, self.resolutions)
        tiles = [self._resized(picture, (self.side_px, self.side_px)), *self._tiles(picture, resolution)]
        pixels = np.stack([self.recipe.apply(tile) for tile in tiles])
        grid = self.side_px // self.patch_px
        down, across = resolution[0] // self.side_px, resolution[1] // self.side_px
        return Seen(pixels, list(shape), grid**2 + tiled_tokens(shape, (down, across), grid))

    def _tiles(self, picture: Picture, resolution: Side) -> list[Picture]:
        height, width = fitted((picture.shape[0], picture.shape[1]), resolution)
        canvas = np.zeros((*resolution, 3), dtype=np.uint8)
        top, left = (resolution[0] - height) // 2, (resolution[1] - width) // 2
        canvas[top : top + height, left : left + width] = self._resized(picture, (height, width))
        side = self.side_px
        corners = [(y, x) for y in range(0, resolution[0], side) for x in range(0, resolution[1], side)]
        return [canvas[y : y + side, x : x + side] for y, x in corners]

    def _resized(self, picture: Picture, shape: Side) -> Picture:
        return _resized(picture, shape, self.recipe)


@dataclass(frozen=True, slots=True)
class Gridded:
    """Qwen2-VL: a picture of nearly its own size as rows of patches. Pixels (patches, 3 * frames * patch * patch)."""

    image_token_id: int
    recipe: Recipe
    patch_px: int
    frames: int
    merge: int
    min_pixels: int
    max_pixels: int

    def see(self, picture: Picture) -> Seen:
        """Resize it to a whole number of patches, those that become one token beside each other."""
        height, width = self._size(picture.shape[0], picture.shape[1])
        pixels = self.recipe.apply(_resized(picture, (height, width), self.recipe))
        rows, columns, m, p = height // self.patch_px, width // self.patch_px, self.merge, self.patch_px
        blocks = pixels.reshape(3, rows // m, m, p, columns // m, m, p).transpose(1, 4, 2, 5, 0, 3, 6)
        # A still picture is a film in which nothing moves.
        film = np.broadcast_to(blocks[:, :, :, :, :, None], (*blocks.shape[:5], self.frames, p, p))
        patches = film.reshape(rows * columns, 3 * self.frames * p * p)
        return Seen(patches, [1, rows, columns], rows * columns // m**2)

    def _size(self, height: int, width: int) -> Side:
        if max(height, width) > MAX_ASPECT * min(height, width):
            raise InvalidInput(
                f"The picture has {width} x {height} pixels; the model takes no side that is more than "
                f"{MAX_ASPECT} times as long as the other."
            )
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
    """Return the family of a model's directory; raise `ModelUnavailable` for one that is not known or does not fit."""
    config = read_config(model)
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise ModelUnavailable(
            f"model {model.name!r}: model_type {kind!r} is not known to image-text-to-text; "
            f"known are: {', '.join(FAMILIES)}"
        )
    try:
        return FAMILIES[kind](config, _preparation(model))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        said = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ModelUnavailable(f"model {model.name!r}: config.json and {FILE} do not make a {kind}: {said}") from error


def _preparation(model: Model) -> Mapping[str, Any]:
    """Return what is done to pictures: the option `preprocessor`, or what one of two files says."""
    joint = read_config(model, "processor_config.json").get("image_processor")
    found: Mapping[str, Any] = model.options.get("preprocessor") or read_config(model, FILE) or joint or {}
    if not found:
        raise ModelUnavailable(f"model {model.name!r}: its directory has no {FILE}, and its options no `preprocessor`")
    return found


def _llava(config: Mapping[str, Any], data: Mapping[str, Any]) -> Family:
    tower = _Tower.of(config)
    if data.get("do_pad"):
        raise ValueError("do_pad, which makes pictures square, is not known here")
    return Whole(_image_token(config, 32_000), _recipe(data, tower), tower.grid**2 + tower.extra)


def _llava_next(config: Mapping[str, Any], data: Mapping[str, Any]) -> Family:
    tower = _Tower.of(config)
    if tower.extra:
        raise ValueError("its tower and vision_feature_select_strategy leave tiles that are no square of patches")
    given = config.get("image_grid_pinpoints") or _RESOLUTIONS
    if data.get("image_grid_pinpoints", given) != given:
        raise ValueError("they name different image_grid_pinpoints")
    resolutions = tuple((int(height), int(width)) for height, width in given)
    if not resolutions or any(side < 1 or side % tower.side_px for pair in resolutions for side in pair):
        raise ValueError(f"image_grid_pinpoints must be multiples of the tower's {tower.side_px} px")
    return Tiled(_image_token(config, 32_000), _recipe(data, tower), tower.side_px, tower.patch_px, resolutions)


def _qwen2_vl(config: Mapping[str, Any], data: Mapping[str, Any]) -> Family:
    vision = config.get("vision_config") or {}
    sizes = {"patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2} | vision
    mine = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, **data}
    wanted = sizes["patch_size"], sizes["temporal_patch_size"], sizes["spatial_merge_size"]
    if (mine["patch_size"], mine["temporal_patch_size"], mine["merge_size"]) != wanted:
        raise ValueError("they name different sizes of patches")
    size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280} | (data.get("size") or {})
    fewest, most = data.get("min_pixels") or size["shortest_edge"], data.get("max_pixels") or size["longest_edge"]
    if not 0 < fewest <= most:
        raise ValueError("min_pixels and max_pixels are no range")
    recipe = parse_recipe(_as_clip(data, "size") | {"do_resize": False, "do_center_crop": False})
    return Gridded(_image_token(config, 151_655), recipe, *wanted, int(fewest), int(most))


#: How each kind of network is read, by `model_type`.
FAMILIES: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Family]] = MappingProxyType(
    {"llava": _llava, "llava_next": _llava_next, "qwen2_vl": _qwen2_vl}
)

#: LLaVA-NeXT's, where a directory names none.
_RESOLUTIONS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]

#: Where a file does not say: the side of its pictures and of their patches, and how many tokens come before those.
_TOWERS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {"clip_vision_model": (224, 32, 1), "siglip_vision_model": (224, 16, 0)}
)


@dataclass(frozen=True, slots=True)
class _Tower:
    """The encoder of pictures in a Llava."""

    side_px: int
    patch_px: int
    #: Tokens beside those of the patches.
    extra: int

    @property
    def grid(self) -> int:
        """How many patches a side has."""
        return self.side_px // self.patch_px

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> _Tower:
        vision = config.get("vision_config") or {"image_size": 336, "patch_size": 14}
        kind = vision.get("model_type", "clip_vision_model")
        if kind not in _TOWERS:
            raise ValueError(f"the vision tower {kind!r} is not known here; known are: {', '.join(_TOWERS)}")
        side, patch, before = _TOWERS[kind]
        cut = config.get("vision_feature_select_strategy", "default") == "default"
        return cls(vision.get("image_size", side), vision.get("patch_size", patch), before - cut)


def _recipe(data: Mapping[str, Any], tower: _Tower) -> Recipe:
    """Return what is done to a picture, or a tile; raise `ValueError` where it does not come out as the tower wants."""
    kind = str(data.get("image_processor_type", "Llava"))
    recipe = parse_recipe(_as_clip(data, "do_pad") if "Llava" in kind else data)
    if recipe.apply(np.zeros((7, 9, 3), dtype=np.uint8)).shape != (3, tower.side_px, tower.side_px):
        raise ValueError(f"pictures do not come out at the {tower.side_px} px that the network takes")
    return recipe


def _as_clip(data: Mapping[str, Any], *own: str) -> dict[str, Any]:
    """Return the same without what is the family's own: the rest has CLIP's defaults."""
    kept = {name: value for name, value in data.items() if name not in own}
    return kept | {"image_processor_type": "CLIPImageProcessor"}


def _image_token(config: Mapping[str, Any], usual: int) -> int:
    found = config.get("image_token_id", config.get("image_token_index"))
    return usual if found is None else int(found)


def _resized(picture: Picture, shape: Side, recipe: Recipe) -> Picture:
    size = shape[1], shape[0]
    return np.asarray(Image.fromarray(picture).resize(size, recipe.fields.resample), dtype=np.uint8)
