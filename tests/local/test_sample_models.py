"""`penstock sample-model`: each kind is written, said to be random, and run offline."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from shlex import split
from typing import Any

import pytest

from penstock import Engine
from penstock.cli.main import app
from penstock.cli.params import assign_texts, means_texts, parse_params
from penstock.cli.samples import FILES, write_file
from penstock.client.local_files import assign_files
from penstock.errors import ConfigError
from penstock.local.sample_models import KINDS, write_sample
from tests.support.command_line import Shell
from tests.support.doc_pages import blocks


@pytest.mark.breadth
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_written_and_runs_as_its_hint_says(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models.toml").write_text(record := write_sample(kind, tmp_path / "tiny"))
    assert "random" in tomllib.loads(record)["models"]["tiny"]["title"]
    assert sum(path.stat().st_size for path in Path("tiny").rglob("*")) < 5_000_000
    words = split(KINDS[kind].arguments)
    if words and Path(words[0]).suffix in FILES:
        write_file(Path(words[0]), size_px=128 if words[0].endswith(".tif") else None)
    with Engine(catalogue=["models.toml"]) as engine:
        _, entry = engine.installation.servable("tiny")
        result = engine.run("tiny", input=_input(entry.input_schema, words), out="out")
    assert result.data or result.artifacts


def _input(schema: Mapping[str, Any], words: list[str]) -> dict[str, Any]:
    """Return the input of `penstock run`'s arguments."""
    at = words.index("--param") if "--param" in words else len(words)
    arguments, document = words[:at], parse_params(words[at + 1 :], schema)
    if means_texts(arguments, schema, lambda word: Path(word).is_file()):
        return document | assign_texts(arguments, schema)
    return document | assign_files(arguments, schema, taken=document)


@pytest.mark.parametrize("name", ["My Model", "a b", 'a"b', "Grüße"])
def test_a_folder_whose_name_no_model_may_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a model"):
        write_sample("tabular", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_a_point_is_one_table(tmp_path: Path) -> None:
    assert list(tomllib.loads(write_sample("tabular", tmp_path / "a.b"))["models"]) == ["a.b"]


def test_a_library_that_is_missing_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModuleNotFoundError):
        write_sample("tabular", tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


async def test_the_command_lists_kinds_and_refuses_others(tmp_path: Path) -> None:
    penstock = Shell({}, folder=tmp_path)
    listed = await penstock("sample-model", "list")
    assert [line.split()[0] for line in listed.out.splitlines()] == list(KINDS)
    wrong = await penstock("sample-model", "text-generatio")
    assert (wrong.code, "did you mean 'text-generation'?" in wrong.err) == (2, True)
    (tmp_path / "there").mkdir()
    taken = await penstock("sample-model", "text-generation", "--out", "there")
    assert (taken.code, "there exists" in taken.err) == (2, True)


PAGE = "try-a-model.md"


def test_the_page_has_the_lines_of_every_kind() -> None:
    lines = [line for block in blocks(PAGE) if block.language == "bash" for line in block.code.splitlines()]
    for kind, made in KINDS.items():
        assert f"penstock sample-model {kind} > {kind}.toml" in lines
        assert f"penstock run my-{kind} --catalogue {kind}.toml {made.arguments}" in lines


@pytest.mark.breadth
@pytest.mark.timeout(300)
def test_the_lines_of_pages_and_embeddings_run_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(PAGE):
        if block.title:
            Path(block.title).write_text(block.code)
    Path("text-generation.toml").write_text(write_sample("text-generation", tmp_path / "my-text-generation"))
    lines = [line for block in blocks(PAGE) if block.language == "bash" for line in block.code.splitlines()]
    wanted = [line for line in lines if any(word in line for word in ("rows.npy", "page.png", "prompt_embeds"))]
    ran = dict.fromkeys(line for line in wanted if "my-tensor" not in line)
    for line in ran:
        app(split(line)[1:], standalone_mode=False)
    assert len(ran) == 5
    assert "Annual Report" in capsys.readouterr().out
