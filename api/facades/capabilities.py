"""The capabilities of models in the facades: one table from processor to capabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

from penstock.errors import ModelNotServed, ModelUnfit
from penstock.intake.submissions import servable
from penstock.models import CatalogueEntry, known_names


class Capability(StrEnum):
    """A capability that a facade requires of a model. The value completes `the model does not support ...`."""

    CHAT = "chat"
    IMAGE_CHAT = "chat about images"
    COMPLETION = "text completion"
    EMBEDDING = "text embedding"
    IMAGE_EMBEDDING = "embedding of images"
    SCORING = "scoring of texts"
    CLASSIFICATION = "text classification"
    IMAGE_GENERATION = "image generation"
    TRANSCRIPTION = "transcription"
    POOLING = "pooling of scenes"


CAPABILITIES: Mapping[str, frozenset[Capability]] = MappingProxyType(
    {
        "image-generation": frozenset({Capability.IMAGE_GENERATION}),
        "image-text-to-text": frozenset({Capability.CHAT, Capability.IMAGE_CHAT}),
        "text-generation": frozenset({Capability.CHAT, Capability.COMPLETION}),
        "text-classification": frozenset({Capability.CLASSIFICATION}),
        "text-embedding": frozenset({Capability.EMBEDDING, Capability.SCORING}),
        "text-image-embedding": frozenset({Capability.EMBEDDING, Capability.IMAGE_EMBEDDING}),
        "text-ranking": frozenset({Capability.SCORING}),
        "speech-recognition": frozenset({Capability.TRANSCRIPTION}),
        "openai-chat": frozenset({Capability.CHAT}),
        "openai-completion": frozenset({Capability.COMPLETION}),
        "openai-embedding": frozenset({Capability.EMBEDDING, Capability.SCORING}),
        "raster-segmentation": frozenset({Capability.POOLING}),
        "raster-regression": frozenset({Capability.POOLING}),
        "vllm-plugin": frozenset({Capability.POOLING}),
    }
)


#: Processors of models behind a server of OpenAI's protocol: requests keep their parameters.
_FORWARDED = frozenset({"openai-chat", "openai-completion", "openai-embedding"})


def is_forwarded(entry: CatalogueEntry) -> bool:
    """Return True for a model that a server of OpenAI's protocol computes."""
    return entry.processor in _FORWARDED


def capabilities_of(entry: CatalogueEntry) -> frozenset[Capability]:
    """Return the capabilities of a model."""
    return CAPABILITIES.get(entry.processor, frozenset())


def require_capability(
    catalogue: Mapping[str, CatalogueEntry], name: str, *wanted: Capability, job: str | None = None
) -> CatalogueEntry:
    """Return the model of this name or alias, which has one of the capabilities; see `servable` for `job`.

    Raises `ModelUnfit` and the errors of `servable`, with the names of the models that have the capability.
    """
    what = " or ".join(wanted)
    try:
        entry = servable(name, catalogue, job)
    except ModelNotServed as error:
        detail = f"there is no model {name!r} for {what}; known models: {_capable(catalogue, wanted)}"
        raise ModelNotServed(detail, errors=error.errors) from error
    if capabilities_of(entry).isdisjoint(wanted):
        known = _capable(catalogue, wanted)
        raise ModelUnfit(f"{entry.name} does not support {what}; models that do: {known}")
    return entry


def _capable(catalogue: Mapping[str, CatalogueEntry], wanted: Sequence[Capability]) -> str:
    """Return the names of the usable models with one of the capabilities."""
    usable = {name: entry for name, entry in catalogue.items() if entry.problem is None}
    return known_names({name: entry for name, entry in usable.items() if not capabilities_of(entry).isdisjoint(wanted)})
