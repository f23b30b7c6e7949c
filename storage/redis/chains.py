"""Commands of chains: jobs that wait for others (`lua/chain.lua`)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.jobs import JobKey
from penstock.storage.redis.fields import us
from penstock.storage.redis.records import keys_of, names_of
from penstock.storage.redis.scripts import Command

#: Seconds after which the purge of a job that is kept for live followers is tried again.
KEPT_LOOK_S = 60.0


def follow(key: JobKey, gone: Sequence[str]) -> Command[bool]:
    """Judge a job that waits for its upstreams once more; False where it does not wait.

    `gone` are the ids of upstreams that the object store does not have: the job ends unless Redis has them by now.
    """
    return Command("follow", {**names_of(key), "gone": list(gone)}, bool)


def followed(keys: Sequence[JobKey]) -> Command[tuple[JobKey, ...]]:
    """Return the jobs that live followers wait for, or whose files they read. Their purge is due again later."""
    return Command("note", {"op": "followed", "jobs": [str(key) for key in keys], "look_us": us(KEPT_LOOK_S)}, keys_of)
