"""The how-to page of Prithvi: every command and program in it is run, in order."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.doc_pages import Shell, blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_run_prithvi(tmp_path: Path) -> None:
    (tmp_path / "ENV").symlink_to(sys.prefix)
    with closing(Shell(tmp_path, HF_HUB_OFFLINE="1")) as shell:
        for block in blocks("prithvi.md"):
            shell.take(block)

    assert {path.name for path in (tmp_path / "map").iterdir()} >= {"classes.tif", "probability.tif", "preview.png"}
    assert (tmp_path / "served" / "classes.tif").read_bytes() == (tmp_path / "map" / "classes.tif").read_bytes()
    stats = json.loads((tmp_path / "map" / "stats.json").read_text())
    assert stats["coordinates"]["location_source"] == "centre of each tile"
    assert len(stats["classes"]) == 13
    assert len(stats["bands"]) == 18
