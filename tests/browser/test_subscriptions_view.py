"""Subscriptions on the page: their state, what was seen last, and why items were skipped."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.browser.conftest import Site
from tests.support.browser import overflow_px, serious, tab, visit

pytestmark = [pytest.mark.slow, pytest.mark.breadth]

JOB = "0198f6a0-0000-7000-8000-000000000001"
NOTE = {"at": "2026-01-04T01:00:00Z", "collection": "sentinel-2-l2a", "time": "2026-01-03T10:00:00Z"}
LAGOON = {
    "name": "lagoon", "object": "subscription", "state": "waiting", "reason": "the tenant has used its device seconds",
    "stac": "https://stac.example/v1", "collections": ["sentinel-2-l2a"], "model": "csmask", "jobs": 7,
    "last_look_at": "2026-01-04T01:00:00Z", "seen_until": "2026-01-04T01:00:00Z",
    "last_look": {"found": 3, "unread": {"without a time": 2}},
    "notes": [
        {**NOTE, "item": "S2A_2", "decision": "filter", "reason": "eo:cloud_cover is 90", "job": None},
        {**NOTE, "item": "S2A_1", "decision": "job", "reason": "", "job": JOB},
    ],
}  # fmt: skip


def answer(route: Route) -> None:
    route.fulfill(json={"subscriptions": [LAGOON]})


def test_a_subscription_is_shown_with_its_latest_items(site: Site, browser: Browser) -> None:
    with tab(browser, site.url, key=site.all_key) as page:
        page.route("**/v1/subscriptions", answer)
        visit(page, "#/operate")
        row = page.get_by_role("table", name="Subscriptions").get_by_role("row").nth(1)
        for text in ("lagoon", "waiting", "csmask", "https://stac.example/v1: sentinel-2-l2a", str(LAGOON["reason"])):
            expect(row).to_contain_text(text)
        items = page.get_by_role("table", name="Latest items of lagoon")
        expect(items.get_by_role("row").nth(1)).to_contain_text("eo:cloud_cover is 90")
        expect(items.get_by_role("link", name="job")).to_have_attribute("href", f"#/job/{JOB}")
        expect(page.get_by_text("lagoon passed over 2 items without a time.")).to_be_visible()
        assert (overflow_px(page), serious(page)) == (0, [])


def test_without_any_the_page_says_how_to_make_one(site: Site, browser: Browser) -> None:
    with tab(browser, site.url, key=site.all_key) as page:
        visit(page, "#/operate")
        expect(page.get_by_text("penstock subscriptions create")).to_be_visible()
