"""A wrong value in one record of a catalogue: the command line tells of it as of its own model's problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.catalogues import penstock, toy

#: After the toy's own record.
WRONG = """
[models.wrong]
title = "Says something wrong"
runner = "fake"
processor = "raster-segmentation"
source = "."
revision = "1"
aliases = ["off"]
max_batch = "many"
"""
PROBLEM = "toy.toml: model 'wrong': max_batch: must be a valid integer, unable to parse string as an integer"
WORDS = ("--catalogue", "toy.toml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    catalogue = toy(tmp_path)
    catalogue.write_text(catalogue.read_text() + WRONG)
    return tmp_path


@pytest.mark.breadth
def test_it_is_listed_and_checked_beside_the_others(folder: Path) -> None:
    listed = json.loads(penstock(folder, "models", "list", *WORDS, "--json").stdout)
    problems = {model["name"]: model["problem"] for model in listed}
    assert (problems["toy"], problems["wrong"]) == (None, PROBLEM)
    assert PROBLEM in " ".join(penstock(folder, "models", *WORDS, COLUMNS="400").stdout.split())

    one = penstock(folder, "models", "check", "off", *WORDS, "--json")
    assert (one.returncode, [found["problems"] for found in json.loads(one.stdout)]) == (1, [[PROBLEM]])
    assert penstock(folder, "models", "check", "toy", *WORDS).returncode == 0


@pytest.mark.breadth(but=("off-command0",))
@pytest.mark.parametrize("command", [("run",), ("models", "pin"), ("models", "fetch"), ("models", "export")])
@pytest.mark.parametrize("name", ["wrong", "off"])
def test_what_needs_it_ends_with_the_code_of_a_wrong_configuration(
    folder: Path, command: tuple[str, ...], name: str
) -> None:
    done = penstock(folder, *command, name, *WORDS)
    assert (done.returncode, done.stdout) == (2, "")
    assert " ".join(done.stderr.split()) == f"penstock: {PROBLEM}"


@pytest.mark.breadth
def test_the_others_are_fetched_and_pinned(folder: Path) -> None:
    assert penstock(folder, "models", "fetch", "toy", *WORDS).returncode == 0
    assert "toy.toml" in penstock(folder, "models", "pin", "toy", *WORDS).stdout


@pytest.mark.breadth(every=4)
@pytest.mark.parametrize("command", [("models",), ("models", "check"), ("models", "pin", "toy"), ("run", "toy")])
def test_a_file_that_is_no_toml_is_an_error_of_every_command(folder: Path, command: tuple[str, ...]) -> None:
    (folder / "toy.toml").write_text("[models.toy\n")
    done = penstock(folder, *command, *WORDS)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("penstock: toy.toml is not TOML: ")
