"""The table of `penstock batch list` in a terminal of 80 columns."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from penstock.cli.batch import batch_table
from penstock.client.answers import Batch
from penstock.client.decoding import read


def test_no_heading_of_a_list_of_batches_is_cut() -> None:
    batch = read(
        Batch,
        {
            "id": "afa202b2-9ca7-5a0f-952e-c27ebee8d10a", "status": "completed", "created_at": "2026-11-24T16:32:00Z",
            "deadline_at": "2026-11-25T16:32:00Z",
            "counts": {"total": 4, "succeeded": 2, "invalid": 2},
        }
    )  # fmt: skip
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    console.print(batch_table(console, [batch]))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].split() == ["batch", "status", "created", "lines", "succeeded"]
    assert max(map(len, lines)) <= 80
