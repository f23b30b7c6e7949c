"""Pooling of a text's token vectors, and the layers after it: from sentence-transformers' files, or from options.

The formulas are those of sentence-transformers 6.2 (`Pooling`, `Dense`, `LayerNorm`, `Normalize`, `truncate_dim`).
Modules and settings that are not computed here are refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from penstock.errors import ModelUnavailable
from penstock.workers.engine.transformers.directory import WEIGHTS, HubDirectory, read_list, read_object

#: Files of sentence-transformers beside `modules.json`.
_MODEL, _TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"
_OWN = "sentence_transformers."


class Mode(StrEnum):
    """Reductions of the last layer's vectors."""

    MEAN = "mean"
    CLS = "cls"
    MAX = "max"
    LAST = "lasttoken"
    WEIGHTED = "weightedmean"
    ROOT = "mean_sqrt_len_tokens"


#: The modes by the names of sentence-transformers' older switches.
_SWITCHES = {
    "pooling_mode_mean_tokens": Mode.MEAN,
    "pooling_mode_cls_token": Mode.CLS,
    "pooling_mode_max_tokens": Mode.MAX,
    "pooling_mode_lasttoken": Mode.LAST,
    "pooling_mode_weightedmean_tokens": Mode.WEIGHTED,
    "pooling_mode_mean_sqrt_len_tokens": Mode.ROOT,
}
_ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    cls.__name__: cls for cls in (nn.Tanh, nn.Identity, nn.ReLU, nn.GELU, nn.Sigmoid, nn.SiLU)
}


class _Normalize(nn.Module):
    def forward(self, vectors: Tensor) -> Tensor:
        return nn.functional.normalize(vectors, dim=1)


