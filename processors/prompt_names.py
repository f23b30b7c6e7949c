"""Names of values in prompts and outputs that the engine knows, and that are no inputs or outputs of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.processors.base import Value

#: A file's own numbers, and the arrays beside them (see `numbers`).
PIXELS, VALID, RADIOMETRY = "pixels", "pixels.valid", "pixels.radiometry"
#: The request to reduce scores in a prompt, and its answer in an output (see `reductions`).
REDUCE, REDUCED = "probability.reduce", "probability.reduced"
#: Values of a prompt that do not keep prompts from sharing a batch.
BESIDE: Final = frozenset({VALID, RADIOMETRY, REDUCE})


def has_numbers(data: Mapping[str, Value]) -> bool:
    """Return True for the values of a prompt of a file's own numbers."""
    return VALID in data
