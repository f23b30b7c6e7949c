"""The process that forks IO processes: what it imports is shared with its forks."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from penstock.workers.io.server import preload


def test_what_is_imported_for_a_processor_is_shared_too() -> None:
    """Objects that are not frozen are touched, and so copied, by a collection in a fork."""
    kept: list[list[int]] = [[] for _ in range(1000)]
    frozen = gc.get_freeze_count()
    preload(["penstock.processors.chain", "no.such.module", "json:no_such_name"])
    assert gc.get_freeze_count() >= frozen + len(kept)
    assert not any(found is kept for found in gc.get_objects())


@pytest.mark.breadth
@pytest.mark.parametrize(("processor", "imported"), [("image-text-to-text", True), ("image-embedding", False)])
def test_the_library_is_imported_once_for_all_models_that_need_it(processor: str, imported: bool) -> None:
    told = (
        "import sys; from penstock.processors.registry import Registry; from penstock.workers.io import server;"
        f"server.preload_processor(Registry.installed(), {processor!r});"
        "print('transformers.processing_utils' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True, timeout=300)
    assert said.stdout.split()[-1] == str(imported)
