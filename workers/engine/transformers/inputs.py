"""Inputs of networks that the library's own processors made: arrays `inputs.NAME` of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from penstock.errors import ProcessorFailed
from penstock.processors.base import Array, Prompt

#: Beginning of the names of inputs in a prompt, before the library's names.
PREFIX = "inputs."
IDS = "input_ids"
MASK = "attention_mask"


def network_inputs(prompt: Prompt) -> dict[str, Array]:
    """Return a prompt's `inputs.NAME` by the library's names; raise `ProcessorFailed` for one that is no array."""
    given = ((name, value) for name, value in prompt.data.items() if name.startswith(PREFIX))
    return {name.removeprefix(PREFIX): _checked(name, value) for name, value in given}


def _checked(name: str, value: Any) -> Array:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        raise ProcessorFailed(f"the network takes `{name}` as an array of numbers")
    return value


def with_lists(inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the inputs with numbered ones (`name.0`, `name.1`) as lists."""
    made: dict[str, Any] = {}
    for name, value in inputs.items():
        base, _, number = name.partition(".")
        if number:
            made.setdefault(base, []).append(value)
        else:
            made[name] = value
    return made
