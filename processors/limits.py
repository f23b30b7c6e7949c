"""Limits on a job's items, and how many of them a warm-up has."""

from __future__ import annotations

from penstock.errors import InvalidInput
from penstock.models import Limits, Model
from penstock.reports import Issue


def check_items(count: int, limits: Limits, pointer: str, what: str) -> None:
    """Raise `InvalidInput` for more items than the model takes."""
    if limits.max_items is not None and count > limits.max_items:
        detail = f"{count} {what} were given; this model takes at most {limits.max_items} a job"
        raise InvalidInput(detail, errors=[Issue(pointer, detail)])


def dummy_items(model: Model, limits: Limits) -> int:
    """Return how many items a warm-up has: what fills a batch, within the limits."""
    return min(model.max_batch, limits.max_items or model.max_batch)
