"""Pooling of a text's token vectors: from sentence-transformers' files beside the network, or from options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ModelUnavailable
from penstock.workers.engine.transformers.directory import HubDirectory, read_list, read_object


class Mode(StrEnum):
    """Reductions of the last layer's vectors."""

    MEAN = "mean"
    CLS = "cls"
    MAX = "max"
    LAST = "lasttoken"


#: The modes by the names of sentence-transformers' switches.
_SWITCHES = {
    "pooling_mode_mean_tokens": Mode.MEAN,
    "pooling_mode_cls_token": Mode.CLS,
    "pooling_mode_max_tokens": Mode.MAX,
    "pooling_mode_lasttoken": Mode.LAST,
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """A mode of pooling, and normalisation to length 1."""

    mode: Mode = Mode.MEAN
    normalize: bool = True

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return (N, D) from vectors (N, T, D) where the mask (N, T) is 1, at least once in each row."""
        pooled = self._pool(hidden.float(), mask)
        return torch.nn.functional.normalize(pooled, dim=1) if self.normalize else pooled

    def _pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        real = mask[:, :, None].bool()
        match self.mode:
            case Mode.MEAN:
                return (hidden * real).sum(dim=1) / mask.sum(dim=1, keepdim=True)
            case Mode.CLS:
                return hidden[torch.arange(len(hidden), device=hidden.device), mask.argmax(dim=1)]
            case Mode.MAX:
                return hidden.masked_fill(~real, -torch.inf).amax(dim=1)
            case Mode.LAST:
                last = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
                return hidden[torch.arange(len(hidden), device=hidden.device), last]


def pooling_of(directory: HubDirectory) -> Pooling:
    """Return the pooling of `modules.json`, else of the options `pooling` ("mean") and `normalize` (true).

    Raises `ModelUnavailable` for unknown modules.
    """
    options = directory.model.options
    if (directory.path / "modules.json").is_file():
        return _of_modules(directory)
    try:
        mode = Mode(options.get("pooling", Mode.MEAN))
    except ValueError as error:
        raise ModelUnavailable(f"`options.pooling` is one of {', '.join(Mode)}") from error
    return Pooling(mode, options.get("normalize", True) is True)


def _of_modules(directory: HubDirectory) -> Pooling:
    modules = read_list(directory.path / "modules.json")
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise ModelUnavailable(
            f"modules.json has the modules {', '.join(kinds)}; known modules: Transformer, Pooling, and Normalize"
        )
    folder = PurePosixPath(str(modules[1].get("path")))
    if folder.is_absolute() or ".." in folder.parts:
        raise ModelUnavailable(f"modules.json leads out of the directory: {folder}")
    return Pooling(_mode(read_object(directory.path / folder / "config.json")), kinds[2:] == ["Normalize"])


def _mode(config: Mapping[str, Any]) -> Mode:
    named = config.get("pooling_mode")
    on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    modes = [_SWITCHES.get(key) for key in on] if named is None else [m for m in Mode if m.value == named]
    if len(modes) != 1 or modes[0] is None:
        raise ModelUnavailable(f"the pooling {named or on} is not one of {', '.join(Mode)}")
    return modes[0]
