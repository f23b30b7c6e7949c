"""Which job store this is, and whether a keeper looks after it. A command, as in `records.py`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.storage.scripts import Command


@dataclass(frozen=True, slots=True)
class Identity:
    """What a job store says of itself."""

    #: Its own since its latest recovery; None until a keeper has looked at it.
    mark: str | None
    #: The active keeper; None while there is none.
    keeper: str | None


def identity() -> Command[Identity]:
    """Return what the job store says of itself; two that have the same mark are one."""
    return Command("identity", (), lambda reply: Identity(*reply))
