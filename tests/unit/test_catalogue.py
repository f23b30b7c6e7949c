"""`models.toml`: what a record may say, and how models are found by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.models import Limits, find, known_names, read_catalogue

RECORD = """
[models.{name}]
title = "A model"
runner = "fake"
processor = "echo"
source = "{source}"
revision = "1"
aliases = {aliases}
"""


def written(
    path: Path, name: str = "mine", source: str = "weights", aliases: tuple[str, ...] = (), more: str = ""
) -> Path:
    path.write_text(RECORD.format(name=name, source=source, aliases=list(aliases)) + more)
    return path


def test_the_shipped_catalogue_can_be_read() -> None:
    assert "csmask" in read_catalogue()


def test_a_model_is_found_by_its_name_and_its_aliases(tmp_path: Path) -> None:
    catalogue = read_catalogue(written(tmp_path / "a.toml", aliases=("clouds", "my.model")))
    assert all(find(catalogue, name) is catalogue["mine"] for name in ("mine", "clouds", "my.model"))
    assert find(catalogue, "other") is None
    assert known_names(catalogue) == "csmask, mine (clouds, my.model)"


@pytest.mark.parametrize("alias", ["csmask", "taken"])
def test_a_name_belongs_to_one_model(tmp_path: Path, alias: str) -> None:
    other = written(tmp_path / "other.toml", name="other", aliases=("taken",))
    mine = written(tmp_path / "mine.toml", aliases=(alias,))
    with pytest.raises(
        ConfigError, match=rf"alias '{alias}' of model 'mine' is a name of model '(csmask|other)' already"
    ):
        read_catalogue(other, mine)


def test_a_later_record_replaces_one_of_its_name_with_its_aliases(tmp_path: Path) -> None:
    first = written(tmp_path / "first.toml", aliases=("old",))
    second = written(tmp_path / "second.toml", aliases=("new",))
    catalogue = read_catalogue(first, second)
    assert catalogue["mine"].aliases == ("new",)
    assert find(catalogue, "old") is None


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("weights", "{folder}/weights"),
        ("../weights/model.onnx", "{folder}/../weights/model.onnx"),
        ("/srv/weights", "/srv/weights"),
        ("package:ukis_csmask/model.onnx", "package:ukis_csmask/model.onnx"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("hf://google/vit", "hf://google/vit"),
    ],
)
def test_a_relative_source_starts_at_its_catalogue(tmp_path: Path, source: str, meant: str) -> None:
    folder = tmp_path / "catalogues"
    folder.mkdir()
    catalogue = read_catalogue(written(folder / "models.toml", source=source))
    assert catalogue["mine"].source == meant.format(folder=folder)


def test_every_limit_is_read(tmp_path: Path) -> None:
    more = "limits = { max_bytes = 1, max_pixels = 2, max_tiles = 3, max_items = 4, max_tokens = 5 }"
    catalogue = read_catalogue(written(tmp_path / "models.toml", more=more))
    assert catalogue["mine"].limits == Limits(max_bytes=1, max_pixels=2, max_tiles=3, max_items=4, max_tokens=5)


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("colour = 1", "colour"),
        ("max_batch = 0", "max_batch"),
        ("limits = { max_bites = 1 }", "limits.max_bites"),
        ("files = { 'a.json' = 'beef' }", "files.a.json"),
        ("=", "models.toml is not TOML"),
    ],
)
def test_what_does_not_fit_is_a_config_error_with_its_place(tmp_path: Path, more: str, place: str) -> None:
    with pytest.raises(ConfigError, match=place):
        read_catalogue(written(tmp_path / "models.toml", more=more))
