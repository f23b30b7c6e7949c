"""Drop rules on the page: what they take and ignore, and why objects failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.browser.conftest import Site
from tests.support.browser import overflow_px, serious, tab, visit

pytestmark = [pytest.mark.slow, pytest.mark.breadth]

#: Folder for screenshots to look at; none are taken without it.
SHOTS = os.environ.get("PENSTOCK_SHOTS")
REASON = "the request is invalid: /input/labels is required"
RULE = {
    "name": "inbox", "bucket": "file:///srv/photos", "prefix": "in/", "model": "vit", "tenant": "default",
    "events": None, "problem": f"all 2 objects failed: {REASON}",
    "last_pass": {
        "found": 2, "waiting": 0, "failed": 2, "took_s": 0.1, "age_s": 2.0, "takes": [".jpg", ".png"], "ignored": 3,
        "ignored_files": ["in/a.docx", "in/b.docx"], "failures": {"in/a.jpg": REASON, "in/b.jpg": REASON},
    },
}  # fmt: skip


def answer(route: Route) -> None:
    route.fulfill(json={"rules": [RULE], "events_waiting": 0})


def test_a_rule_is_shown_with_its_ignored_and_failed_files(site: Site, browser: Browser) -> None:
    with tab(browser, site.url, key=site.all_key) as page:
        page.route("**/v1/drops", answer)
        visit(page, "#/operate")
        rules = page.get_by_role("table", name="Drop rules")
        row = rules.get_by_role("row").nth(1)
        for text in ("inbox", "file:///srv/photos/in/", "vit", ".jpg .png", f"all 2 objects failed: {REASON}"):
            expect(row).to_contain_text(text)
        ignored = page.get_by_text(
            "inbox ignores 3 files without one of its suffixes (.jpg .png): in/a.docx, in/b.docx, ..."
        )
        expect(ignored).to_be_visible()
        failed = page.get_by_role("table", name="Failed objects of inbox").get_by_role("row").nth(2)
        assert failed.get_by_role("cell").all_inner_texts() == ["in/b.jpg", REASON]
        expect(page.get_by_text("penstock drops retry inbox")).to_be_visible()
        assert (overflow_px(page), serious(page)) == (0, [])
        if SHOTS:
            page.get_by_role("heading", name="Drop rules").scroll_into_view_if_needed()
            page.screenshot(path=Path(SHOTS) / "drops.png", full_page=True)


def test_without_rules_the_page_says_how_to_make_one(site: Site, browser: Browser) -> None:
    with tab(browser, site.url, key=site.all_key) as page:
        visit(page, "#/operate")
        expect(page.get_by_text("There are none: add [[drops]] to penstock.toml.")).to_be_visible()
