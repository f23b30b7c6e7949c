"""Limits on the number of a job's items, and the number of items of a warm-up."""

from __future__ import annotations

from penstock.errors import InvalidInput
from penstock.models import Limits, Model
from penstock.reports import Issue


def check_items(count: int, limits: Limits, pointer: str, what: str) -> None:
    """Raise `InvalidInput` if there are more items than the model accepts; `what` names them in the message."""
    if limits.max_items is not None and count > limits.max_items:
        detail = f"{count} {what} were given; this model accepts at most {limits.max_items} per job"
        raise InvalidInput(detail, errors=[Issue(pointer, detail)])


def dummy_items(model: Model, limits: Limits) -> int:
    """Return the number of items of a warm-up: a full batch, within the limits."""
    return min(model.max_batch, limits.max_items or model.max_batch)
