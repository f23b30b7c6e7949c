"""Notes: sentences for users that readers of files add to a job's result, wherever they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: The notes of the job for which this thread works; None outside a job.
_NOTES: ContextVar[list[str] | None] = ContextVar("penstock_notes", default=None)


def note(sentence: str) -> None:
    """Add a sentence to `notes` in the JSON of the current job's result, once."""
    notes = _NOTES.get()
    if notes is not None and sentence not in notes:
        notes.append(sentence)


@contextmanager
def noting(notes: list[str]) -> Iterator[None]:
    """Collect the notes of the block in a list; threads that get a copy of the context add to the same list."""
    token = _NOTES.set(notes)
    try:
        yield
    finally:
        _NOTES.reset(token)
