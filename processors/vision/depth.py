"""Depth estimation: turns an image into a depth map of the same size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import ArtifactSink, Media, Output, Prepared, Result, only_output
from penstock.processors.directory import check_options, read_config
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS, Indexed
from penstock.processors.vision.preprocessor import read_preprocessor
from penstock.processors.vision.prompts import PIXELS, ImageContext, OneImage, one_prompt
from penstock.processors.vision.request import DepthEstimationRequest
from penstock.views import View

#: The network's output: float32 (h, w), at the network's resolution.
OUTPUT_NAME = "depth"
#: Kinds of depth: metres from the camera, or numbers without a unit that are larger for nearer objects.
KINDS = ("metric", "relative")
#: Model types whose output is always in metres.
_METRIC = frozenset({"glpn", "zoedepth", "prompt_depth_anything"})
_MILLIMETRE = 0.001
_STEPS = 65_535
_PREVIEW_PX = 1024
#: Colours from far to near: samples of matplotlib's inferno (CC0).
_RAMP = ("#000004", "#420a68", "#932667", "#dd513a", "#fca50a", "#fcffa4")
#: The parameter of torch's cubic kernel; Pillow's is -0.5.
_SHARPNESS = -0.75
_ROWS = 256


@dataclass(frozen=True, slots=True)
class Scale:
    """Conversion between depths and 16-bit numbers: depth = offset + scale x number."""

    offset: float
    scale: float

    @classmethod
    def of(cls, low: float, high: float, *, metric: bool) -> Scale:
        """Return a scale in millimetres for depths in metres that fit into 16 bits, else one over the whole range."""
        if metric and low >= 0 and high <= _STEPS * _MILLIMETRE:
            return cls(0.0, _MILLIMETRE)
        return cls(low, (high - low) / _STEPS)

    def numbers(self, depth: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
        """Return depths as 16-bit numbers."""
        shares = (depth - self.offset) / (self.scale or 1)
        return np.asarray(np.clip(np.rint(shares), 0, _STEPS), dtype=np.uint16)


class DepthEstimation(OneImage):
    """The depth estimation processor."""

    request = DepthEstimationRequest
    outputs = (
        OUTPUTS.spec("depth", "depth.png: 16-bit grey; depth.json has the scale of its numbers", kind="png"),
        OUTPUTS.spec("preview", "preview.png: lighter is nearer; its longer side has at most 1024 pixels", kind="png"),
        OUTPUTS.spec(
            "values", "values.safetensors: `depth`, float32 (height, width)", kind="safetensors", default=False
        ),
    )
    views = (View("rows", ""),)
    io_signatures = (IOSignature(prompt=PIXELS, output={OUTPUT_NAME: "float32 (h, w)"}),)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "depth", "preprocessor")
        self._preprocessor = read_preprocessor(model)
        self._metric = _kind(model) == "metric"
        if self._preprocessor.crops or self._preprocessor.pads:
            raise ModelUnavailable(
                f"model {model.name!r}: its preprocessor crops or pads, so a depth map would not fit"
            )

    def pre_process(self, request: DepthEstimationRequest, media: Media) -> Prepared[ImageContext]:
        """Return one prompt."""
        image, prompt = one_prompt(media.source(request.image), self._preprocessor, self._model.limits)
        context = ImageContext(request.outputs, (image.shape[0], image.shape[1]))
        return Prepared(iter([prompt]), 1, prompt.cost, context, unit="images")

    def post_process(self, outputs: Iterator[Output], context: ImageContext, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "kind", "unit", "nearer", "min", "max", "png": {"offset", "scale"}}`."""
        upsampled = Upsampled(_depth(only_output(outputs)), context.size)
        ends = [(float(strip.min()), float(strip.max())) for strip in upsampled.strips()]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        scale = Scale.of(low, high, metric=self._metric)
        data = self._data(context.size, low, high, scale)
        if "depth" in context.outputs:
            OUTPUTS.put(sink, "depth", _numbers(upsampled, scale), kind="png")
            OUTPUTS.put(sink, "depth", data, kind="json")
        if "preview" in context.outputs:
            OUTPUTS.put(sink, "preview", self._preview(upsampled, low, high), kind="png")
        if "values" in context.outputs:
            OUTPUTS.put(sink, "values", {"depth": upsampled.whole()}, kind="safetensors")
        return Result(data=data)

    def _data(self, size: tuple[int, int], low: float, high: float, scale: Scale) -> Mapping[str, Any]:
        return {
            "width": size[1],
            "height": size[0],
            "kind": "metric" if self._metric else "relative",
            "unit": "m" if self._metric else None,
            "nearer": "smaller" if self._metric else "larger",
            "min": low,
            "max": high,
            "png": {"offset": scale.offset, "scale": scale.scale},
        }

    def _preview(self, upsampled: Upsampled, low: float, high: float) -> Indexed:
        shrink = min(1.0, _PREVIEW_PX / max(upsampled.size))
        height, width = (max(1, round(side * shrink)) for side in upsampled.size)
        depth = Upsampled(upsampled.small, (height, width)).whole()
        nearness = np.clip((depth - low) / ((high - low) or 1), 0, 1)
        steps = np.rint((1 - nearness if self._metric else nearness) * 255).astype(np.uint8)
        anchors = np.array([tuple(bytes.fromhex(colour[1:])) for colour in _RAMP])
        at = np.linspace(0, len(_RAMP) - 1, 256)
        ramp = np.rint(np.stack([np.interp(at, range(len(_RAMP)), anchors[:, i]) for i in range(3)], axis=1))
        return Indexed(steps, [(int(r), int(g), int(b)) for r, g, b in ramp])


