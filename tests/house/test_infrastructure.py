"""The page on infrastructure names each file of infra/, and a target of the Makefile or a step of CI for each."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "infrastructure.md").read_text(encoding="utf-8")
#: Rows of the tables: the files, and what runs or checks them.
ROWS = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", PAGE, re.MULTILINE)
NAMED = [name for files, _ in ROWS for name in re.findall(r"`([^`]+)`", files)]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_each_file_of_infra_is_named_once() -> None:
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "infra"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    files = {Path(name).relative_to("infra").as_posix() for name in listed if (ROOT / name).exists()}
    assert len(files) > 30
    assert sorted(NAMED) == sorted(files)


@pytest.mark.parametrize(("files", "command"), ROWS)
def test_each_file_has_a_command_that_is_there(files: str, command: str) -> None:
    found = re.findall(r"`make ([a-z-]+)`", command)
    assert found or "`.ci/run`" in command, f"nothing runs {files}"
    assert set(found) <= TARGETS


def test_ci_runs_the_tests_of_infrastructure() -> None:
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for target in ("helm-test", "aws-test", "image-test"):
        assert re.search(rf"^ *timed .*make {target}$", steps, re.MULTILINE), target
