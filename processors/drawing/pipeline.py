"""What a directory in diffusers' format says beside its weights: `model_index.json` and the configs of its parts."""

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

INDEX = "model_index.json"

#: Those whose images were compared with the library's own pipelines.
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


class Told(StrEnum):
    """What a network is told of the image that it is to make."""

    TEXT = "text"
    LABEL = "label"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of pipelines."""

    told: Told
    #: The part that predicts the noise.
    network: str
    #: The classes that each part may have.
    parts: Mapping[str, tuple[str, ...]]
    #: What people ask for who do not say: the library's own.
    steps: int
    guidance_scale: float = 1.0


_VAE, _SCHEDULER = ("AutoencoderKL",), SCHEDULERS

#: By the `_class_name` of `model_index.json`.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "StableDiffusionPipeline": Kind(
            Told.TEXT,
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
        "DDPMPipeline": Kind(Told.NOTHING, "unet", {"unet": ("UNet2DModel",), "scheduler": _SCHEDULER}, steps=1000),
        "DDIMPipeline": Kind(Told.NOTHING, "unet", {"unet": ("UNet2DModel",), "scheduler": _SCHEDULER}, steps=50),
        "DiTPipeline": Kind(
            Told.LABEL,
            "transformer",
            # The published ones were saved before the class had a name of its own.
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
    """A directory of a kind that is known."""

    name: str
    kind: Kind
    #: The class of each part.
    classes: Mapping[str, str]
    #: Height and width that the network was trained with, in pixels.
    size: tuple[int, int]
    #: How many pixels a number of the network's image is wide: 8 for most Stable Diffusions, 1 without a VAE.
    factor: int
    #: Into how many steps the scheduler can cut the way at most.
    max_steps: int
    #: The labels' names by id, where it has any.
    labels: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    #: How many labels there are.
    label_count: int = 0

    @property
    def sized(self) -> bool:
        """Whether the network makes images of other sizes too."""
        return self.kind.told is Told.TEXT

    @classmethod
    def of(cls, model: Model) -> Pipeline:
        """Read a model's directory; raise `ModelUnavailable` naming what is missing or not known here."""
        index = _config(model, INDEX)
        name = index.get("_class_name")
        if not isinstance(name, str) or name not in KINDS:
            raise _wrong(model, f"{INDEX} has the class {name!r}; this runner knows: {', '.join(KINDS)}")
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
        )


def _config(model: Model, name: str) -> Mapping[str, Any]:
    if not (Path(model.source) / name).is_file():
        raise _wrong(model, f"it lacks the file {name}")
    return read_config(model, name)


def _class(model: Model, index: Mapping[str, Any], part: str, known: tuple[str, ...]) -> str:
    said = index.get(part)
    name = said[1] if isinstance(said, list) and len(said) == 2 else None
    if name not in known:
        what = "no class" if name is None else f"the class {name!r}"
        raise _wrong(model, f"{INDEX} gives {part!r} {what}; this runner knows: {', '.join(known)}")
    return str(name)


def _max_steps(scheduler: Mapping[str, Any]) -> int:
    """Return how many steps a scheduler has numbers for: with `leading` spacing its offset is added to the last one."""
    offset = scheduler.get("steps_offset", 0) if scheduler.get("timestep_spacing", "leading") == "leading" else 0
    return max(1, int(scheduler.get("num_train_timesteps", 1000)) - int(offset))


def _factor(vae: Mapping[str, Any]) -> int:
    """Return by how much a VAE shrinks an image: by 2 with each of its blocks but the last."""
    return int(2 ** (len(vae.get("block_out_channels") or (0,)) - 1))


def _size(model: Model, said: Any, factor: int) -> tuple[int, int]:
    sides = [said, said] if isinstance(said, int) else said
    if not isinstance(sides, list) or len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise _wrong(model, "the config.json of its network has no `sample_size`")
    return sides[0] * factor, sides[1] * factor


def _labels(model: Model, said: Any) -> Mapping[int, tuple[str, ...]]:
    try:
        return {int(number): tuple(part.strip() for part in names.split(",")) for number, names in said.items()}
    except (AttributeError, ValueError) as error:
        raise _wrong(model, f"id2label of {INDEX} is not usable") from error


def _wrong(model: Model, why: str) -> ModelUnavailable:
    return ModelUnavailable(f"model {model.name!r} cannot be loaded: {why}")
