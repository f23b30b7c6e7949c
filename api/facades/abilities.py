"""What a model can be asked for in the words of others' interfaces: one table, by its processor."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from penstock.errors import ModelNotServed, ModelUnfit
from penstock.models import CatalogueEntry, known_names
from penstock.storage.submissions import servable


class Ability(StrEnum):
    """What an interface asks of a model. The value completes the sentence `the model does no ...`."""

    CHAT = "chat"
    PICTURES = "chat about pictures"
    COMPLETION = "text completion"
    EMBEDDING = "text embedding"
    IMAGE = "image generation"
    TRANSCRIPTION = "transcription"
    POOLING = "pooling of scenes"


ABILITIES: Mapping[str, frozenset[Ability]] = MappingProxyType(
    {
        "image-generation": frozenset({Ability.IMAGE}),
        "image-text-to-text": frozenset({Ability.CHAT, Ability.PICTURES}),
        "text-generation": frozenset({Ability.CHAT, Ability.COMPLETION}),
        "text-embedding": frozenset({Ability.EMBEDDING}),
        "speech-recognition": frozenset({Ability.TRANSCRIPTION}),
        "raster-segmentation": frozenset({Ability.POOLING}),
        "raster-regression": frozenset({Ability.POOLING}),
        "vllm-plugin": frozenset({Ability.POOLING}),
    }
)


def abilities_of(entry: CatalogueEntry) -> frozenset[Ability]:
    """Return what a model can be asked for."""
    return ABILITIES.get(entry.processor, frozenset())


def able(catalogue: Mapping[str, CatalogueEntry], name: str, ability: Ability) -> CatalogueEntry:
    """Return the model of this name or alias.

    Raises what `servable` does, and `ModelUnfit`; both with the names of the models that can do what is asked.
    """
    try:
        entry = servable(name, catalogue)
    except ModelNotServed as error:
        said = f"there is no model {name!r} for {ability}; known models: {_fit(catalogue, ability)}"
        raise ModelNotServed(said, errors=error.errors) from error
    if ability not in abilities_of(entry):
        raise ModelUnfit(f"{entry.name} does no {ability}; models that do: {_fit(catalogue, ability)}")
    return entry


def _fit(catalogue: Mapping[str, CatalogueEntry], ability: Ability) -> str:
    """Say which usable models can do this."""
    return known_names(
        {name: entry for name, entry in catalogue.items() if entry.problem is None and ability in abilities_of(entry)}
    )
