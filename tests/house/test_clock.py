"""Redis TIME is the only clock of the job store."""

from __future__ import annotations

import ast
import re
from pathlib import Path

STORE = Path(__file__).parents[2] / "storage" / "redis"
#: Names by which Python's clocks are called.
CLOCKS = {"now", "utcnow", "today", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter"}


def test_the_job_store_reads_no_clock_but_that_of_redis() -> None:
    trees = {path.name: ast.parse(path.read_text(encoding="utf-8")) for path in STORE.glob("*.py")}
    called = {
        (name, getattr(node.func, "attr", getattr(node.func, "id", "")))
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    assert len(trees) > 10
    assert [place for place in called if place[1] in CLOCKS] == []


def test_the_scripts_read_no_clock_but_that_of_redis() -> None:
    scripts = {path.name: path.read_text(encoding="utf-8") for path in STORE.rglob("*.lua")}
    assert [name for name, code in scripts.items() if re.search(r"\bos\.(time|clock|date)\b", code)] == []
    assert any("redis.call('TIME')" in code for code in scripts.values())
