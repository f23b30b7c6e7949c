"""Usage and tenants on the page: sums as a chart and a table, own ones for a tenant, all for an administrator."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from penstock.jobs import JobKey, State, Usage
from penstock.storage.journal import journal
from penstock.storage.redis import usage
from penstock.storage.redis.records import Outcome
from tests.browser.conftest import Site
from tests.support.browser import overflow_px, serious, tab, visit

pytestmark = [pytest.mark.slow, pytest.mark.breadth]

#: Folder for screenshots to look at; none are taken without it.
SHOTS = os.environ.get("PENSTOCK_SHOTS")


@pytest.fixture(scope="module")
def used(site: Site) -> Site:
    """Return the site with usage of two tenants on several days."""
    site.made.submit({"case": "usage"})
    held = site.made.claim()
    outcome = Outcome(State.SUCCEEDED, text="done", usage=Usage(90.0, 2_500_000, 640_000, 900, 100, 12_000_000))
    site.made.journal.run(journal.complete(held, outcome))
    today = usage.day_at(time.time())
    for tenant in ("acme", "other"):
        jobs = [
            usage.JobUsage(
                JobKey(tenant, f"{n}-{number}"), "earlier", "succeeded" if number else "failed",
                usage.day_number(today - timedelta(days=n)) * 86_400_000_000,
                {"device_us": (30 + 7 * (n % 5)) * 10**6, "bytes_in": 10**8, "bytes_out": 10**6 * n, "pixels": 10**7},
            )
            for n in range(1, 20)
            for number in range(10)
        ]  # fmt: skip
        site.made.jobs.run(usage.fold(tenant, "steps/earlier", jobs=jobs, sums={}))
    return site


def card(page: Page, name: str) -> Locator:
    return page.locator("section").filter(has=page.get_by_role("heading", name=name, exact=True))


def test_a_tenant_sees_its_own_usage_by_day_and_model(used: Site, browser: Browser) -> None:
    with tab(browser, used.url, key=used.read_key) as page:
        visit(page, "#/operate")
        shown = card(page, "Usage")
        table = shown.get_by_role("table", name="Usage")
        today = table.get_by_role("row").filter(has_text="made").first
        expect(today).to_contain_text("1 min 30 s")
        expect(today).to_contain_text("12,000,000")
        expect(shown.locator("canvas")).to_be_visible()
        words = "Device time of each day, at most 9 min 40 s; the table below has the figures"
        expect(shown.get_by_role("img")).to_have_attribute("aria-label", words)
        shown.get_by_label("Show").select_option("pixels")
        expect(shown.get_by_role("img")).to_contain_text("Pixels of each day")
        before = table.get_by_role("row").count()
        shown.get_by_label("Days").select_option("7")
        expect(table.get_by_role("row").filter(has_text="earlier")).to_have_count(6)
        assert before > 18
        expect(shown.get_by_label("Tenants")).to_have_count(0)
        expect(page.get_by_role("heading", name="Tenants", exact=True)).to_have_count(0)
        expect(card(page, "Key and limits")).to_contain_text("Device time a day")


def test_an_administrator_sees_all_tenants_with_their_limits_and_keys(used: Site, browser: Browser) -> None:
    with tab(browser, used.url, key=used.all_key) as page:
        visit(page, "#/operate")
        shown = card(page, "Usage")
        shown.get_by_label("Tenants").select_option("*")
        expect(
            shown.get_by_role("table", name="Usage").get_by_role("row").filter(has_text="other").first
        ).to_be_visible()
        tenants = card(page, "Tenants").get_by_role("table", name="Tenants")
        row = tenants.get_by_role("row").filter(has_text="acme")
        expect(row).to_contain_text("no limit")
        expect(row).to_contain_text("reader read")
        expect(tenants.get_by_role("row").filter(has_text="others read, submit")).to_have_count(1)


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_usage_is_accessible_and_fits_every_width(used: Site, browser: Browser, scheme: str, width: int) -> None:
    options = {"color_scheme": scheme, "reduced_motion": "reduce", "viewport": {"width": width, "height": 900}}
    with tab(browser, used.url, key=used.all_key, **options) as page:
        visit(page, "#/operate")
        expect(card(page, "Usage").locator("canvas")).to_be_visible()
        expect(card(page, "Tenants").get_by_role("table")).to_be_visible()
        assert (serious(page), overflow_px(page)) == ([], 0)
        if SHOTS:
            for name in ("Usage", "Tenants", "Key and limits"):
                card(page, name).screenshot(path=Path(SHOTS) / f"{name}-{scheme}-{width}.png")
