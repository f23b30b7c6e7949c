"""Commands of the keeper: its leadership, the recovery of an emptied Redis, and the purge of old jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock import formats
from penstock.batches import BatchKey
from penstock.jobs import JobKey
from penstock.storage.redis.fields import us
from penstock.storage.redis.records import GONE_S, SWEEP_LIMIT, keys_of
from penstock.storage.redis.scripts import Command, query

#: Records that one script purges: about 2 ms, in which no lease is renewed.
FORGOTTEN_AT_ONCE = 50


def alive() -> Command[bool]:
    """Return False where Redis was emptied since the last recovery ended."""
    return query("alive", bool)


@dataclass(frozen=True, slots=True)
class Witness:
    """The past of a server, by its own report."""

    #: As of `alive`.
    alive: bool
    #: True where the jobs were compared with the object store since the server started, by a keeper that reads as much.
    compared: bool
    #: Id of the server's run: a restarted server or a promoted replica has another.
    run: str


def witness() -> Command[Witness]:
    """Return the server's report of its past."""
    return query("witness", lambda reply: Witness(bool(reply[0]), bool(reply[1]), reply[2]), reads=formats.READS)


def compared(run: str) -> Command[bool]:
    """Note that the jobs were compared with the object store in a run of the server; False in another run."""
    return Command("note", {"op": "compared", "run": run, "reads": formats.READS}, bool)


def stale(names: Sequence[tuple[JobKey | BatchKey, bool]]) -> Command[tuple[bool, ...]]:
    """Return for each job or batch True if its record is missing or older than its manifests in the object store.

    The bool in `names` is True if the end is stored. A record is older if it is a reservation, or if it has not ended
    although the end is stored. Jobs and batches that were deleted get False.
    """
    rows = [["batch" if isinstance(key, BatchKey) else "job", key.tenant, key.id, ended] for key, ended in names]
    return query("stale", lambda reply: tuple(map(bool, reply)), names=rows)


def recovering(who: str, *, begin: bool) -> Command[bool]:
    """Begin or end a recovery; False for an end that is not valid, because Redis was emptied again."""
    return Command("note", {"op": "begin_recovery" if begin else "end_recovery", "who": who}, bool)


def purge(keys: Sequence[JobKey]) -> Command[tuple[JobKey, ...]]:
    """Purge the records of terminal jobs, at most `FORGOTTEN_AT_ONCE`; return the jobs that are unknown or live."""

    def left(replies: Sequence[str]) -> tuple[JobKey, ...]:
        return tuple(key for key, reply in zip(keys, replies, strict=True) if reply != "ok")

    return Command("forget", {"jobs": [str(key) for key in keys], "gone_s": GONE_S}, left)


def retired(limit: int = SWEEP_LIMIT) -> Command[tuple[JobKey, ...]]:
    """Return terminal jobs whose retention is over, the longest first."""
    return query("retired_jobs", keys_of, limit=limit)


def tidied() -> Command[bool]:
    """Return True where leftovers were deleted less than the time of `note_tidied` ago."""
    return query("tidied", bool)


def note_tidied(for_s: float) -> Command[bool]:
    """Note that leftovers were deleted, for so many seconds."""
    return Command("note", {"op": "tidied", "for_ms": round(for_s * 1000)}, bool)


def lead(who: str, lease_s: float) -> Command[bool]:
    """Become or stay the active keeper; False while another one is."""
    return Command("note", {"op": "lead", "who": who, "lease_ms": round(lease_s * 1000)}, bool)


def step_down(who: str) -> Command[bool]:
    """Stop being the active keeper."""
    return Command("note", {"op": "step_down", "who": who}, bool)


def reservations(age_s: float) -> Command[tuple[JobKey, ...]]:
    """Return the older reservations that were not confirmed."""
    return query("reservations", keys_of, age_us=us(age_s), limit=SWEEP_LIMIT)
