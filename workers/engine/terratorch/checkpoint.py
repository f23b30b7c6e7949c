"""The directory of a fine-tune, in one of the two layouts of Prithvi's published ones.

    config.json          {"pretrained_cfg": {"model": {"class_path": "terratorch.tasks.SemanticSegmentationTask",
                          "init_args": {"model_factory": "EncoderDecoderFactory", "model_args": {...}}}}}
    NAME.yaml            or the file that TerraTorch's command line was trained with: `model`, as above
    model.safetensors    or one file of torch's own (`.pt`, `.ckpt`), from which tensors alone are read

vLLM reads the first layout, too. The parts on data and training are not read: the catalogue's record names the bands.
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
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from penstock.errors import ModelUnavailable, first_line
from penstock.models import Model
from penstock.workers.engine.sources import directory_of
from penstock.workers.engine.transformers.directory import read_object

CONFIG, SAFETENSORS = "config.json", "model.safetensors"
#: Configs of TerraTorch's command line.
YAML = ("*.yaml", "*.yml")
#: Files in torch's own format, which may hold other objects than tensors.
_PICKLES = ("*.pt", "*.ckpt")

Task = Literal["segmentation", "regression"]

#: Tasks by the names of TerraTorch's classes; below, each task's processor and the option with its channels.
_TASKS: Mapping[str, Task] = MappingProxyType(
    {"SemanticSegmentationTask": "segmentation", "PixelwiseRegressionTask": "regression"}
)
_SERVED: Mapping[Task, tuple[str, str]] = MappingProxyType(
    {"segmentation": ("raster-segmentation", "classes"), "regression": ("raster-regression", "quantities")}
)
FACTORIES = ("EncoderDecoderFactory", "PrithviModelFactory")

#: A class by its Python path, which TerraTorch would import and call, as in `final_act`.
_PYTHON_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_LAYER = re.compile(r"torch\.nn\.(modules\.[a-z_]+\.)?[A-Z]\w*")


@dataclass(frozen=True, slots=True)
class Recipe:
    """TerraTorch's arguments for building a network."""

    task: Task
    factory: str
    #: Arguments of the factory, from the config.
    args: Mapping[str, Any]
    #: The file's name, for errors.
    file: str = CONFIG

    @property
    def channels(self) -> int | None:
        """The number of channels of the answer, if the config has it."""
        if self.task == "segmentation":
            return self._number("num_classes")
        return self._number("num_outputs") or 1

    @property
    def bands(self) -> int | None:
        """The number of bands of each date, if the config has it."""
        bands = self._of_backbone("bands") or self.args.get("bands")
        return len(bands) if isinstance(bands, list) else None

    @property
    def dates(self) -> int:
        """The number of dates."""
        frames = self._of_backbone("num_frames") or self.args.get("num_frames") or 1
        return frames if isinstance(frames, int) else 1

    @property
    def stacks_dates(self) -> bool:
        """True if dates have an axis of their own, even for a single date."""
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
        """Check a model's directory and record; raise `ModelUnavailable` for a missing file or a mismatch."""
        path = directory_of(model)
        recipe = _find_recipe(path)
        _check_record(model, recipe)
        return cls(model, recipe, _find_weights(model, path))

    def tensors(self) -> dict[str, Tensor]:
        """Return the network's weights by name; raise `ModelUnavailable` for a file that is not readable or not safe.

        Position embeddings are left out: TerraTorch computes them from sizes.
        """
        return dict(_of_network(_read(self.weights)))


def _find_recipe(path: Path) -> Recipe:
    """Return the recipe of a directory: that of `config.json`, or else of the only YAML file that has a model."""
    config = read_object(path / CONFIG) if (path / CONFIG).is_file() else {}
    if not _is_recipe(config.get("pretrained_cfg", config)):
        files = sorted(file for pattern in YAML for file in path.glob(pattern))
        found = {file.name: read for file in files if _is_recipe(read := _read_yaml(file))}
        if len(found) > 1:
            raise ModelUnavailable(f"several of its files are configs of a network: {', '.join(found)}")
        for name, read in found.items():
            return read_recipe(read, name)
        if not files:
            config = read_object(path / CONFIG)  # names the missing file
    return read_recipe(config)


