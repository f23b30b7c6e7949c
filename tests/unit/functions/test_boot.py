"""The start of a model process in an environment without Penstock."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

BOOT = str(files("penstock") / "functions" / "boot.py")


def test_a_file_is_described_where_no_package_is_installed(tmp_path: Path) -> None:
    path = tmp_path / "bare.py"
    path.write_text(
        "import importlib.util, penstock\n@penstock.model(title=str(importlib.util.find_spec('numpy')))\n"
        "def words(text: str) -> int:\n    return len(text.split())\n"
    )
    # -S leaves out all installed packages.
    words = [sys.executable, "-S", "-P", BOOT, "penstock.functions.child", "--describe", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    [described] = json.loads(done.stdout.splitlines()[-1])
    assert described["title"] == "None"
    assert described["schema"]["required"] == ["text"]
