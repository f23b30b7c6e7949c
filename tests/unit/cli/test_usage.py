"""The table of `penstock usage` in a terminal of 80 columns."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from penstock.cli.usage import _bytes, _short, usage_table
from penstock.client.answers import UsageReport
from penstock.client.decoding import read

SUMS = {
    "jobs": {"succeeded": 123456, "failed": 1234}, "device_seconds": 86400.5,
    "bytes_in": 123456789, "bytes_out": 123456789,
    "tokens_in": 123456, "tokens_out": 123456, "pixels": 123456789,
}  # fmt: skip


def test_each_row_of_usage_is_one_line_of_the_terminal() -> None:
    row = {"day": "2026-11-24", "tenant": "a-tenant", "model": "a-model-with-a-long-name", **SUMS}
    found = read(UsageReport, {"from": "2026-11-24", "to": "2026-11-24", "rows": [row, row], "total": SUMS})
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    console.print(usage_table(console, found, with_tenant=True))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    assert all(part in lines[1] for part in ("2026-11-24", "a-tenant", "86400.5", "247 k", "123 M"))


def test_numbers_and_bytes_next_to_a_step_have_no_exponent() -> None:
    shown = {0: "", 999: "999", 1000: "1 k", 155_300: "155 k", 999_400: "999 k", 999_600: "1 M", 999_999_999: "1 G"}
    assert {count: _short(count) for count in shown} == shown
    sizes = {0: "", 300: "300 bytes", 999_600: "999.6 kB", 1_580_000: "1.6 MB"}
    assert {count: _bytes(count) for count in sizes} == sizes
