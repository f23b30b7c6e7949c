"""Bells: wake a slot that has just ended a job and listens for the next one, without a message through the broker.

A slot that finds no job is entered into its queues' `listening` (`claim.lua`). Whatever queues a job or leaves jobs
waiting rings for one slot that listens (`ring` in `common.lua`), and sends a hint only where none does.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.storage.redis.scripts import Command, JobStore


def listen(store: JobStore, slot: str, timeout_s: float) -> str | None:
    """Wait for a ring for a slot; return the queue with a job for it, or None after `timeout_s`."""
    return store.wait_for_entry(_bell(slot), timeout_s)


def stop_listening(slot: str, queues: Sequence[str]) -> Command[str | None]:
    """Listen no more; return the queue of a ring that came meanwhile."""
    return Command("note", {"op": "stop_listening", "slot": slot, "queues": list(queues)}, lambda queue: queue or None)


def ring(slot: str, queue: str) -> Command[int]:
    """Wake a slot of this worker."""
    return Command("note", {"op": "ring", "slot": slot, "queue": queue}, int)


def _bell(slot: str) -> str:
    return f"penstock:bell:{slot}"
