"""Limits on the number of a job's items and on the length of its media, and the number of items of a warm-up."""

from __future__ import annotations

from penstock.errors import InvalidInput, Issue, MediaTooLarge
from penstock.models import Limits, Model

#: Seconds of one recording or video, at most, for a model without `limits.max_seconds`.
MAX_SECONDS = 4 * 3600


def check_items(count: int, limits: Limits, pointer: str, what: str) -> None:
    """Raise `InvalidInput` if there are more items than the model accepts; `what` names them in the message."""
    if limits.max_items is not None and count > limits.max_items:
        detail = f"{count} {what} were given; this model accepts at most {limits.max_items} per job"
        raise InvalidInput(detail, errors=[Issue(pointer, detail)])


def check_seconds(seconds: float, limits: Limits, what: str) -> None:
    """Raise `MediaTooLarge` for a `what` (recording or video) of more than `limits.max_seconds` or `MAX_SECONDS`."""
    if limits.max_seconds is None and seconds > MAX_SECONDS:
        raise MediaTooLarge(
            f"The {what} is longer than {MAX_SECONDS} seconds, the limit of every model without `limits.max_seconds`."
        )
    if limits.max_seconds is not None and seconds > limits.max_seconds:
        raise MediaTooLarge(f"The {what} is longer than {limits.max_seconds:g} seconds, the limit of the model.")


def dummy_items(model: Model, limits: Limits) -> int:
    """Return the number of items of a warm-up: a full batch, within the limits."""
    return min(model.max_batch, limits.max_items or model.max_batch)
