"""Skips all of this folder unless `make aws-test` runs; gives the tests credentials of nobody."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest


def _reason() -> str:
    """Return the reason why these tests cannot run; empty where they can."""
    if os.environ.get("PENSTOCK_AWS_TEST") != "1":
        return "checks the template for AWS: run `make aws-test`"
    absent = [each for each in ("cfnlint", "moto") if importlib.util.find_spec(each) is None]
    return f"{', '.join(absent)}: not installed" if absent else ""


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Skip the folder before its modules import boto3, moto and cfn-lint, which takes seconds."""
    if reason := _reason():
        pytest.skip(f"{module_path.parent.name}: {reason}", allow_module_level=True)


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test from reaching an account."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
