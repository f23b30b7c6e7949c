"""Kinds of media that a chat model accepts, from its record or from the configuration files in its directory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from penstock.models import Model
from penstock.processors.directory import read_config
from penstock.processors.openai.options import MEDIA_KINDS, EngineOptions, MediaKind, RequestOptions

#: Kind of media -> parts of field names in the configuration of models that accept the kind. vLLM accepts no files.
_WORDS: Mapping[MediaKind, tuple[str, ...]] = {
    "image": ("image", "img", "vision", "visual"), "video": ("video",), "audio": ("audio", "speech"),
}  # fmt: skip
#: Configuration files of a model. Without one of `_MAIN` the kinds are unknown.
_MAIN = ("config.json", "params.json")
_FURTHER = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def kinds_of(model: Model, options: RequestOptions) -> tuple[MediaKind, ...] | None:
    """Return the kinds of media that a model accepts by its record or its configuration files; None where unknown.

    A kind without any field in the configuration files is not accepted. vLLM may still reject a kind with such fields;
    `penstock models check` tests each kind. Raises `ModelUnavailable` for an invalid configuration file.
    """
    known = _described(model) if isinstance(options, EngineOptions) else None
    if known is None and all(options.media.values()):
        return None
    candidates = _WORDS if isinstance(options, EngineOptions) else MEDIA_KINDS
    return tuple(kind for kind in candidates if options.media.get(kind, known is None or kind in known))


def _described(model: Model) -> Collection[MediaKind] | None:
    """Return the kinds with fields in the configuration files; None without a main configuration file."""
    described = [read_config(model, name) for name in (*_MAIN, *_FURTHER)]
    if not any(described[: len(_MAIN)]):
        return None
    said = " ".join(name.lower() for made in described for name in _names(made))
    return [kind for kind, words in _WORDS.items() if any(word in said for word in words)]


def _names(made: Any) -> Iterator[str]:
    """Yield the names of all fields of a document."""
    if isinstance(made, Mapping):
        yield from made
        made = list(made.values())
    if isinstance(made, list):
        for inner in made:
            yield from _names(inner)
