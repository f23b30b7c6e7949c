"""The identity of a job store and its keeper, and if it accepts writes. Commands, as in `records.py`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.storage.redis.scripts import Command, query


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a job store."""

    #: Id of the store since its latest recovery; None before the first keeper.
    id: str | None
    #: The active keeper; None without one.
    keeper: str | None


def identity() -> Command[Identity]:
    """Return the identity of the job store: two addresses with the same id lead to one store."""
    return query("identity", lambda reply: Identity(*reply))


def writable() -> Command[str]:
    """Check that the job store accepts writes; `RedisFull` while it has no memory or disk for them."""
    return Command("writable", {}, str)
