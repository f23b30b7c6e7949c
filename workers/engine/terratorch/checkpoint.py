"""The directory of a fine-tune or a backbone, in one of the layouts of the published ones.

    config.json          {"pretrained_cfg": {"model": {"class_path": "terratorch.tasks.SemanticSegmentationTask",
                          "init_args": {"model_factory": "EncoderDecoderFactory", "model_args": {...}}}}}
                         or, for a backbone, {"architecture": "prithvi_eo_v2_300"}
    NAME.yaml            or the file that TerraTorch's command line was trained with: `model`, as above
    model.safetensors    or one file of torch's own (`.pt`, `.pth`, `.ckpt`), from which tensors alone are read

vLLM reads the first layout, too. The parts on data and training are not read: the catalogue's record names the bands.
A record with `options.terratorch`, the arguments of the network, needs no config, and its source may be one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import safe_globals

from penstock.errors import ModelUnavailable, first_line
from penstock.models import Model
from penstock.workers.engine.sensors import in_words, length_of, sensors_of
from penstock.workers.engine.sources import directory_of, verify
from penstock.workers.engine.terratorch import mmsegmentation
from penstock.workers.engine.terratorch.clay import Clay
from penstock.workers.engine.terratorch.recipe import CONFIG, FACTORIES, Recipe, Task, read_recipe, recipe_of
from penstock.workers.engine.transformers.directory import read_object

SAFETENSORS = "model.safetensors"
#: Configs of TerraTorch's command line.
YAML = ("*.yaml", "*.yml")
#: Files in torch's own format, which may hold other objects than tensors.
_PICKLES = ("*.pt", "*.pth", "*.ckpt")
#: Function that makes a number of its type and bytes.
_SCALAR: Any = np.float64(0).__reduce__()[0]
#: Numbers of numpy, which MMSegmentation keeps beside the weights (a score): values, by their name in older files, too.
_NUMBERS: Any = (
    np.dtype, *{type(np.dtype(name)) for name in ("f4", "f8", "i4", "i8")},
    (_SCALAR, "numpy.core.multiarray.scalar"), _SCALAR,
)  # fmt: skip
#: A vector of each patch, or one of the tile.
POOLINGS = ("patches", "mean", "max", "min", "cls")
#: Each task's processor, and the option with its channels.
_SERVED: Mapping[Task, tuple[str, str]] = MappingProxyType(
    {
        "segmentation": ("raster-segmentation", "classes"),
        "regression": ("raster-regression", "quantities"),
        "embedding_generation": ("raster-embedding", "dimensions"),
    }
)
_WORDS: Mapping[Task, str] = MappingProxyType(
    {
        "segmentation": "a segmentation",
        "regression": "a regression",
        "embedding_generation": "a backbone without a head",
    }
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory with everything that a network needs."""

    model: Model
    recipe: Recipe
    weights: Path

    @classmethod
    def of(cls, model: Model) -> Checkpoint:
        """Check a model's directory and record; raise `ModelUnavailable` for a missing file or a mismatch."""
        path = Path(model.source)
        if path.is_file():
            verify(model)
        else:
            path = directory_of(model)
        recipe = _recipe(model, path)
        _check_record(model, recipe)
        return cls(model, recipe, _find_weights(model, path))

    def tensors(self, device: str = "cpu") -> dict[str, Tensor]:
        """Return the network's weights by name; raise `ModelUnavailable` for a file that is not readable or not safe.

        On the device `meta` they have their shapes without numbers, which are not read. Position embeddings are left
        out: TerraTorch computes them from sizes.
        """
        weights = _read(self.weights, device)
        if mmsegmentation.WEIGHT in weights and self.recipe.factory != mmsegmentation.FACTORY:
            raise ModelUnavailable(
                f"{self.weights.name} is of MMSegmentation, not of TerraTorch. For a fine-tune of Prithvi 1.0 give "
                f'options.terratorch with model_factory = "{mmsegmentation.FACTORY}" and the sizes of its config, as '
                "the ready record prithvi-crops has; other networks run as an exported program with the runner torch"
            )
        return dict(_of_network(weights))


