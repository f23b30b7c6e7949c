"""Image preprocessing as a model's `preprocessor_config.json` configures it: resize, crop, rescale, normalise, pad.

transformers' own image processors import torch, which takes 4 s and 360 MB in every IO process
(`docs/decisions/0008-pictures-without-transformers.md`). Their documented fields are few and the arithmetic is simple.
Tests compare this module with transformers number by number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.models import Model, Record
from penstock.processors.directory import read_config
from penstock.processors.vision.image import ImageArray

FILE = "preprocessor_config.json"

_HALF = (0.5, 0.5, 0.5)
_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
_CLIP = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": 224,
}
_BICUBIC = {"resample": Image.Resampling.BICUBIC}
_SHORT = {"default_to_square": False}
_DETECTOR = _IMAGENET | _SHORT | {"size": {"shortest_edge": 800, "longest_edge": 1333}}
_DETR = _DETECTOR | {"max_size": 1333, "do_pad": True}

#: Default fields by the kind of image processor, because old files contain few fields. Kinds with other operations than
#: resize, crop, rescale, normalise and pad are missing here and are rejected.
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "Beit": _BICUBIC,
    "Bit": _CLIP | _BICUBIC | _SHORT,
    "CLIP": _CLIP | _BICUBIC | _SHORT,
    "ConditionalDetr": _DETR,
    "ConvNext": _BICUBIC | _SHORT | {"size": {"shortest_edge": 384}, "crop_pct": 224 / 256},
    "DPT": _BICUBIC | {"size": 384, "do_pad": False},
    "DeformableDetr": _DETR,
    "DeiT": _BICUBIC | {"size": 256, "do_center_crop": True, "crop_size": 224},
    "Detr": _DETR,
    "EfficientNet": _BICUBIC | {"size": 346, "crop_size": 289, "include_top": True},
    "GLPN": {"do_normalize": False, "size_divisor": 32},
    "Mask2Former": _DETECTOR | {"size_divisor": 32},
    "MaskFormer": _DETECTOR | {"size_divisor": 32},
    "MobileNetV1": _SHORT | {"size": 256, "do_center_crop": True, "crop_size": 224},
    "MobileNetV2": _SHORT | {"size": 256, "do_center_crop": True, "crop_size": 224},
    "RTDetr": _IMAGENET | _SHORT | {"size": {"height": 640, "width": 640}, "do_normalize": False, "do_pad": False},
    "Segformer": _IMAGENET | {"size": 512},
    "Siglip": _BICUBIC | _SHORT,
    "ViT": {},
    "Yolos": _DETR,
}

#: Kinds that pad the images of a batch to one size. A single image is padded only where there is a `pad_size`.
_PADDING = frozenset({"ConditionalDetr", "DeformableDetr", "Detr", "Mask2Former", "MaskFormer", "RTDetr", "Yolos"})
#: YOLOS rounds both sides down to a multiple of its patch size.
_YOLOS_PX = 16


class Size(Record):
    """A size to resize, crop or pad to: two sides, two maximum sides, or the shorter edge and a maximum longer edge."""

    height: int | None = Field(default=None, gt=0)
    width: int | None = Field(default=None, gt=0)
    shortest_edge: int | None = Field(default=None, gt=0)
    longest_edge: int | None = Field(default=None, gt=0)
    max_height: int | None = Field(default=None, gt=0)
    max_width: int | None = Field(default=None, gt=0)


class PreprocessorFields(BaseModel):
    """The supported fields of the file. Other fields do not change pixels and are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    do_resize: bool = True
    size: Size = Size(height=224, width=224)
    resample: Image.Resampling = Image.Resampling.BILINEAR
    do_center_crop: bool = False
    crop_size: Size = Size(height=224, width=224)
    crop_pct: float | None = Field(default=None, gt=0)
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    rescale_offset: bool = False
    do_normalize: bool = True
    image_mean: tuple[float, float, float] = _HALF
    image_std: tuple[float, float, float] = _HALF
    include_top: bool = False
    do_pad: bool | None = None
    pad_size: Size | None = None
    size_divisor: int | None = Field(default=None, gt=0)
    keep_aspect_ratio: bool = False
    ensure_multiple_of: int = Field(default=1, gt=0)


