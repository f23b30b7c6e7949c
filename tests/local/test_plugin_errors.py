"""Errors in a plugin's processor, as its author sees them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.local.test_plugin import RECORD, broken_plugin
from tests.support.catalogues import penstock

CODE = """
from pydantic import BaseModel

from penstock.errors import InvalidInput


class Request(BaseModel):
    refuse: bool = False


class Processor:
    request = Request
    outputs = ()

    def __init__(self, model):
        pass

    def pre_process(self, request, media):
        try:
            return decode()
        except ValueError as error:
            if request.refuse:
                raise InvalidInput("the file is damaged") from error
            raise


def decode():
    raise ValueError("byte 7 is odd")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a plugin, and a model that uses it."""
    broken_plugin(tmp_path, "fails", CODE)
    (tmp_path / "models.toml").write_text(RECORD.format(name="fails"))
    return tmp_path


def run(folder: Path, *words: str) -> tuple[int, str]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = penstock(folder, "run", "fails", "--catalogue", "models.toml", *words, PYTHONPATH=path)
    return done.returncode, done.stderr


@pytest.mark.breadth
@pytest.mark.parametrize("where", [[], ["--isolated"]])
def test_what_a_refused_input_was_made_of_is_shown_when_asked_for(folder: Path, where: list[str]) -> None:
    code, told = run(folder, "--param", "refuse=true", *where)
    assert (code, "invalid_input: the file is damaged" in told, "byte 7" in told) == (1, True, False)

    code, told = run(folder, "--param", "refuse=true", "-v", *where)
    assert (code, "invalid_input: the file is damaged" in told) == (1, True), told
    assert "in decode" in told
    assert "ValueError: byte 7 is odd" in told


def test_the_traceback_of_a_fault_begins_in_the_processor(folder: Path) -> None:
    code, told = run(folder)
    assert code == 1
    first, *_ = [line for line in told.splitlines() if line.startswith("  File ")]
    assert "plugin_that_fails.py" in first
    assert told.endswith("ValueError: byte 7 is odd\n")
