"""The process that forks IO processes: what it imports is shared with its forks."""

from __future__ import annotations

import gc

from penstock.workers.io.server import preload


def test_what_is_imported_for_a_processor_is_shared_too() -> None:
    """Objects that are not frozen are touched, and so copied, by a collection in a fork."""
    kept: list[list[int]] = [[] for _ in range(1000)]
    frozen = gc.get_freeze_count()
    preload(["penstock.processors.chain", "no.such.module"])
    assert gc.get_freeze_count() >= frozen + len(kept)
    assert not any(found is kept for found in gc.get_objects())
