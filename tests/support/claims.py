"""Claims of jobs, for tests without a worker."""

from __future__ import annotations

import uuid
from typing import Any

from penstock.jobs import Claim
from penstock.storage.redis import records
from penstock.storage.redis.scripts import Command, Runs


def claiming(queue: str = "q", **given: Any) -> Command[Claim | None]:
    """Return a claim with a nonce of its own."""
    usual = {
        "slot": "s", "nonce": uuid.uuid4().hex, "lease_s": 30, "max_tenant_running": 9, "worker": "w", "models": ["m"],
    }  # fmt: skip
    return records.claim(queue, **{**usual, **given})


def claim_one(store: Runs, queue: str = "q", **given: Any) -> Claim:
    """Claim a job, which waits."""
    claimed = store.run(claiming(queue, **given))
    assert claimed is not None, "no job waits"
    return claimed


def claim_up_to(store: Runs, n: int, queue: str = "q", **given: Any) -> list[Claim]:
    """Claim jobs one after another, at most n."""
    held: list[Claim] = []
    nonce = given.pop("nonce", uuid.uuid4().hex)
    while len(held) < n and (claim := store.run(claiming(queue, nonce=f"{nonce}-{len(held)}", **given))) is not None:
        held.append(claim)
    return held
