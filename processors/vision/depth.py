"""The depth estimation processor: a photograph in, how far away everything in it is out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, ModelUnavailable, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Result, final_outputs
from penstock.processors.directory import check_options, read_config
from penstock.processors.outputs import OUTPUTS, Indexed
from penstock.processors.vision.enlarge import Enlarged
from penstock.processors.vision.prompts import one_prompt, write_dummy
from penstock.processors.vision.recipe import read_recipe
from penstock.processors.vision.request import DepthEstimationRequest

#: The network's output: float32 (h, w), at its own resolution.
OUTPUT_NAME = "depth"
#: What the depths of a model are: metres from the camera, or numbers without a unit that are larger nearby.
KINDS = ("metric", "relative")
#: Model types that answer in metres, whatever they were trained on.
_METRIC = frozenset({"glpn", "zoedepth", "prompt_depth_anything"})
_MILLIMETRE = 0.001
_STEPS = 65_535
_PREVIEW_PX = 1024
#: From far to near: matplotlib's inferno (CC0), sampled.
_RAMP = ("#000004", "#420a68", "#932667", "#dd513a", "#fca50a", "#fcffa4")


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    outputs: tuple[str, ...]
    #: The picture's (height, width).
    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Scale:
    """How depths are numbers of 16 bits: depth = offset + scale x number."""

    offset: float
    scale: float

    @classmethod
    def of(cls, low: float, high: float, *, metric: bool) -> Scale:
        """Return millimetres for metres that fit, else what makes the most of the range."""
        if metric and low >= 0 and high <= _STEPS * _MILLIMETRE:
            return cls(0.0, _MILLIMETRE)
        return cls(low, (high - low) / _STEPS)

    def numbers(self, depth: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
        """Return depths as numbers."""
        shares = (depth - self.offset) / (self.scale or 1)
        return np.asarray(np.clip(np.rint(shares), 0, _STEPS), dtype=np.uint16)


class DepthEstimation:
    """Estimates the depth of a photograph at its own size."""

    request = DepthEstimationRequest
    outputs = (
        OUTPUTS.spec("depth", "depth.png: 16-bit grey; depth.json says what its numbers mean", kind="png"),
        OUTPUTS.spec("preview", "preview.png: lighter is nearer; its longer side has at most 1024 pixels", kind="png"),
        OUTPUTS.spec(
            "values", "values.safetensors: `depth`, float32 (height, width)", kind="safetensors", default=False
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "depth", "preprocessor")
        self._recipe = read_recipe(model)
        self._metric = _kind(model) == "metric"
        if self._recipe.crops or self._recipe.pads:
            raise ModelUnavailable(f"model {model.name!r}: its preprocessor crops or pads: a depth map would not fit")

    def pre_process(self, request: DepthEstimationRequest, media: Media) -> Prepared[Context]:
        """Return the one prompt."""
        picture, prompt = one_prompt(media.path(request.image), self._recipe, self._model.limits)
        context = Context(request.outputs, (picture.shape[0], picture.shape[1]))
        return Prepared(iter([prompt]), 1, prompt.cost, context, unit="images")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return `{"width", "height", "kind", "unit", "nearer", "min", "max", "png": {"offset", "scale"}}`."""
        enlarged = Enlarged(_depth(list(final_outputs(outputs))), context.size)
        ends = [(float(strip.min()), float(strip.max())) for strip in enlarged.strips()]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        scale = Scale.of(low, high, metric=self._metric)
        told = self._told(context.size, low, high, scale)
        if "depth" in context.outputs:
            OUTPUTS.put(sink, "depth", _numbers(enlarged, scale), kind="png")
            OUTPUTS.put(sink, "depth", told, kind="json")
        if "preview" in context.outputs:
            OUTPUTS.put(sink, "preview", self._preview(enlarged, low, high), kind="png")
        if "values" in context.outputs:
            OUTPUTS.put(sink, "values", {"depth": enlarged.whole()}, kind="safetensors")
        return Result(data=told)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a picture of ordinary size."""
        return Dummy({"image": "media://dummy"}, {"media://dummy": write_dummy(folder, limits)})

    def _told(self, size: tuple[int, int], low: float, high: float, scale: Scale) -> Mapping[str, Any]:
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

    def _preview(self, enlarged: Enlarged, low: float, high: float) -> Indexed:
        shrink = min(1.0, _PREVIEW_PX / max(enlarged.size))
        height, width = (max(1, round(side * shrink)) for side in enlarged.size)
        depth = Enlarged(enlarged.small, (height, width)).whole()
        nearness = np.clip((depth - low) / ((high - low) or 1), 0, 1)
        steps = np.rint((1 - nearness if self._metric else nearness) * 255).astype(np.uint8)
        anchors = np.array([tuple(bytes.fromhex(colour[1:])) for colour in _RAMP])
        at = np.linspace(0, len(_RAMP) - 1, 256)
        ramp = np.rint(np.stack([np.interp(at, range(len(_RAMP)), anchors[:, i]) for i in range(3)], axis=1))
        return Indexed(steps, [(int(r), int(g), int(b)) for r, g, b in ramp])


def _kind(model: Model) -> str:
    """Return what the option `depth` says, else what `config.json` does: most such models tell near from far alone."""
    said = model.options.get("depth")
    if said is not None:
        if said not in KINDS:
            raise ConfigError(f"model {model.name!r}: options.depth is one of {', '.join(KINDS)}, not {said!r}")
        return str(said)
    config = read_config(model)
    metric = config.get("model_type") in _METRIC or config.get("depth_estimation_type") == "metric"
    return "metric" if metric else "relative"


def _depth(outputs: list[Output]) -> npt.NDArray[np.float32]:
    if len(outputs) != 1:
        raise ProcessorFailed(f"The engine answered {len(outputs)} times; expected once.")
    depth = np.asarray(outputs[0].data[OUTPUT_NAME])
    if depth.ndim != 2 or depth.dtype != np.float32 or not depth.size or not np.isfinite(depth).all():
        raise ProcessorFailed(f"The network answered {depth.dtype} {depth.shape}; expected finite float32 (h, w).")
    return depth


def _numbers(enlarged: Enlarged, scale: Scale) -> npt.NDArray[np.uint16]:
    numbers = np.empty(enlarged.size, dtype=np.uint16)
    top = 0
    for strip in enlarged.strips():
        numbers[top : top + len(strip)] = scale.numbers(strip)
        top += len(strip)
    return numbers
