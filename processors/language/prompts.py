"""Prompts of an embedding model: texts that sentence-transformers puts before each text, such as `query: `.

The file `config_sentence_transformers.json` of a model's directory names them. With `include_prompt = false` in the
configuration of its pooling, the prompt's tokens are read by the network and left out of the pooling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from penstock.errors import InvalidInput, Issue, ModelUnavailable
from penstock.models import Model
from penstock.processors.directory import read_config

FILE = "config_sentence_transformers.json"


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """The prompts of a model."""

    #: Texts by name.
    named: Mapping[str, str] = field(default_factory=dict)
    #: The text for requests that give no other; empty for none.
    default: str = ""
    #: False: the tokens of a prompt do not count in the pooling.
    pooled: bool = True

    def of(self, model: Model, name: str | None) -> str:
        """Return the prompt of this name, or the default one; raise `InvalidInput` for an unknown name."""
        if name is None:
            return self.default
        if name not in self.named:
            known = ", ".join(self.named) or "none"
            detail = f"model {model.name!r} has no prompt {name!r}; known prompts: {known}"
            raise InvalidInput(detail, errors=[Issue("/input/prompt_name", detail)])
        return self.named[name]


def read_prompts(model: Model) -> TextPrompts:
    """Return the prompts of a model's directory; raise `ModelUnavailable` for files that are not usable."""
    config = read_config(model, FILE)
    named, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(named, dict) or not all(isinstance(text, str | None) for text in named.values()):
        raise ModelUnavailable(f"model {model.name!r}: `prompts` of {FILE} is not an object of texts")
    if default is not None and default not in named:
        known = ", ".join(named) or "none"
        raise ModelUnavailable(
            f"model {model.name!r}: {FILE} has no prompt {default!r}, its `default_prompt_name`; it has: {known}"
        )
    texts = MappingProxyType({name: text or "" for name, text in named.items()})
    return TextPrompts(texts, "" if default is None else texts[default], _pooled(model))


def _pooled(model: Model) -> bool:
    """Return `include_prompt` of the pooling that `modules.json` names; True without one."""
    try:
        modules = json.loads((Path(model.source) / "modules.json").read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):  # a missing one is none, and the runner reports a broken one
        return True
    kinds = [module for module in modules if isinstance(module, dict)] if isinstance(modules, list) else []
    for module in kinds:
        folder = PurePosixPath(str(module.get("path")))
        if str(module.get("type")).endswith(".Pooling") and not folder.is_absolute() and ".." not in folder.parts:
            return read_config(model, f"{folder}/config.json").get("include_prompt", True) is not False
    return True
