"""Building a checkpoint's network with TerraTorch, which only this module imports."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import ModelUnavailable, first_line
from penstock.models import Model
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
    return _filled(_new(checkpoint.recipe, pooling_of(checkpoint.model)), checkpoint, "cpu")


def outline(checkpoint: Checkpoint) -> Built:
    """Return the checkpoint's network without numbers; raise `ModelUnavailable` as `build` does.

    Networks that read numbers while they are built are built with random ones, which takes their memory for a moment.
    """
    recipe, pooling = checkpoint.recipe, pooling_of(checkpoint.model)
    library()  # what an import computes has numbers
    try:
        with torch.device("meta"):
            module = _new(recipe, pooling)
    except ModelUnavailable:  # for the lack of numbers, or truly
        module = _new(recipe, pooling).to("meta")
    return _filled(module, checkpoint, "meta")


def _filled(module: nn.Module, checkpoint: Checkpoint, device: str) -> Built:
    _fill(module, checkpoint, device)
    encoder = getattr(module, "encoder", None)
    built = Built(
        module,
        bool(getattr(encoder, "temporal_encoding", False)),
        bool(getattr(encoder, "location_encoding", False)),
    )
    _check_coordinates(checkpoint.model, built, checkpoint.recipe.file)
    return built


def _new(recipe: Recipe, pooling: Any) -> nn.Module:
    """Return the network without weights: the backbone's weights come with the checkpoint, never from the hub."""
    library()
    _check_names(recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice for training
        try:
            module = _built(recipe)
            if recipe.task == "embedding_generation" and not recipe.args.get("necks"):
                module.neck = _neck(module.encoder, recipe, pooling)
        except Exception as error:  # wrong arguments raise errors of any type
            said = f"{type(error).__name__}: {first_line(error)}"
            raise ModelUnavailable(f"TerraTorch cannot build the network of {recipe.file} ({said})") from error
    if not isinstance(module, nn.Module):
        raise ModelUnavailable(f"TerraTorch built a {type(module).__name__} of {recipe.file}, which is no network")
    return module


def _built(recipe: Recipe) -> Any:
    if recipe.own is not None:
        return recipe.own.network()
    factory = getattr(library(), recipe.factory)()
    return factory.build_model(task=recipe.task, **_without_fetching(recipe))


def _check_names(recipe: Recipe) -> None:
    """Raise `ModelUnavailable` for a part of the network that none of TerraTorch's registries has."""
    from terratorch.registry import BACKBONE_REGISTRY, DECODER_REGISTRY, NECK_REGISTRY

    registries = {"backbone": BACKBONE_REGISTRY, "decoder": DECODER_REGISTRY, "neck": NECK_REGISTRY}
    for part, name in recipe.parts:
        known = registries[part]
        # timm's names may have the tag of their weights behind a dot.
        if name not in known and name.partition(".")[0] not in known:
            names = [form for full in known for form in (full, full.partition("_")[2])]
            near = get_close_matches(name, names, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ModelUnavailable(f"{recipe.file} names the {part} {name}, which TerraTorch does not have{hint}")


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


def _fill(module: nn.Module, checkpoint: Checkpoint, device: str) -> None:
    name, config, weights = checkpoint.weights.name, checkpoint.recipe.file, checkpoint.tensors(device)
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


def _check_coordinates(model: Model, built: Built, config: str) -> None:
    """Compare the record's `coordinates` with the inputs that the network was trained with."""
    coordinates = model.options.get("coordinates") or {}
    for name, takes in (("time", built.takes_time), ("location", built.takes_location)):
        if coordinates.get(name, "no") != "no" and not takes:
            raise ModelUnavailable(
                f"options.coordinates.{name} is {coordinates[name]!r}, and the network of {config} takes no {name} "
                f"(its backbone's coords_encoding does not have it)"
            )


@cache
def library() -> Any:
    """Import TerraTorch's models, and keep the warnings of its libraries out of the worker's log.

    The import of Clay lowers the precision of float32 products in the whole process, for all models: it is set back.
    """
    precision = torch.get_float32_matmul_precision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import terratorch.models
    torch.set_float32_matmul_precision(precision)
    return terratorch.models
