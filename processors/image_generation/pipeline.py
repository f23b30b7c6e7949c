"""Configuration of a directory in diffusers' format: `model_index.json` and the configs of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.directory import read_config
from penstock.processors.image_generation.calls import Call, Task, calls_of

INDEX = "model_index.json"

#: Sides in pixels of pipelines whose network names no size: Flux, Qwen-Image and others use it, too.
_USUAL_PX = 1024
#: Channels of a U-Net that takes latents, a mask, and the latents of what stays.
_INPAINTING_CHANNELS = 9
#: Labels of a network that `DiTPipeline` can guide: it always takes the number 1000 for no label.
_LABELS = 1000


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline directory of a supported class."""

    name: str
    #: The library's calls by task.
    calls: Mapping[Task, Call]
    #: Height and width that the network was trained with, in pixels.
    size: tuple[int, int]
    #: Number of pixels that divides the sides of every image.
    factor: int
    #: Maximum number of steps of the scheduler.
    max_steps: int
    #: True if noisy images are pixels, or latents that the VAE decodes as they are.
    previews: bool
    #: Names of the labels by id; may be empty.
    labels: Mapping[int, tuple[str, ...]]
    #: Number of labels.
    label_count: int

    @classmethod
    def of(cls, model: Model) -> Pipeline:
        """Read a model's directory; raise `ModelUnavailable` naming the missing or unsupported part."""
        index = _config(model, INDEX)
        name = index.get("_class_name")
        calls = calls_of(name) if isinstance(name, str) else {}
        if not calls:
            why = "AutoPipeline does not know it, or it needs a further network, image or stage"
            raise _wrong(model, f"{INDEX} has the class {name!r}, which is not supported: {why}")
        present = {part for part, entry in index.items() if isinstance(entry, list) and len(entry) == 2 and entry[1]}
        part = next((part for part in ("transformer", "unet") if part in present), None)
        vae = next((part for part in ("vae", "movq") if part in present), None)
        if part is None or "scheduler" not in present or (vae is None and Task.NOTHING not in calls):
            raise _wrong(model, f"{INDEX} names no transformer or unet, no vae, or no scheduler")
        network = _config(model, f"{part}/config.json")
        if part == "unet" and network.get("in_channels") == _INPAINTING_CHANNELS:
            calls = {task: call for task, call in calls.items() if task is Task.INPAINT}
        decoder = _config(model, f"{vae}/config.json") if vae else {}
        shrinks = _factor(decoder)
        factor = shrinks * (2 if part == "transformer" else 1)  # most transformers join 2 x 2 latents
        sides = _sides(network.get("sample_size"), shrinks)
        if sides is None and not {Task.NOTHING, Task.LABEL}.isdisjoint(calls):
            raise _wrong(model, "the config.json of its network has no `sample_size`")
        label_count = int(network.get("num_embeds_ada_norm") or 0)
        if Task.LABEL in calls and label_count != _LABELS:
            raise _wrong(model, f"its network has {label_count} labels, and {name} takes networks of {_LABELS}")
        height, width = (max(side // factor, 1) * factor for side in sides or (_USUAL_PX, _USUAL_PX))
        return cls(
            str(name),
            calls,
            size=(height, width),
            factor=factor,
            max_steps=_max_steps(_config(model, "scheduler/scheduler_config.json")),
            previews=vae is None or _decodes(decoder, network, index[vae][1]),
            labels=_labels(model, index.get("id2label") or {}),
            label_count=label_count,
        )


def _config(model: Model, name: str) -> Mapping[str, Any]:
    if not (Path(model.source) / name).is_file():
        raise _wrong(model, f"it lacks the file {name}")
    return read_config(model, name)


def _max_steps(scheduler: Mapping[str, Any]) -> int:
    """Return the maximum number of steps of a scheduler; with `leading` spacing its offset reduces the number."""
    offset = scheduler.get("steps_offset", 0) if scheduler.get("timestep_spacing", "leading") == "leading" else 0
    return max(1, int(scheduler.get("num_train_timesteps", 1000)) - int(offset))


def _decodes(vae: Mapping[str, Any], network: Mapping[str, Any], name: str) -> bool:
    """Return True if the VAE decodes what the network reads: some networks join latents in their channels."""
    same = network.get("in_channels", 4) == vae.get("latent_channels", 4)
    return name == "AutoencoderKL" and same and not vae.get("latents_mean")


def _factor(vae: Mapping[str, Any]) -> int:
    """Return the factor by which a VAE shrinks an image: 2 for each of its blocks except the last."""
    names = ("block_out_channels", "encoder_block_out_channels", "dim_mult")
    blocks = next((vae[name] for name in names if vae.get(name)), (0,))
    return int(2 ** (len(blocks) - 1))


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