def _read_yaml(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ModelUnavailable(f"{file.name} is not plain YAML: {first_line(error)}") from error


def _is_recipe(config: Any) -> bool:
    return isinstance(config, dict) and isinstance(config.get("model"), dict)


def read_recipe(config: Mapping[str, Any], file: str = CONFIG) -> Recipe:
    """Return the recipe in the config of a file; raise `ModelUnavailable` if it is missing or names code."""
    published = config.get("pretrained_cfg", config)
    model = published.get("model") if isinstance(published, dict) else None
    settings = model.get("init_args") if isinstance(model, dict) else None
    args = settings.get("model_args") if isinstance(settings, dict) else None
    if not isinstance(model, dict) or not isinstance(settings, dict) or not isinstance(args, dict):
        raise ModelUnavailable(_no_recipe(config, file))
    name = str(model.get("class_path")).rpartition(".")[2]
    if name not in _TASKS:
        raise ModelUnavailable(f"{file} names the task {name}; known tasks: {', '.join(_TASKS)}")
    factory = str(settings.get("model_factory", FACTORIES[0]))
    if factory not in FACTORIES:
        raise ModelUnavailable(f"{file} names the factory {factory}; known factories: {', '.join(FACTORIES)}")
    for key, value in args.items():
        if key != "backbone":
            _refuse_code(key, value, file)
    return Recipe(_TASKS[name], factory, args, file)


def _no_recipe(config: Mapping[str, Any], file: str) -> str:
    if "architecture" in config:
        return (
            f"{file} is of the backbone {config['architecture']} alone, which has no output for a scene: "
            "fine-tune it with TerraTorch, and serve the fine-tune"
        )
    where = "pretrained_cfg.model" if file == CONFIG else "model"
    return f"{file} has no {where}.init_args.model_args, the arguments of the network"


def _refuse_code(key: str, value: Any, file: str) -> None:
    """Raise `ModelUnavailable` for a class that is not a layer of torch: building the network would call it."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in values:
        _refuse_code(key, part, file)
    if isinstance(value, str) and _PYTHON_PATH.fullmatch(value) and not _LAYER.fullmatch(value):
        raise ModelUnavailable(f"{file} names the Python object {value} in {key}: only layers of torch.nn are allowed")


def _check_record(model: Model, recipe: Recipe) -> None:
    """Compare the catalogue's record with the config of the network; raise `ModelUnavailable`."""
    processor, named = _SERVED[recipe.task]
    if model.processor in dict(_SERVED.values()) and model.processor != processor:
        raise ModelUnavailable(f"{recipe.file} is of a {recipe.task}, which the processor {processor} serves")
    said = {
        named: (_length(model.options.get(named)), recipe.channels),
        "bands": (_length(model.options.get("bands")), recipe.bands),
        "dates": (model.options.get("dates", 1), recipe.dates),
    }
    for name, (ours, theirs) in said.items():
        if ours and theirs and ours != theirs:
            raise ModelUnavailable(f"{recipe.file} is of a network of {theirs} {name}, options.{name} are {ours}")


def _length(listed: Any) -> int:
    """Return the length of a list; 0 for any other value, which the processor rejects."""
    return len(listed) if isinstance(listed, list | tuple) else 0


def _find_weights(model: Model, path: Path) -> Path:
    """Return the file of weights: safetensors first, then torch's own format; of several files the one with a hash."""
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
    except Exception as error:  # a damaged archive raises errors of any type
        raise ModelUnavailable(f"{path.name} cannot be read ({type(error).__name__})") from error
    weights = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(weights, Mapping):
        raise ModelUnavailable(f"{path.name} has no weights by name")
    return weights


def _of_network(weights: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the network's weights. A training checkpoint names them `model.*` and also holds weights of losses."""
    of_training = any(name.startswith("model.") for name in weights)
    for name, tensor in weights.items():
        if of_training and not name.startswith("model."):
            continue
        # Checkpoints of TerraTorch before 1.0 wrap the backbone.
        inner = name.removeprefix("model.").replace("_timm_module.", "")
        if isinstance(tensor, Tensor) and is_needed(inner):
            yield inner, tensor


def is_needed(name: str) -> bool:
    """Return True for a weight that inference needs: positions are computed, and auxiliary heads serve training."""
    return "pos_embed" not in name and not name.startswith("aux_heads.")
