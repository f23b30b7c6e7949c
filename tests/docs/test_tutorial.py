"""The tutorial: every command and program in it is run."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from tests.support.doc_pages import Shell, blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.breadth
def test_the_tutorial(shell: Shell) -> None:
    for block in blocks("../tutorial/first-job.md"):
        shell.take(block)

    result = shell.folder / "result"
    with Image.open(result / "preview.png") as preview:
        counts = preview.convert("RGB").getcolors() or []
    blue = sum(count for count, (r, g, b) in counts if b > max(r, g)) / sum(count for count, _ in counts)
    water = json.loads((result / "stats.json").read_text())["classes"][1]
    assert (water["name"], 30 < water["percent"] < 40) == ("water", True)
    assert 0.2 < blue < 0.5
