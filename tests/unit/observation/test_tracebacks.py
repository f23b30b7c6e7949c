"""A traceback as one line names the author's own code."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from penstock.errors import InvalidInput
from penstock.json_body import parse_json
from penstock.observation.listening import error_of, place_of, text_of


def raised(fault: Callable[[], object]) -> str:
    with pytest.raises(Exception) as found:  # noqa: PT011
        fault()
    return "".join(traceback.format_exception(found.value))


def of_their_own() -> None:
    raise ValueError("boom\nof two lines")


def by_a_library() -> None:
    int("no number")
    raise AssertionError


def by_the_standard_library() -> None:
    import json

    json.loads("{")


def wrapped() -> None:
    try:
        by_a_library()
    except ValueError as error:
        raise InvalidInput("no") from error


def deep_in_penstock() -> None:
    parse_json(b"{")


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (of_their_own, "of_their_own"),
        (by_a_library, "by_a_library"),
        (by_the_standard_library, "by_the_standard_library"),
        (wrapped, "wrapped"),
        (deep_in_penstock, "deep_in_penstock"),
    ],
)
def test_the_place_is_the_innermost_frame_of_the_authors_own_code(fault: Callable[[], object], name: str) -> None:
    place = place_of(raised(fault)) or ""
    file, _, where = place.partition(":")
    assert (file, where.partition(" in ")[2]) == ("test_tracebacks.py", name)


def test_without_own_code_the_innermost_frame_is_named() -> None:
    frames = '  File "/v/site-packages/x/a.py", line 3, in run\n  File "/v/site-packages/y/b.py", line 7, in go\n'
    assert place_of(f"Traceback (most recent call last):\n{frames}ValueError: boom") == "b.py:7 in go"
    assert place_of("ValueError: boom") is None
    assert (error_of("a\n\nValueError: boom\n"), error_of("")) == ("ValueError: boom", "")


def test_a_line_of_a_job_names_the_place_and_the_model_and_no_folder() -> None:
    trace = "Traceback (most recent call last):\n  File \"/srv/secret/mine.py\", line 12, in prepare\nKeyError: 'b'"
    event = {"event": "processor.failed", "level": "error", "model": "mine", "job": "default/1", "exception": trace}
    assert text_of(event) == "processor.failed: KeyError: 'b' (mine.py:12 in prepare, model mine)"
