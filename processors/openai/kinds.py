"""The kinds of media that a chat's model takes: those of its record, or those that its directory speaks of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from penstock.models import Model
from penstock.processors.directory import read_config
from penstock.processors.openai.options import MEDIA_KINDS, EngineOptions, MediaKind, RequestOptions

#: Parts of names in a model's description that show that vLLM takes a kind of media. It takes no files.
_WORDS: Mapping[MediaKind, tuple[str, ...]] = {
    "image": ("image", "img", "vision", "visual"), "video": ("video",), "audio": ("audio", "speech"),
}  # fmt: skip
#: Files of a directory that describe its model; without one of the first two nothing is known.
_MAIN = ("config.json", "params.json")
_FURTHER = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def kinds_of(model: Model, options: RequestOptions) -> tuple[MediaKind, ...] | None:
    """Return the kinds of media that a model takes, as its record or its directory says; None: unknown, maybe all.

    A kind that no name in the directory's description contains is surely not taken. vLLM may refuse one that is named:
    `penstock models check` asks it. Raises `ModelUnavailable` for a broken description.
    """
    known = _described(model) if isinstance(options, EngineOptions) else None
    if known is None and all(options.media.values()):
        return None
    candidates = _WORDS if isinstance(options, EngineOptions) else MEDIA_KINDS
    return tuple(kind for kind in candidates if options.media.get(kind, known is None or kind in known))


def _described(model: Model) -> Collection[MediaKind] | None:
    """Return the kinds of which the directory speaks; None where nothing describes the model."""
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
