"""Building a checkpoint's network with TerraTorch, which only this module imports."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import nn

from penstock.errors import ModelUnavailable
from penstock.workers.engine.terratorch.checkpoint import Checkpoint, Recipe, is_needed


@dataclass(frozen=True, slots=True)
class Built:
    """A network with its weights, and its inputs beside the pixels."""

    module: nn.Module
    takes_time: bool
    takes_location: bool


def build(checkpoint: Checkpoint) -> Built:
    """Return the checkpoint's network on the processor; raise `ModelUnavailable` where its parts do not fit."""
    module = _new(checkpoint.recipe)
    _fill(module, checkpoint)
    encoder = getattr(module, "encoder", None)
    return Built(
        module,
        bool(getattr(encoder, "temporal_encoding", False)),
        bool(getattr(encoder, "location_encoding", False)),
    )


def _new(recipe: Recipe) -> nn.Module:
    """Return the network without weights: the backbone's weights come with the checkpoint, never from the hub."""
    factory = getattr(library(), recipe.factory)()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice for training
        try:
            module = factory.build_model(task=recipe.task, **_without_fetching(recipe))
        except Exception as error:  # wrong arguments raise errors of any type
            first = next(iter(str(error).strip().splitlines()), "")
            raise ModelUnavailable(
                f"TerraTorch cannot build the network of {recipe.file} ({type(error).__name__}: {first})"
            ) from error
    if not isinstance(module, nn.Module):
        raise ModelUnavailable(f"TerraTorch built a {type(module).__name__} of {recipe.file}, which is no network")
    return module


def _without_fetching(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments without weights of the backbone, and without auxiliary heads of the training."""
    left_out = {"aux_decoders", "pretrained", "backbone_pretrained", "backbone_ckpt_path"}
    args = {name: value for name, value in recipe.args.items() if name not in left_out}
    kwargs = args.get("backbone_kwargs")
    if recipe.factory == "PrithviModelFactory":
        return args | {"pretrained": False}
    if isinstance(kwargs, Mapping) and kwargs:
        given = {name: value for name, value in kwargs.items() if name != "ckpt_path"}
        return args | {"backbone_kwargs": given | {"pretrained": False}}
    return args | {"backbone_pretrained": False}


def _fill(module: nn.Module, checkpoint: Checkpoint) -> None:
    name, config = checkpoint.weights.name, checkpoint.recipe.file
    try:
        # The backbone library's own `load_state_dict` only warns of weights of another shape and leaves them random.
        report = nn.Module.load_state_dict(module, checkpoint.tensors(), strict=False)
    except RuntimeError as error:
        raise ModelUnavailable(f"the weights in {name} have other shapes than the network of {config}") from error
    lacking = sorted(filter(is_needed, report.missing_keys))
    for words, names in (("lacks", lacking), ("has, and the network lacks,", sorted(report.unexpected_keys))):
        if names:
            raise ModelUnavailable(
                f"{name} {words} {len(names)} of the weights of the network of {config}, the first is {names[0]!r}"
            )


@cache
def library() -> Any:
    """Import TerraTorch's models, and keep the warnings of its libraries out of the worker's log."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import terratorch.models
    return terratorch.models
