"""The catalogue: the models that workers publish for the API. Commands, as in `records.py`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import structlog

from penstock.models import CatalogueEntry
from penstock.storage.redis.fields import us
from penstock.storage.redis.loads import MANY_MACHINES
from penstock.storage.redis.scripts import Arg, Command, query

#: States of a model in the reply of `read.lua`.
_LIVING, _READY, _UNCHECKED = 1, 2, 3

log = structlog.get_logger(__name__)

#: Problems of models that are not checked yet: their earlier entries stay valid.
CHECKING, FETCHING = PASSING = ("it is being checked", "its files are being fetched")


def publish(
    entries: Iterable[CatalogueEntry], *, worker: str, queues: Sequence[str], alive_s: float
) -> Command[str]:  # fmt: skip
    """Publish the entries of all models of a worker of these queues, for `alive_s`.

    Its earlier entries are removed. When the worker has checked all of its models, the models of its queues that no
    living worker publishes are removed as well.
    """
    entries = list(entries)
    checked = all(entry.problem != CHECKING for entry in entries)
    rows: list[Arg] = [
        {
            "name": e.name,
            "queue": e.queue,
            "rank": rank(e),
            "entry": json.dumps(e.to_stored()),
            "note": e.note,
        }
        for e in entries
    ]
    args: dict[str, Arg] = {
        "worker": worker, "alive_us": us(alive_s), "queues": queues, "checked": checked, "entries": rows,
    }  # fmt: skip
    return Command("publish", args, str)


@dataclass(frozen=True, slots=True)
class Known:
    """The models in Redis by name, and the names of those that a living worker publishes."""

    entries: Mapping[str, CatalogueEntry]
    living: frozenset[str]
    #: The part of `living` that no living worker has checked: their entries may be those of earlier workers.
    unchecked: frozenset[str] = frozenset()


def known() -> Command[Known]:
    """Return the published models with the names of those that a living worker publishes."""
    return query("catalogue", _known)


def left() -> Command[tuple[str, ...]]:
    """Return the names of the models that workers withdrew: they were published and are served no more."""
    return query("left", tuple)


def awaited(queues: Sequence[str]) -> Command[dict[str, CatalogueEntry]]:
    """Return the models for which jobs wait in some queues, by name, as a worker published them last.

    An entry is ready if that worker had warmed the model up, also when it lives no more.
    """
    return query("awaited", _awaited, queues=queues)


def _awaited(flat: list[Any]) -> dict[str, CatalogueEntry]:
    found = {name: _entry(name, text) for name, text in zip(flat[::2], flat[1::2], strict=True)}
    return {name: entry for name, entry in found.items() if entry is not None}


def catalogue() -> Command[dict[str, CatalogueEntry]]:
    """Return the published models by name; models without a living worker are not ready."""
    return query("catalogue", _catalogue)


def is_settled(name: str, known: Known) -> bool:
    """Return True for a model that a living worker publishes and has checked, with or without a problem."""
    is_checked = name in known.living and name not in known.unchecked
    return is_checked and known.entries[name].problem not in PASSING


def rank(entry: CatalogueEntry) -> int:
    """Return the rank of an entry: of two workers' entries the higher one is valid."""
    if entry.problem in PASSING:
        return 1
    if entry.problem is not None:
        return 2
    return 4 if entry.ready else 3


def _catalogue(flat: list[Any]) -> dict[str, CatalogueEntry]:
    return dict(_known(flat).entries)


def _known(flat: list[Any]) -> Known:
    rows = list(zip(flat[::5], flat[1::5], map(int, flat[2::5]), flat[3::5], flat[4::5], strict=True))
    found = ((name, _entry(name, text), _now(state, note, failing)) for name, text, state, note, failing in rows)
    entries = {name: entry.model_copy(update=now) for name, entry, now in found if entry is not None}
    living = frozenset(name for name, _, state, *_ in rows if state >= _LIVING and name in entries)
    unchecked = frozenset(name for name, _, state, *_ in rows if state == _UNCHECKED and name in living)
    return Known(entries, living, unchecked)


def _now(state: int, note: str | None, failing: str | None) -> dict[str, Any]:
    """Return what changes in a stored entry: a model whose load failed on many machines has a problem."""
    now = {"ready": state == _READY, "note": note}
    if failing is None:
        return now
    loads = json.loads(failing)
    return now | ({"problem": loads["how"]} if loads["machines"] >= MANY_MACHINES else {"note": note or loads["how"]})


@lru_cache(maxsize=1000)
def _entry(name: str, text: str) -> CatalogueEntry | None:
    """Return an entry, maybe of a newer release; None, logged, for one that this release cannot read."""
    # Each submit reads the catalogue, whose texts seldom change.
    try:
        return CatalogueEntry.of_stored(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        log.warning("catalogue.skipped", model=name, error=type(error).__name__)
        return None
