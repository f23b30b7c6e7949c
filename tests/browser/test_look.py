"""`make look`: from one command to the map of its result on the page, with one click."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from penstock.cli.demo import RESULT
from tests.support.browser import tab

pytestmark = [pytest.mark.slow, pytest.mark.breadth, pytest.mark.timeout(400)]
#: Milliseconds until the map is there, on a busy machine.
WAIT_MS = 60_000


def test_one_command_shows_the_map_until_it_is_interrupted(browser: Browser, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli", "demo", "--out", str(tmp_path / "out"), "--keep"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            said = []
            for line in demo.stdout:
                said.append(line)
                if "Ctrl-C" in line:
                    break
            found = re.search(r"^map +(\S+)$", "".join(said), re.MULTILINE)
            assert found is not None, "".join(said)
            address = urlsplit(found[1])
            service = f"{address.scheme}://{address.netloc}"
            with tab(browser, service) as page:
                page.goto(found[1])
                expect(page.get_by_role("table", name="Classes")).to_contain_text("water", timeout=WAIT_MS)
                expect(page.locator(".map canvas").first).to_be_visible(timeout=WAIT_MS)
            assert demo.poll() is None
            demo.send_signal(signal.SIGINT)
            assert demo.wait(90) == 0
        finally:
            demo.kill()
    assert {path.name for path in (tmp_path / "out").iterdir()} >= set(RESULT)
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{service}/health/live", timeout=5, trust_env=False)
