"""A Python file's words on its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.catalogue.script import Script, names_of, read_script
from penstock.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    path = folder / "thumbs.py"
    path.write_text(text)
    return path


def test_a_block_names_packages_and_a_python(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "import os\n# /// script\n# requires-python = '>=3.11'\n# dependencies = [\n#   'pandas>=2',\n#\n"
        "#   'penstock[worker]', 'penstock-extra',\n# ]\n# ///\n",
    )
    assert read_script(path) == Script(("pandas>=2", "penstock-extra"), ">=3.11")


def test_a_file_without_packages_runs_in_the_worker_s_environment(tmp_path: Path) -> None:
    for text in ("import os\n", "# /// script\n# dependencies = ['penstock']\n# ///\n"):
        assert not read_script(written(tmp_path, text)).has_environment


def test_a_block_of_another_type_is_not_read(tmp_path: Path) -> None:
    assert read_script(written(tmp_path, "# /// other\n# dependencies = ['pandas']\n# ///\n")) == Script()


def test_a_block_may_name_an_environment_that_is_ready(tmp_path: Path) -> None:
    text = "# /// script\n# dependencies = ['torch']\n# [tool.penstock]\n# environment = 'envs/torch'\n# ///\n"
    assert read_script(written(tmp_path, text)) == Script(environment=tmp_path / "envs/torch")


def test_the_lock_beside_the_file_chooses_the_packages_too(tmp_path: Path) -> None:
    path = written(tmp_path, "# /// script\n# dependencies = ['pandas']\n# ///\n")
    before = read_script(path).key
    (tmp_path / "thumbs.py.lock").write_text("version = 1\n")
    assert read_script(path).lock == "version = 1\n"
    assert read_script(path).key != before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# /// script\n# dependencies = [\n# ///\n", "is not TOML"),
        ("# /// script\n# dependencies = 'pandas'\n# ///\n", "a list of texts"),
        ("# /// script\n# requires-python = 3.11\n# ///\n", "are texts"),
        ("# /// script\n# dependencies = []\nimport penstock\n", "has no end: begin its lines with `#`"),
        ("# /// script\n# a = 1\n# ///\n\n# /// script\n# a = 1\n# ///\n", "several blocks"),
    ],
)
def test_a_wrong_block_is_refused_with_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"thumbs.py.*{said}"):
        read_script(written(tmp_path, text))


def test_names_of_models_are_read_without_running_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "import nothing_of_that_name, penstock\nfrom penstock import model\n@penstock.model\ndef Thumb(): ...\n"
        "@model(name='other', max_batch=4)\nclass Flowers: ...\n@property\ndef no(): ...\n"
        "@penstock.model()\nasync def later(): ...\n",
    )
    assert names_of(path) == ["thumb", "other", "later"]


def test_a_file_that_is_not_python_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"thumbs.py:2"):
        names_of(written(tmp_path, "import os\ndef (:\n"))
