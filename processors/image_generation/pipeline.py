"""Configuration of a directory in diffusers' format: `model_index.json` and the configs of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.directory import read_config
from penstock.processors.image_generation.calls import Call, Task, calls_of

INDEX = "model_index.json"

#: Supported schedulers: tests compare their images with the library's own pipelines.
SCHEDULERS = (
    "DDIMScheduler",
    "DDPMScheduler",
    "DPMSolverMultistepScheduler",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
)
#: Sides in pixels of pipelines whose network names no size: Flux, Qwen-Image and others use it, too.
_USUAL_PX = 1024
#: Channels of a U-Net that takes latents, a mask, and the latents of what stays.
_INPAINTING_CHANNELS = 9


class Conditioning(StrEnum):
    """The conditioning of a network: its input that describes the wanted image."""

    TEXT = "text"
    LABEL = "label"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class PipelineKind:
    """A supported class of pipelines."""

    conditioning: Conditioning
    #: Name of the part that predicts the noise.
    network: str
    #: The supported classes of each part.
    parts: Mapping[str, tuple[str, ...]]
    #: Default steps and guidance scale: the library's own.
    steps: int
    guidance_scale: float = 1.0


_VAE, _SCHEDULER = ("AutoencoderKL",), SCHEDULERS
_UNET_ALONE = {"unet": ("UNet2DModel",), "scheduler": _SCHEDULER}

#: Supported pipelines by the `_class_name` of `model_index.json`.
KINDS: Mapping[str, PipelineKind] = MappingProxyType(
    {
        "StableDiffusionPipeline": PipelineKind(
            Conditioning.TEXT,
            "unet",
            {
                "unet": ("UNet2DConditionModel",),
                "vae": _VAE,
                "text_encoder": ("CLIPTextModel",),
                "tokenizer": ("CLIPTokenizer", "CLIPTokenizerFast"),
                "scheduler": _SCHEDULER,
            },
            steps=50,
            guidance_scale=7.5,
        ),
        "DDPMPipeline": PipelineKind(Conditioning.NOTHING, "unet", _UNET_ALONE, steps=1000),
        "DDIMPipeline": PipelineKind(Conditioning.NOTHING, "unet", _UNET_ALONE, steps=50),
        "DiTPipeline": PipelineKind(
            Conditioning.LABEL,
            "transformer",
            # Published models were saved under the class's older name.
            {
                "transformer": ("DiTTransformer2DModel", "Transformer2DModel"),
                "vae": _VAE,
                "scheduler": _SCHEDULER,
            },
            steps=50,
            guidance_scale=4.0,
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline directory of a supported kind."""

    name: str
    kind: PipelineKind
    #: The class of each part.
    classes: Mapping[str, str]
    #: Height and width that the network was trained with, in pixels.
    size: tuple[int, int]
    #: Pixels per latent, along each side: 8 for most Stable Diffusion models, 1 without a VAE.
    factor: int
    #: Maximum number of steps of the scheduler.
    max_steps: int
    #: Names of the labels by id; may be empty.
    labels: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    #: Number of labels.
    label_count: int = 0
    #: The library's calls by task. Text to image of the kinds in `KINDS` has steps of our own instead.
    calls: Mapping[Task, Call] = field(default_factory=dict)

    @property
    def stepped(self) -> bool:
        """True if our own steps make an image of a text, a label or nothing; False if the library's call does."""
        return self.name in KINDS

    @property
    def sized(self) -> bool:
        """True if the network makes images of other sizes too."""
        return self.kind.conditioning is Conditioning.TEXT

    @classmethod
    def of(cls, model: Model) -> Pipeline:
        """Read a model's directory; raise `ModelUnavailable` naming the missing or unsupported part."""
        index = _config(model, INDEX)
        name = index.get("_class_name")
        if not isinstance(name, str) or (name not in KINDS and not calls_of(name)):
            why = "AutoPipeline does not know it, or it needs a further network, image or stage"
            raise _wrong(model, f"{INDEX} has the class {name!r}, which is not supported: {why}")
        if name not in KINDS:
            return _called(model, name, index)
        kind = KINDS[name]
        classes = {part: _class(model, index, part, known) for part, known in kind.parts.items()}
        network = _config(model, f"{kind.network}/config.json")
        factor = _factor(_config(model, "vae/config.json")) if "vae" in kind.parts else 1
        return cls(
            name,
            kind,
            MappingProxyType(classes),
            size=_size(model, network.get("sample_size"), factor),
            factor=factor,
            max_steps=_max_steps(_config(model, "scheduler/scheduler_config.json")),
            labels=_labels(model, index.get("id2label") or {}),
            label_count=int(network.get("num_embeds_ada_norm") or 0),
            calls={task: call for task, call in calls_of(name).items() if task is not Task.TEXT},
        )


