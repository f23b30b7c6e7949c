"""A request's input, examined without network or storage: it fits its model's schema, and names these media."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.intake.references import references
from penstock.intake.submissions import check_input
from penstock.models import CatalogueEntry, tensor_places


@dataclass(frozen=True, slots=True)
class Findings:
    """The parts of a valid input that need further checks."""

    #: JSON pointers of raw tensors.
    tensors: Sequence[str]
    #: Each medium's JSON pointer and reference.
    media: Sequence[tuple[str, str]]


def examine(entry: CatalogueEntry, value: Mapping[str, Any]) -> Findings:
    """Return the findings in an input; raise `InvalidRequest` for one that violates the schema or names many media."""
    check_input(entry, value)
    tensors = tuple(dict.fromkeys(tensor_places(entry.input_schema, value)))
    return Findings(tensors, references(entry, value))
