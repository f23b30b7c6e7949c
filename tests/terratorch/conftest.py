"""These tests need TerraTorch, which has an environment of its own: `make test-terratorch`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the folder's tests where there is no TerraTorch."""
    if find_spec("terratorch") is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs TerraTorch: make test-terratorch"))


@pytest.fixture(autouse=True)
def _without_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail at once where anything asks the hub for weights."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
