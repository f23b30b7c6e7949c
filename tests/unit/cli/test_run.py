"""Models that the command line names by their Python file."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.environments import of_files
from penstock.cli.run import of_file
from penstock.client.local_files import UsageProblem

TWO = """import penstock

@penstock.model
def one(text: str) -> str:
    return text

@penstock.model
def Two(text: str) -> str:
    return text
"""


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "my models.py"
    path.write_text(TWO)
    return path


def test_a_function_is_named_by_its_file(two: Path) -> None:
    assert of_file(f"{two}:Two", []) == ("two", [two])
    assert of_file("csmask", [two]) == ("csmask", [two])
    with pytest.raises(UsageProblem, match=r"several models: name one, e\.g\. .*my models\.py:one \(one, two\)"):
        of_file(str(two), [])


def test_a_file_of_weights_is_no_model(tmp_path: Path) -> None:
    weights = tmp_path / "net.gguf"
    weights.write_bytes(b"GGUF")
    with pytest.raises(UsageProblem, match="is a file, and no model: write a function that loads it"):
        of_file(str(weights), [])


def test_a_python_file_stands_for_all_its_models(two: Path) -> None:
    assert of_files(["csmask", str(two)], []) == (["csmask", "one", "two"], [two])
    assert of_files([], [two]) == ([], [two])
