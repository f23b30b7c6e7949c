"""A real Chromium for the tests of the page, and what they ask it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
UI = Path(__file__).parents[2] / "api" / "ui"
BUNDLE = UI / "dist" / "index.html"
AXE = UI / "node_modules" / "axe-core" / "axe.min.js"
#: A browser that calls nobody.
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
#: Milliseconds that the page may take to show something.
PATIENCE_MS = 20_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium with an empty profile; skip without it or the bundle, and fail in CI."""
    for path, remedy in ((CHROMIUM, "apt-get install chromium"), (BUNDLE, "make page"), (AXE, "make page")):
        if not path.is_file():
            reason = f"needs {path}: {remedy}"
            pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*OPTIONS])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(
    browser: Browser, url: str, *, key: str | None = None, store: str | None = None, **context: Any
) -> Iterator[Page]:
    """Open the page in a context of its own; at the end no script may have failed, and no policy been broken.

    With `key`, the page asks for it first. `store` is the origin of an S3 store that the page may ask too.
    """
    own = browser.new_context(viewport=context.pop("viewport", {"width": 1280, "height": 900}), **context)
    own.set_default_timeout(PATIENCE_MS)
    page = own.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    outside: list[str] = []
    inside = (url, "blob:", "data:", *([store] if store else []))
    page.on("request", lambda request: None if request.url.startswith(inside) else outside.append(request.url))
    page.goto(f"{url}/ui")
    if key is not None:
        page.get_by_label("Key").fill(key)
        page.get_by_role("button", name="Open").click()
    try:
        yield page
        assert wrong == []
        assert outside == [], "the page asked another service"
    finally:
        own.close()


def visit(page: Page, place: str) -> None:
    """Go to a view by its address, as a link does: the key stays in memory."""
    page.evaluate("place => { location.hash = place }", place)


def serious(page: Page) -> list[str]:
    """Return the serious and critical findings of axe-core on the page as it is."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run()")
    return [
        f"{violation['id']}: {node['target']} {node['failureSummary']}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def overflow_px(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    width: int = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width