@dataclass(frozen=True, slots=True)
class Preprocessor:
    """The steps from an image to the network's input."""

    kind: str
    fields: PreprocessorFields

    @property
    def crops(self) -> bool:
        """True if the image's edges may be cut off."""
        return self.fields.do_center_crop or (self.kind == "ConvNext" and self.fields.do_resize)

    @property
    def pads(self) -> bool:
        """True if the network's input has padding beyond the image."""
        wanted = self.fields.do_pad if "size_divisor" not in _KINDS[self.kind] else self.kind in _PADDING
        return self.fields.pad_size is not None and bool(wanted)

    def cost(self, height: int, width: int) -> int:
        """Return the number of the network's input pixels for an image; raise the errors of `resized_shape`."""
        fields = self.fields
        if fields.do_center_crop:
            height, width = fields.crop_size.height or 0, fields.crop_size.width or 0
        elif self.kind == "ConvNext" and fields.size.shortest_edge:
            height = width = fields.size.shortest_edge
        elif self.pads and fields.pad_size is not None:
            height, width = fields.pad_size.height or 0, fields.pad_size.width or 0
        else:
            height, width = self.resized_shape(height, width)
        return height * width

    def resized_shape(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) that an image is resized to, before cropping and padding.

        Raises `InvalidInput` if a side would become 0.
        """
        found = self._target(height, width) if self.fields.do_resize else (height, width)
        if 0 in found:
            raise InvalidInput(f"The image is too small or too narrow for this model: {width} x {height} pixels.")
        return found

    def apply(self, image: ImageArray) -> npt.NDArray[np.float32]:
        """Return float32 (3, height, width) for uint8 (height, width, 3): resized, cropped, rescaled, normalised."""
        fields = self.fields
        if fields.do_resize:
            image = self._resize(image)
        if fields.do_center_crop:
            image = _crop(image, fields.crop_size)
        values = self._values()
        pixels = np.empty((3, *image.shape[:2]), np.float32)
        for channel, row in enumerate(values):
            # Every byte has a value. "raise", the default, would write to a copy first.
            np.take(row, image[..., channel], out=pixels[channel], mode="clip")
        if self.pads and fields.pad_size is not None:
            pixels = np.ascontiguousarray(_padded(pixels.transpose(1, 2, 0), fields.pad_size).transpose(2, 0, 1))
        return pixels

    def _values(self) -> npt.NDArray[np.float32]:
        """Return the pixel of each channel and byte, float32 (3, 256): all steps work on each value by itself."""
        fields = self.fields
        mean, std = tuple(fields.image_mean), tuple(fields.image_std)
        return _values(
            fields.rescale_factor if fields.do_rescale else None,
            bool(fields.rescale_offset),
            mean if fields.do_normalize else None,
            std,
            bool(fields.include_top),
        )

    def _resize(self, image: ImageArray) -> ImageArray:
        edge = self.fields.size.shortest_edge
        if self.kind == "ConvNext" and edge is not None:
            if edge >= 384:
                return _resized(image, edge, edge, self.fields.resample)
            short = int(edge / (self.fields.crop_pct or 224 / 256))
            grown = _resized(image, *target(image.shape[:2], Size(shortest_edge=short)), self.fields.resample)
            return _crop(grown, Size(height=edge, width=edge))
        return _resized(image, *self.resized_shape(*image.shape[:2]), self.fields.resample)

    def _target(self, height: int, width: int) -> tuple[int, int]:
        fields = self.fields
        match self.kind:
            case "DPT":
                return _fitted((height, width), fields)
            case "GLPN":
                return _multiple((height, width), fields.size_divisor or 1, math.floor)
            case "Mask2Former" | "MaskFormer":
                return _multiple(target((height, width), fields.size), fields.size_divisor or 1, math.ceil)
            case "Yolos" if fields.size.longest_edge:
                return _multiple(target((height, width), fields.size), _YOLOS_PX, math.floor)
            case _:
                return target((height, width), fields.size)


@lru_cache(maxsize=256)
def _values(
    factor: float | None, offset: bool, mean: tuple[float, ...] | None, std: tuple[float, ...], include_top: bool
) -> npt.NDArray[np.float32]:
    """Return every byte rescaled and normalised, float32 (3, 256), in the library's order and precision."""
    values = np.arange(256, dtype=np.float32)
    if factor is not None:
        values = (np.arange(256, dtype=np.float64) * factor).astype(np.float32)
        values = values - np.float32(1) if offset else values
    rows = np.repeat(values[None], 3, axis=0)
    divisor = np.asarray(std, dtype=np.float32)[:, None]
    if mean is not None:
        rows = (rows - np.asarray(mean, dtype=np.float32)[:, None]) / divisor
    if include_top:  # EfficientNet divides by the standard deviation a second time for its classifiers
        rows = rows / divisor
    return np.ascontiguousarray(rows)


def read_preprocessor(model: Model) -> Preprocessor:
    """Return the preprocessor from the option `preprocessor`, or from the model's directory.

    transformers 5 writes the preprocessors of models of images and texts to `processor_config.json`. Raises
    `ModelUnavailable` if there is no preprocessor, its kind is not supported, or its fields are invalid.
    """
    table = model.options.get("preprocessor")
    data = _read_file(model) if table is None else table
    if not data:
        raise ModelUnavailable(f"model {model.name!r}: there is neither a file {FILE} nor an option `preprocessor`")
    try:
        return parse_preprocessor(data)
    except (ValueError, TypeError) as error:
        raise ModelUnavailable(f"model {model.name!r}: wrong {FILE}: {error}") from error


def _read_file(model: Model) -> Mapping[str, Any]:
    nested = read_config(model, "processor_config.json").get("image_processor")
    return nested if isinstance(nested, dict) else read_config(model, FILE)


