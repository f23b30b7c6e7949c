"""Kinds that ship as functions: one file each, which nothing else in the product names."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
POINTS = sorted(entry_points(group="penstock.functions"), key=lambda point: point.name)
PRODUCT = [
    path
    for folder in ("src/penstock", "api", "workers", "processors", "storage")
    for path in (ROOT / folder).rglob("*.py")
    if "node_modules" not in path.parts
]


def test_every_file_of_kinds_has_an_entry_point() -> None:
    files = {path.stem for path in (ROOT / "src/penstock/kinds").glob("*.py")} - {"__init__"}
    assert files == {point.module.rpartition(".")[2] for point in POINTS}


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_nothing_else_names_a_kind(point: EntryPoint) -> None:
    own = ROOT / "src" / Path(*point.module.split(".")).with_suffix(".py")
    words = (f'"{point.name}"', point.module.rpartition(".")[2], point.attr)
    found = [path for path in PRODUCT if path != own and any(word in path.read_text() for word in words)]
    assert own.is_file()
    # The comment of the field `function` has a kind as its example.
    assert [path for path in found if path.name != "models.py"] == []