def _kind(model: Model) -> str:
    """Return the option `depth`, or the kind from `config.json`; most depth models are relative."""
    kind = model.options.get("depth")
    if kind is not None:
        if kind not in KINDS:
            raise ConfigError(f"model {model.name!r}: options.depth must be one of {', '.join(KINDS)}, not {kind!r}")
        return str(kind)
    config = read_config(model)
    metric = config.get("model_type") in _METRIC or config.get("depth_estimation_type") == "metric"
    return "metric" if metric else "relative"


def _depth(output: Output) -> npt.NDArray[np.float32]:
    depth = np.asarray(output.data[OUTPUT_NAME])
    if depth.ndim != 2 or depth.dtype != np.float32 or not depth.size or not np.isfinite(depth).all():
        raise ProcessorFailed(f"The network answered {depth.dtype} {depth.shape}; expected finite float32 (h, w).")
    return depth


def _numbers(upsampled: Upsampled, scale: Scale) -> npt.NDArray[np.uint16]:
    numbers = np.empty(upsampled.size, dtype=np.uint16)
    top = 0
    for strip in upsampled.strips():
        numbers[top : top + len(strip)] = scale.numbers(strip)
        top += len(strip)
    return numbers


@dataclass(frozen=True, slots=True)
class Upsampled:
    """A map, float32 (h, w), upsampled to `size` (height, width)."""

    small: npt.NDArray[np.float32]
    size: tuple[int, int]

    def strips(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the upsampled map in strips of rows, from the top."""
        rows, columns = (_taps(*sides) for sides in zip(self.size, self.small.shape, strict=True))
        for first in range(0, self.size[0], _ROWS):
            part = slice(first, first + _ROWS)
            narrow = _sum(self.small, rows[0][part], rows[1][part])
            yield np.ascontiguousarray(_sum(narrow.T, *columns).T)

    def whole(self) -> npt.NDArray[np.float32]:
        """Return the whole upsampled map."""
        return np.concatenate(list(self.strips()))


def _taps(wanted: int, given: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Return the four source indices of each target index, and their weights: (wanted, 4) both."""
    at = (np.arange(wanted) + 0.5) * (given / wanted) - 0.5
    first = np.floor(at)
    distance = np.abs((at - first)[:, None] - np.arange(-1, 3))
    a = _SHARPNESS
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    places = np.clip(first[:, None].astype(np.intp) + np.arange(-1, 3), 0, given - 1)
    return places, np.where(distance <= 1, near, far).astype(np.float32)


def _sum(
    values: npt.NDArray[np.float32], places: npt.NDArray[np.intp], weights: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the weighted sums of the rows of `values` at `places`."""
    total = np.zeros((len(places), values.shape[1]), dtype=np.float32)
    for tap in range(places.shape[1]):
        total += values[places[:, tap]] * weights[:, tap, None]
    return total