def _recipe(model: Model, path: Path) -> Recipe:
    """Return the recipe of the record or of the directory; raise `ModelUnavailable`."""
    given = model.options.get("terratorch")
    if not isinstance(given, Mapping) or not given:
        if path.is_file():
            raise ModelUnavailable("its source is one file: options.terratorch must have the arguments of the network")
        dates = model.options.get("dates", 1)
        return _find_recipe(path, dates if isinstance(dates, int) else 1)
    for task, (processor, _) in _SERVED.items():
        if model.processor == processor:
            args = {key: value for key, value in given.items() if key != "model_factory"}
            factory = str(given.get("model_factory", FACTORIES[0]))
            return recipe_of(args, task, factory=factory, file="options.terratorch")
    raise ModelUnavailable(f"options.terratorch is for {', '.join(name for name, _ in _SERVED.values())}")


def _find_recipe(path: Path, dates: int) -> Recipe:
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
    return read_recipe(config, dates=dates)


def _read_yaml(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ModelUnavailable(f"{file.name} is not plain YAML: {first_line(error)}") from error


def _is_recipe(config: Any) -> bool:
    return isinstance(config, dict) and isinstance(config.get("model"), dict)


def pooling_of(model: Model) -> str:
    """Return how the vectors of a tile are made; raise `ModelUnavailable` for an unknown way."""
    pooling = model.options.get("pooling") or "mean"
    if pooling not in POOLINGS:
        raise ModelUnavailable(f"options.pooling is {pooling!r}; known poolings: {', '.join(POOLINGS)}")
    return str(pooling)


def _check_record(model: Model, recipe: Recipe) -> None:
    """Compare the catalogue's record with the config of the network; raise `ModelUnavailable`."""
    processor, named = _SERVED[recipe.task]
    if recipe.task == "embedding_generation":
        pooling_of(model)
    if model.processor in dict(_SERVED.values()) and model.processor != processor:
        raise ModelUnavailable(f"{recipe.file} is of {_WORDS[recipe.task]}, which the processor {processor} serves")
    said = {
        named: (length_of(model.options.get(named)), recipe.channels),
        "bands": (sum(sensors_of(model).values()), recipe.bands),
        "dates": (model.options.get("dates", 1), recipe.dates),
    }
    for name, (ours, theirs) in said.items():
        if ours and theirs and ours != theirs:
            raise ModelUnavailable(f"{recipe.file} is of a network of {theirs} {name}, options.{name} are {ours}")
    if len(recipe.modalities) > 1 or model.options.get("modalities"):
        _check_modalities(model, recipe)
    if isinstance(recipe.own, Clay):
        _check_clay(model, recipe.own)
    tile = model.options.get("tile_px", recipe.side_px)
    if recipe.side_px and recipe.side_px != tile:
        raise ModelUnavailable(
            f"{recipe.backbone} takes tiles of {recipe.side_px} pixels, options.tile_px is {tile}: "
            "give backbone_img_size"
        )


def _check_modalities(model: Model, recipe: Recipe) -> None:
    """Raise `ModelUnavailable` unless the record has the bands of each modality of the network."""
    ours, theirs = sensors_of(model), {name: recipe.bands_of(name) for name in recipe.modalities}
    if ours != theirs:
        raise ModelUnavailable(
            f"{recipe.file} is of a network of the modalities {in_words(theirs)}, the options have {in_words(ours)}: "
            "give options.modality and options.modalities"
        )


def _check_clay(model: Model, clay: Clay) -> None:
    """Raise `ModelUnavailable` where bands would meet the wavelengths of others, or a tile is cut."""
    bands = model.options.get("bands")
    names = [band.get("name") if isinstance(band, Mapping) else None for band in bands or ()]
    if names != clay.bands:
        raise ModelUnavailable(
            f"options.bands are {', '.join(map(str, names))}, and the wavelengths are of {', '.join(clay.bands)}: "
            "give both the same names in one order"
        )
    tile = model.options.get("tile_px")
    if isinstance(tile, int) and tile % clay.patch_size:
        raise ModelUnavailable(f"options.tile_px is {tile}: Clay takes multiples of {clay.patch_size}")


def _find_weights(model: Model, path: Path) -> Path:
    """Return the file of weights: safetensors first, then torch's own format; of several files the one with a hash."""
    if path.is_file():
        return path
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


def _read(path: Path, device: str) -> Mapping[str, Any]:
    try:
        if path.suffix == ".safetensors":
            return dict(_shapes(path)) if device == "meta" else load_file(path, device=device)
        with safe_globals(_NUMBERS):
            content = torch.load(path, map_location=device, weights_only=True)
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


def _shapes(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors of the device `meta` by their names, from the head of the file."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  (the file is no mapping)
            yield name, torch.empty(file.get_slice(name).get_shape(), device="meta")


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
    return "pos_embed" not in name and not name.startswith(("aux_heads.", "auxiliary_head."))
