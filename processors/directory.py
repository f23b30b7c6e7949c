"""Configuration files of a model's directory in the format of the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.errors import ConfigError, ModelUnavailable
from penstock.models import Model

#: Options of a model that the runner `transformers` reads.
RUNNER_OPTIONS = (
    "adapter", "answer", "compile", "encoder_cache_bytes", "normalize", "pooling", "task", "untried",
)  # fmt: skip
#: Options that earlier versions read -> the remark of `penstock models check`. Records may still have them.
REMOVED_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("batching", "cache_tokens"), "for texts of many users take vLLM or a server like it"),
        "cuda_graphs": "passes of images are not recorded any more",
    }
)


def read_config(model: Model, name: str = "config.json") -> Mapping[str, Any]:
    """Return the data of a JSON file of the directory or {}; raise `ModelUnavailable` if the file is broken."""
    path = Path(model.source) / name
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ModelUnavailable(f"model {model.name!r}: {name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelUnavailable(f"model {model.name!r}: {name} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ModelUnavailable(f"model {model.name!r}: {name} is not a JSON object")
    return data


def read_labels(model: Model) -> Mapping[int, str]:
    """Return the names of the classes by id: the option `labels` (a list), or `id2label` of `config.json`."""
    try:
        own = {int(number): str(name) for number, name in read_config(model).get("id2label", {}).items()}
    except (AttributeError, ValueError) as error:
        raise ModelUnavailable(f"model {model.name!r}: id2label of config.json is not usable: {error}") from error
    labels = model.options.get("labels")
    if labels is None:
        return own
    if not isinstance(labels, list | tuple) or not all(isinstance(label, str) for label in labels):
        raise ConfigError(f"model {model.name!r}: options.labels is not a list of names")
    if own and len(own) != len(labels):
        raise ConfigError(
            f"model {model.name!r}: options.labels has {len(labels)} names, and the network has {len(own)} classes"
        )
    return dict(enumerate(labels))


def check_options(model: Model, *own: str) -> None:
    """Raise `ConfigError` for options that neither the processor nor the runner `transformers` reads.

    Models of other runners are not checked here: those runners check their options themselves.
    """
    if model.runner != "transformers":
        return
    known = sorted({*own, *RUNNER_OPTIONS})
    unknown = sorted(set(model.options) - {*known, *REMOVED_OPTIONS})
    if unknown:
        raise ConfigError(f"model {model.name!r}: unknown options: {', '.join(unknown)}; known: {', '.join(known)}")