def _called(model: Model, name: str, index: Mapping[str, Any]) -> Pipeline:
    """Return a pipeline that the library's call runs."""
    classes = {part: entry[1] for part, entry in index.items() if isinstance(entry, list) and len(entry) == 2}
    present = {part: found for part, found in classes.items() if isinstance(found, str)}
    part = next((part for part in ("transformer", "unet") if part in present), None)
    vae = next((part for part in ("vae", "movq") if part in present), None)
    if part is None or vae is None or "scheduler" not in present:
        raise _wrong(model, f"{INDEX} names no transformer or unet, no vae, or no scheduler")
    network, calls = _config(model, f"{part}/config.json"), calls_of(name)
    if part == "unet" and network.get("in_channels") == _INPAINTING_CHANNELS:
        calls = {task: call for task, call in calls.items() if task is Task.INPAINT}
    shrinks = _factor(_config(model, f"{vae}/config.json"))
    factor = shrinks * (2 if part == "transformer" else 1)  # most transformers join 2 x 2 latents
    first = next(iter(calls.values()))
    usual, scale = first.default("steps") or 50, first.default("guidance_scale") or 1.0
    sides = _sides(network.get("sample_size"), shrinks) or (_USUAL_PX, _USUAL_PX)
    return Pipeline(
        name,
        PipelineKind(Conditioning.TEXT, part, {}, steps=int(usual), guidance_scale=scale),
        MappingProxyType(present),
        size=(max(sides[0] // factor, 1) * factor, max(sides[1] // factor, 1) * factor),
        factor=factor,
        max_steps=_max_steps(_config(model, "scheduler/scheduler_config.json")),
        calls=calls,
    )


def _config(model: Model, name: str) -> Mapping[str, Any]:
    if not (Path(model.source) / name).is_file():
        raise _wrong(model, f"it lacks the file {name}")
    return read_config(model, name)


def _class(model: Model, index: Mapping[str, Any], part: str, known: tuple[str, ...]) -> str:
    entry = index.get(part)
    name = entry[1] if isinstance(entry, list) and len(entry) == 2 else None
    if name not in known:
        what = "no class" if name is None else f"the class {name!r}"
        raise _wrong(model, f"{INDEX} gives {part!r} {what}; supported classes: {', '.join(known)}")
    return str(name)


def _max_steps(scheduler: Mapping[str, Any]) -> int:
    """Return the maximum number of steps of a scheduler; with `leading` spacing its offset reduces the number."""
    offset = scheduler.get("steps_offset", 0) if scheduler.get("timestep_spacing", "leading") == "leading" else 0
    return max(1, int(scheduler.get("num_train_timesteps", 1000)) - int(offset))


def _factor(vae: Mapping[str, Any]) -> int:
    """Return the factor by which a VAE shrinks an image: 2 for each of its blocks except the last."""
    names = ("block_out_channels", "encoder_block_out_channels", "dim_mult")
    blocks = next((vae[name] for name in names if vae.get(name)), (0,))
    return int(2 ** (len(blocks) - 1))


def _size(model: Model, sizes: Any, factor: int) -> tuple[int, int]:
    found = _sides(sizes, factor)
    if found is None:
        raise _wrong(model, "the config.json of its network has no `sample_size`")
    return found


def _sides(sizes: Any, factor: int) -> tuple[int, int] | None:
    sides = [sizes, sizes] if isinstance(sizes, int) else sizes
    if not isinstance(sides, list) or len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        return None
    return sides[0] * factor, sides[1] * factor


def _labels(model: Model, id2label: Any) -> Mapping[int, tuple[str, ...]]:
    try:
        return {int(number): tuple(part.strip() for part in names.split(",")) for number, names in id2label.items()}
    except (AttributeError, ValueError) as error:
        raise _wrong(model, f"id2label of {INDEX} is not usable") from error


def _wrong(model: Model, why: str) -> ModelUnavailable:
    return ModelUnavailable(f"model {model.name!r} cannot be loaded: {why}")
