"""The page of supported models is made from what the tests ran."""

from __future__ import annotations

from tests.what_runs.page import PAGE, page


def test_the_page_of_supported_models_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.what_runs`"
