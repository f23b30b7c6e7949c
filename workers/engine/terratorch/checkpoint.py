"""A fine-tune's directory as Prithvi's are published, and as vLLM serves them: `config.json` and the weights.

    config.json          {"pretrained_cfg": {"model": {"class_path": "terratorch.tasks.SemanticSegmentationTask",
                          "init_args": {"model_factory": "EncoderDecoderFactory", "model_args": {...}}}}}
    model.safetensors    or one file of torch's own (`.pt`, `.ckpt`), of which nothing but tensors is read

What the config says of data and training is not read: the catalogue's record says what the bands are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from types import MappingProxyType
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.workers.engine.sources import directory_of
from penstock.workers.engine.transformers.directory import read_object

SAFETENSORS = "model.safetensors"
#: In which files torch saves tensors and, when it may, anything else.
_PICKLES = ("*.pt", "*.ckpt")

Task = Literal["segmentation", "regression"]

#: What each of TerraTorch's tasks is here: the processor that serves it, and the records' list of its channels.
_TASKS: Mapping[str, Task] = MappingProxyType(
    {"SemanticSegmentationTask": "segmentation", "PixelwiseRegressionTask": "regression"}
)
_SERVED: Mapping[Task, tuple[str, str]] = MappingProxyType(
    {"segmentation": ("raster-segmentation", "classes"), "regression": ("raster-regression", "quantities")}
)
FACTORIES = ("EncoderDecoderFactory", "PrithviModelFactory")

#: A class by its path in Python, which TerraTorch would import and call: `final_act`, for one.
_PYTHON_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_LAYER = re.compile(r"torch\.nn\.(modules\.[a-z_]+\.)?[A-Z]\w*")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How TerraTorch builds a network."""

    task: Task
    factory: str
    #: What its factory takes, as it stands in the config.
    args: Mapping[str, Any]

    @property
    def channels(self) -> int | None:
        """How many channels its answer has, if the config says it."""
        if self.task == "segmentation":
            return self._number("num_classes")
        return self._number("num_outputs") or 1

    @property
    def bands(self) -> int | None:
        """How many bands of each date it takes, if the config says it."""
        bands = self._of_backbone("bands") or self.args.get("bands")
        return len(bands) if isinstance(bands, list) else None

    @property
    def dates(self) -> int:
        """How many dates it takes."""
        frames = self._of_backbone("num_frames") or self.args.get("num_frames") or 1
        return frames if isinstance(frames, int) else 1

    @property
    def stacks_dates(self) -> bool:
        """Whether it takes dates on an axis of their own even where there is one."""
        return self.dates > 1 or bool(self._of_backbone("use_temporal"))

    def _number(self, name: str) -> int | None:
        value = self.args.get(name)
        return value if isinstance(value, int) else None

    def _of_backbone(self, name: str) -> Any:
        kwargs = self.args.get("backbone_kwargs")
        return kwargs.get(name) if isinstance(kwargs, dict) else self.args.get(f"backbone_{name}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory with everything that a network needs."""

    model: Model
    recipe: Recipe
    weights: Path

    @classmethod
    def of(cls, model: Model) -> Checkpoint:
        """Look at a model's directory and record; raise `ModelUnavailable` naming what is missing or does not fit."""
        path = directory_of(model)
        recipe = read_recipe(read_object(path / "config.json"))
        _check_record(model, recipe)
        return cls(model, recipe, _find_weights(model, path))

    def tensors(self) -> dict[str, Tensor]:
        """Return the network's weights by their names in it; raise `ModelUnavailable` for a file that is none of ours.

        Positions are left out: they follow from sizes, and TerraTorch computes them anew.
        """
        return dict(_of_network(_read(self.weights)))


def read_recipe(config: Mapping[str, Any]) -> Recipe:
    """Return what a `config.json` says of the network; raise `ModelUnavailable` where it does not, or says too much."""
    published = config.get("pretrained_cfg", config)
    model = published.get("model") if isinstance(published, dict) else None
    settings = model.get("init_args") if isinstance(model, dict) else None
    args = settings.get("model_args") if isinstance(settings, dict) else None
    if not isinstance(model, dict) or not isinstance(settings, dict) or not isinstance(args, dict):
        raise ModelUnavailable(_no_recipe(config))
    name = str(model.get("class_path")).rpartition(".")[2]
    if name not in _TASKS:
        raise ModelUnavailable(f"config.json names the task {name}; these are served: {', '.join(_TASKS)}")
    factory = str(settings.get("model_factory", FACTORIES[0]))
    if factory not in FACTORIES:
        raise ModelUnavailable(f"config.json names the factory {factory}; these are known: {', '.join(FACTORIES)}")
    for key, value in args.items():
        if key != "backbone":
            _refuse_code(key, value)
    return Recipe(_TASKS[name], factory, args)


def _no_recipe(config: Mapping[str, Any]) -> str:
    if "architecture" in config:
        return (
            f"config.json is of the backbone {config['architecture']} alone, which answers nothing about a scene: "
            "fine-tune it with TerraTorch, and serve what comes of that"
        )
    return "config.json has no pretrained_cfg.model.init_args.model_args, which say how TerraTorch builds the network"


def _refuse_code(key: str, value: Any) -> None:
    """Raise `ModelUnavailable` for a class of anything but torch's layers: building the network would call it."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in values:
        _refuse_code(key, part)
    if isinstance(value, str) and _PYTHON_PATH.fullmatch(value) and not _LAYER.fullmatch(value):
        raise ModelUnavailable(
            f"config.json names the Python object {value} in {key}: nothing but layers of torch.nn is taken"
        )


def _check_record(model: Model, recipe: Recipe) -> None:
    """Compare what the catalogue's record says of a network with what its config does."""
    processor, named = _SERVED[recipe.task]
    if model.processor in dict(_SERVED.values()) and model.processor != processor:
        raise ModelUnavailable(f"config.json is of a {recipe.task}, which the processor {processor} serves")
    said = {
        named: (_length(model.options.get(named)), recipe.channels),
        "bands": (_length(model.options.get("bands")), recipe.bands),
        "dates": (model.options.get("dates", 1), recipe.dates),
    }
    for name, (ours, theirs) in said.items():
        if ours and theirs and ours != theirs:
            raise ModelUnavailable(f"config.json is of a network of {theirs} {name}, options.{name} are {ours}")


def _length(listed: Any) -> int:
    """Return how many there are; 0 for what is no list, which the processor refuses."""
    return len(listed) if isinstance(listed, list | tuple) else 0


def _find_weights(model: Model, path: Path) -> Path:
    """Return the file of weights: safetensors before what torch pickles, and of several that which has a hash."""
    if (path / SAFETENSORS).is_file():
        return path / SAFETENSORS
    found = sorted(file for pattern in _PICKLES for file in path.glob(pattern))
    chosen = [file for file in found if file.name in model.files] if len(found) > 1 else found
    if not found:
        raise ModelUnavailable(f"it lacks the weights: {SAFETENSORS}, or a file {' or '.join(_PICKLES)}")
    if len(chosen) != 1:
        names = ", ".join(file.name for file in found)
        raise ModelUnavailable(f"it has several files of weights ({names}): give the right one's sha256 in `files`")
    return chosen[0]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.name == SAFETENSORS:
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise ModelUnavailable(f"{path.name} is damaged: {error}") from error
    except UnpicklingError as error:
        raise ModelUnavailable(
            f"{path.name} holds more than tensors, or is damaged. The rest could run code and is not read: save the "
            f"network's weights as {SAFETENSORS}, or its state_dict alone"
        ) from error
    except Exception as error:  # whatever a damaged archive makes of itself
        raise ModelUnavailable(f"{path.name} cannot be read ({type(error).__name__})") from error
    weights = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(weights, Mapping):
        raise ModelUnavailable(f"{path.name} has no weights by name")
    return weights


def _of_network(weights: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield what belongs to the network. A training's checkpoint calls it `model`, and has its losses beside it."""
    of_training = any(name.startswith("model.") for name in weights)
    for name, tensor in weights.items():
        if of_training and not name.startswith("model."):
            continue
        # Checkpoints of TerraTorch before 1.0 wrap the backbone.
        inner = name.removeprefix("model.").replace("_timm_module.", "")
        if isinstance(tensor, Tensor) and is_needed(inner):
            yield inner, tensor


def is_needed(name: str) -> bool:
    """Return whether a weight is of use: positions are computed, and heads beside the main one serve training only."""
    return "pos_embed" not in name and not name.startswith("aux_heads.")