def parse_preprocessor(data: Mapping[str, Any]) -> Preprocessor:
    """Return the preprocessor from a file's data; raise `ValueError` for unsupported kinds and fields."""
    named = str(data.get("image_processor_type") or data.get("feature_extractor_type") or "ViT")
    kind = (
        named.removesuffix("Pil").removesuffix("Fast").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    )
    if kind not in _KINDS:
        raise ValueError(f"image processors of the kind {named!r} are not supported; supported: {', '.join(_KINDS)}")
    given = {name: value for name, value in data.items() if value is not None}
    merged = {**_KINDS[kind], **given}
    square = bool(merged.get("default_to_square", True))
    for name, alone in (("size", square), ("crop_size", True)):
        if isinstance(merged.get(name), int):
            merged[name] = _sides(merged[name], square=alone, longest=merged.get("max_size"))
    for name in ("image_mean", "image_std"):
        if isinstance(merged.get(name), int | float):
            merged[name] = (merged[name],) * 3
    fields = PreprocessorFields.model_validate(merged)
    if fields.do_pad and kind not in _PADDING:
        raise ValueError("do_pad is not supported")
    _check(fields)
    return Preprocessor(kind, fields)


def target(shape: tuple[int, ...], size: Size) -> tuple[int, int]:
    """Return the height and width that an image of (height, width) is resized to."""
    if size.height and size.width:
        return size.height, size.width
    height, width = shape
    if size.max_height and size.max_width:
        scale = min(size.max_height / height, size.max_width / width)
        return int(height * scale), int(width * scale)
    short, long = min(height, width), max(height, width)
    edge = float(size.shortest_edge or short)
    if size.longest_edge and long / short * edge > size.longest_edge:
        edge = size.longest_edge * short / long
        if round(edge) == short:
            return height, width
    lengths = max(1, round(edge)) if size.longest_edge else int(edge), max(1, int(edge * long / short))
    return lengths if height <= width else (lengths[1], lengths[0])


def _sides(side: int, *, square: bool, longest: int | None) -> dict[str, int | None]:
    return {"height": side, "width": side} if square else {"shortest_edge": side, "longest_edge": longest}


def _fitted(shape: tuple[int, int], fields: PreprocessorFields) -> tuple[int, int]:
    """Return DPT's size: both sides, or with `keep_aspect_ratio` the smaller change, rounded to a multiple."""
    scales = [(wanted or 0) / side for wanted, side in zip((fields.size.height, fields.size.width), shape, strict=True)]
    if fields.keep_aspect_ratio:
        scales = [scales[1] if abs(1 - scales[1]) < abs(1 - scales[0]) else scales[0]] * 2
    multiple = fields.ensure_multiple_of
    height, width = (round(scale * side / multiple) * multiple for scale, side in zip(scales, shape, strict=True))
    return height, width


def _multiple(shape: tuple[int, int], of: int, cut: Callable[[float], int]) -> tuple[int, int]:
    return cut(shape[0] / of) * of, cut(shape[1] / of) * of


def _padded(pixels: npt.NDArray[np.float32], size: Size) -> npt.NDArray[np.float32]:
    """Return (height, width, 3) with zeros below and at the right."""
    missing = [(wanted or 0) - side for wanted, side in zip((size.height, size.width), pixels.shape, strict=False)]
    if min(missing) < 0:
        raise InvalidInput(
            f"The resized image has {pixels.shape[1]} x {pixels.shape[0]} pixels, more than the {size.width} x "
            f"{size.height} that the model pads to."
        )
    return np.pad(pixels, [(0, missing[0]), (0, missing[1]), (0, 0)])


def _check(fields: PreprocessorFields) -> None:
    sides = fields.size
    both = (sides.height and sides.width) or (sides.max_height and sides.max_width)
    if fields.do_resize and not (both or sides.shortest_edge):
        raise ValueError("size must have height and width, or shortest_edge")
    if fields.pad_size is not None and not (fields.pad_size.height and fields.pad_size.width):
        raise ValueError("pad_size must have height and width")
    if fields.do_center_crop and not (fields.crop_size.height and fields.crop_size.width):
        raise ValueError("crop_size must have height and width")
    if any(value == 0 for value in fields.image_std):
        raise ValueError("image_std must not be 0")


def _resized(image: ImageArray, height: int, width: int, resample: Image.Resampling) -> ImageArray:
    if image.shape[:2] == (height, width):  # Pillow would copy it four times
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), resample), dtype=np.uint8)


def _crop(image: ImageArray, size: Size) -> ImageArray:
    """Cut out the centre; missing pixels are black."""
    height, width = size.height or 0, size.width or 0
    canvas = np.zeros((max(height, image.shape[0]), max(width, image.shape[1]), 3), dtype=np.uint8)
    top, left = (math.ceil((a - b) / 2) for a, b in zip(canvas.shape[:2], image.shape[:2], strict=True))
    canvas[top : top + image.shape[0], left : left + image.shape[1]] = image
    top, left = top + (image.shape[0] - height) // 2, left + (image.shape[1] - width) // 2
    return canvas[top : top + height, left : left + width]
