"""Errors of IO processes: only those that a processor may raise arrive, and only their text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import DeviceLost, Fenced, InvalidInput, Issue, MediaTooLarge, PenstockError, ProcessorFailed
from penstock.workers.io import reports

MIB = 2**20


class Own(InvalidInput):
    """A plugin's own."""


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (MediaTooLarge("so large"), MediaTooLarge, "so large"),
        (Own("mine"), InvalidInput, "mine"),
        (DeviceLost("not yours"), ProcessorFailed, "not yours"),
        (Fenced(), ProcessorFailed, "The attempt's lease was lost"),
        (MemoryError(), ProcessorFailed, "1 MiB"),
        (OSError(12, "no memory"), ProcessorFailed, "1 MiB"),
        (OSError(28, "disk full"), PenstockError, "is full"),
        (KeyError("secret"), ProcessorFailed, "raised KeyError"),
        (InvalidInput("x" * 10_000), InvalidInput, "x" * 2000),
    ],
)
def test_errors_cross_as_what_a_processor_may_raise(
    raised: BaseException, kind: type[PenstockError], words: str
) -> None:
    error = reports.from_json(json.loads(json.dumps(reports.to_json(raised, MIB))))
    assert isinstance(error, kind)
    assert not isinstance(error, DeviceLost | Fenced)
    assert words in error.detail
    assert "secret" not in error.detail


def test_issues_cross_with_their_error() -> None:
    issues = [Issue("/input/x", "wrong")]
    assert list(reports.from_json(reports.to_json(InvalidInput("no", errors=issues), MIB)).errors) == issues


@pytest.mark.parametrize("data", [None, [], {}, {"error": "DeviceLost", "detail": "", "issues": []}, {"error": 1}])
def test_a_report_that_is_none_is_the_processors_failure(data: Any) -> None:
    assert type(reports.from_json(data)) is ProcessorFailed
