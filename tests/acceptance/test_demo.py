"""The demo as a user runs it on a scene of their own that is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.breadth
def test_a_failed_demo_leaves_the_job_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "text.tif").write_text("no scene")
    command = [sys.executable, "-m", "penstock.cli", "demo", "--scene", "text.tif"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)

    assert done.returncode == 1
    assert [path.name for path in (tmp_path / "demo-output").iterdir()] == ["job.json"]
    job = json.loads((tmp_path / "demo-output" / "job.json").read_text())
    assert (job["status"], job["error"]["code"]) == ("failed", "media_unreadable")
    assert job["error"]["detail"] in done.stderr