@dataclass(frozen=True, slots=True)
class Pooling:
    """Modes of pooling, whose vectors are joined, the layers after them, and the number of dimensions to keep."""

    modes: tuple[Mode, ...] = (Mode.MEAN,)
    layers: nn.Module = field(default_factory=_Normalize)
    dimensions: int | None = None

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return (N, D) from vectors (N, T, D) where the mask (N, T) is 1, at least once in each row."""
        with torch.autocast(hidden.device.type, enabled=False):
            pooled = torch.cat([_pooled(mode, hidden.float(), mask) for mode in self.modes], dim=1)
            return torch.as_tensor(self.layers(pooled)[:, : self.dimensions])


def _pooled(mode: Mode, hidden: Tensor, mask: Tensor) -> Tensor:
    rows, real = torch.arange(len(hidden), device=hidden.device), mask[:, :, None]
    match mode:
        case Mode.MEAN:
            return (hidden * real).sum(dim=1) / real.sum(dim=1)
        case Mode.ROOT:
            return (hidden * real).sum(dim=1) / real.sum(dim=1).sqrt()
        case Mode.WEIGHTED:
            weights = real * torch.arange(1, mask.shape[1] + 1, device=mask.device)[None, :, None]
            return (hidden * weights).sum(dim=1) / weights.sum(dim=1)
        case Mode.CLS:
            return hidden[rows, mask.argmax(dim=1)]
        case Mode.MAX:
            return hidden.masked_fill(real == 0, -torch.inf).amax(dim=1)
        case Mode.LAST:
            return hidden[rows, mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)]


def pooling_of(directory: HubDirectory, default: Mode = Mode.MEAN) -> Pooling:
    """Return the pooling of `modules.json`, else of the options `pooling` and `normalize` (true).

    Raises `ModelUnavailable` for modules and settings that are not computed.
    """
    options = directory.model.options
    if (directory.path / "modules.json").is_file():
        return _of_modules(directory.path)
    try:
        mode = Mode(options.get("pooling", default))
    except ValueError as error:
        raise ModelUnavailable(f"`options.pooling` is one of {', '.join(Mode)}") from error
    return Pooling((mode,), _Normalize() if options.get("normalize", True) is True else nn.Identity())


def _of_modules(path: Path) -> Pooling:
    modules = read_list(path / "modules.json")
    kinds = [_kind(module) for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= _LAYERS.keys():
        raise ModelUnavailable(
            f"modules.json has the modules {', '.join(kinds)}; known modules: Transformer, Pooling, then any of "
            f"{', '.join(_LAYERS)}"
        )
    task = _settings(path, _TRANSFORMER).get("transformer_task", "feature-extraction")
    if task != "feature-extraction":
        raise ModelUnavailable(f"the `transformer_task` {task!r} of {_TRANSFORMER} is not 'feature-extraction'")
    layers = [_LAYERS[kind](_folder(path, module)) for kind, module in zip(kinds[2:], modules[2:], strict=True)]
    modes = _modes(read_object(_folder(path, modules[1]) / "config.json"))
    return Pooling(modes, nn.Sequential(*layers), _dimensions(path))


def _kind(module: Mapping[str, Any]) -> str:
    """Return a module's class; its whole name for a class of the directory's own code."""
    whole = str(module.get("type"))
    return whole.rpartition(".")[2] if whole.startswith(_OWN) else whole


def _folder(path: Path, module: Mapping[str, Any]) -> Path:
    folder = PurePosixPath(str(module.get("path")))
    if folder.is_absolute() or ".." in folder.parts:
        raise ModelUnavailable(f"modules.json leads out of the directory: {folder}")
    return path / folder


def _settings(path: Path, name: str) -> Mapping[str, Any]:
    return read_object(path / name) if (path / name).is_file() else {}


def _dimensions(path: Path) -> int | None:
    dimensions = _settings(path, _MODEL).get("truncate_dim")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise ModelUnavailable(f"`truncate_dim` of {_MODEL} is a number of dimensions, not {dimensions!r}")
    return dimensions


def _modes(config: Mapping[str, Any]) -> tuple[Mode, ...]:
    named = config.get("pooling_mode")
    on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    names: Sequence[Any] = on if named is None else named if isinstance(named, list) else [named]
    # Vectors of several switches are joined in the order of the library's modes, listed ones in their own.
    known = [_SWITCHES.get(name) if named is None else next((m for m in Mode if m == name), None) for name in names]
    modes = [mode for mode in known if mode is not None]
    if not modes or len(modes) != len(names):
        raise ModelUnavailable(f"the pooling {named or on} is not one of {', '.join(Mode)}")
    return tuple(modes if named is not None else sorted(modes, key=_ORDER.index))


#: The order in which sentence-transformers joins the vectors of several switches.
_ORDER = (Mode.CLS, Mode.MAX, Mode.MEAN, Mode.ROOT, Mode.WEIGHTED, Mode.LAST)


def _dense(folder: Path) -> nn.Module:
    config = read_object(folder / "config.json")
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = str(name).rpartition(".")[2]
    if not str(name).startswith("torch.nn.") or activation not in _ACTIVATIONS:
        raise ModelUnavailable(f"Dense has the activation {name}; known ones: {', '.join(_ACTIVATIONS)}")
    names = {config.get("module_input_name"), config.get("module_output_name")} - {None, "sentence_embedding"}
    if names or config.get("use_residual"):
        raise ModelUnavailable(f"Dense in {folder.name} has a residual, or reads or writes another value")
    linear = nn.Linear(_size(config, "in_features"), _size(config, "out_features"), bias=config.get("bias", True))
    return nn.Sequential(_filled(linear, folder, "linear."), _ACTIVATIONS[activation]())


def _layer_norm(folder: Path) -> nn.Module:
    size = _size(read_object(folder / "config.json"), "dimension")
    return _filled(nn.LayerNorm(size), folder, "norm.")


def _size(config: Mapping[str, Any], name: str) -> int:
    size = config.get(name)
    if type(size) is not int or size < 1:
        raise ModelUnavailable(f"a module of modules.json has no usable `{name}`: {size!r}")
    return size


def _filled(layer: nn.Module, folder: Path, prefix: str) -> nn.Module:
    """Return a layer with the weights of its folder."""
    if not (folder / WEIGHTS).is_file():
        raise ModelUnavailable(f"the module in {folder.name} lacks the file {WEIGHTS}")
    try:
        found = {name.removeprefix(prefix): tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
        layer.load_state_dict(found)
    except (SafetensorError, RuntimeError, OSError) as error:  # RuntimeError: other names or shapes
        raise ModelUnavailable(f"the weights in {folder.name} do not fit its config.json: {error}") from error
    return layer


_LAYERS: Mapping[str, Callable[[Path], nn.Module]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": lambda _: _Normalize(),
}
