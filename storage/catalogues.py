"""The models that workers serve, as the API is told of them. Commands, as in `records.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from penstock.models import CatalogueEntry
from penstock.storage.fields import dump, us
from penstock.storage.scripts import Arg, Command

#: Problems of models of which nothing is known yet: what workers told of them before still holds.
CHECKING, FETCHING = "it is being checked", "its files are being fetched"


def publish(
    entries: Iterable[CatalogueEntry], *, worker: str, queues: Sequence[str], alive_s: float
) -> Command[str]:  # fmt: skip
    """Store what a worker of these queues exported of all its models; without another word it counts for `alive_s`.

    What it told before and does not tell any more is forgotten, and so are the models of its queues that no living
    worker tells of, when it has checked its own.
    """
    entries = list(entries)
    checked = all(entry.problem != CHECKING for entry in entries)
    rows: list[Arg] = [part for e in entries for part in (e.name, e.queue, rank(e), e.model_dump_json())]
    return Command("publish", (worker, us(alive_s), dump(list(queues)), int(checked), *rows), str)


def catalogue() -> Command[dict[str, CatalogueEntry]]:
    """Return the models that workers exported, by name; those without a living worker are not ready."""
    return Command("catalogue", (), _catalogue)


def rank(entry: CatalogueEntry) -> int:
    """Return how good what an entry says is: of two workers' entries the better one counts."""
    if entry.problem in (CHECKING, FETCHING):
        return 1
    if entry.problem is not None:
        return 2
    return 4 if entry.ready else 3


def _catalogue(flat: list[Any]) -> dict[str, CatalogueEntry]:
    rows = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    return {name: _entry(text).model_copy(update={"ready": bool(ready)}) for name, text, ready in rows}


@lru_cache(maxsize=1000)
def _entry(text: str) -> CatalogueEntry:
    # Each submit reads the catalogue, whose texts seldom change.
    return CatalogueEntry.model_validate_json(text)
