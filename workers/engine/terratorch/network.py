"""Building a checkpoint's network with TerraTorch, which only this module imports."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn

from penstock.errors import ModelUnavailable
from penstock.workers.engine.terratorch.checkpoint import Checkpoint, is_needed, pooling_of
from penstock.workers.engine.terratorch.recipe import Recipe

#: Beginnings of a backbone's names in published files, and in the network that TerraTorch builds of it.
_SPELT = (("", ""), ("", "encoder."), ("encoder.", "encoder.clay_encoder."))


@dataclass(frozen=True, slots=True)
class Built:
    """A network with its weights, and its inputs beside the pixels."""

    module: nn.Module
    takes_time: bool
    takes_location: bool


def build(checkpoint: Checkpoint) -> Built:
    """Return the checkpoint's network on the processor; raise `ModelUnavailable` where its parts do not fit."""
    module = _new(checkpoint.recipe, pooling_of(checkpoint.model))
    _fill(module, checkpoint)
    encoder = getattr(module, "encoder", None)
    return Built(
        module,
        bool(getattr(encoder, "temporal_encoding", False)),
        bool(getattr(encoder, "location_encoding", False)),
    )


def _new(recipe: Recipe, pooling: Any) -> nn.Module:
    """Return the network without weights: the backbone's weights come with the checkpoint, never from the hub."""
    factory = getattr(library(), recipe.factory)()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice for training
        try:
            module = factory.build_model(task=recipe.task, **_without_fetching(recipe))
            if recipe.task == "embedding_generation" and not recipe.args.get("necks"):
                module.neck = _neck(module.encoder, recipe, pooling)
        except Exception as error:  # wrong arguments raise errors of any type
            first = next(iter(str(error).strip().splitlines()), "")
            raise ModelUnavailable(
                f"TerraTorch cannot build the network of {recipe.file} ({type(error).__name__}: {first})"
            ) from error
    if not isinstance(module, nn.Module):
        raise ModelUnavailable(f"TerraTorch built a {type(module).__name__} of {recipe.file}, which is no network")
    return module


def _neck(encoder: Any, recipe: Recipe, pooling: Any) -> nn.Module:
    """Return the necks that TerraTorch's `EmbeddingGenerationTask` puts behind a backbone."""
    from terratorch.models.necks import NeckSequential, build_neck_list

    leads = any(name.rpartition(".")[2] == "cls_token" for name, _ in encoder.named_parameters())
    if pooling == "patches":
        necks = [
            {"name": "SelectIndices", "indices": [recipe.layer]},
            {"name": "ReshapeTokensToImage", "remove_cls_token": leads, "effective_time_dim": recipe.dates},
        ]
    else:
        drops = leads and pooling != "cls"
        necks = [{"name": "AggregateTokens", "pooling": pooling, "indices": [recipe.layer], "drop_cls": drops}]
    built, _ = build_neck_list(necks, encoder.out_channels)
    neck: nn.Module = NeckSequential(*built)
    return neck


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
    name, config, weights = checkpoint.weights.name, checkpoint.recipe.file, checkpoint.tensors()
    if checkpoint.recipe.task == "embedding_generation":
        weights = _of_backbone(weights, set(filter(is_needed, module.state_dict())))
    try:
        # The backbone library's own `load_state_dict` only warns of weights of another shape and leaves them random.
        report = nn.Module.load_state_dict(module, weights, strict=False)
    except RuntimeError as error:
        raise ModelUnavailable(f"the weights in {name} have other shapes than the network of {config}") from error
    lacking = sorted(filter(is_needed, report.missing_keys))
    for words, names in (("lacks", lacking), ("has, and the network lacks,", sorted(report.unexpected_keys))):
        if names:
            raise ModelUnavailable(
                f"{name} {words} {len(names)} of the weights of the network of {config}, the first is {names[0]!r}"
            )


def _of_backbone(weights: Mapping[str, Tensor], needed: Collection[str]) -> dict[str, Tensor]:
    """Return a published file's weights by the names in the network, of the spelling that gives most of them.

    Other weights in such a file serve the pretraining: a decoder, other modalities.
    """
    spelled = ({new + name.removeprefix(old): name for name in weights if name.startswith(old)} for old, new in _SPELT)
    best = max(spelled, key=lambda names: len(names.keys() & needed))
    return {name: weights[file] for name, file in best.items() if name in needed}


@cache
def library() -> Any:
    """Import TerraTorch's models, and keep the warnings of its libraries out of the worker's log."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import terratorch.models
    return terratorch.models
