"""Ready records: a shipped record becomes one of your own, with its commit and the hashes of its files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tomllib
from pathlib import Path

import pytest

from penstock.catalogue.records import read_catalogue
from penstock.errors import ConfigError, ModelUnavailable
from penstock.local.ready import add_ready, ready_records
from tests.support.command_line import Done, Shell
from tests.support.fake_hub import COMMIT, a_hub

REPOSITORY = "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-TL-Sen1Floods11"
FILES = {"config.json": b"{}", "model.safetensors": b"weights", "README.md": b"words", "notebook.ipynb": b"{}"}


def run(folder: Path, *words: str, **variables: str) -> Done:
    own = {"PENSTOCK_DATA": str(folder / "data"), "PENSTOCK_MODEL_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "0"}
    shell = Shell({**own, **variables}, folder)
    return asyncio.run(shell(*words))


def test_every_ready_record_is_valid_and_no_model_of_the_service() -> None:
    known = ready_records()
    embeddings = {"clay-embeddings", "olmoearth-embeddings", "prithvi-embeddings", "terramind-embeddings"}
    maps = {"granite-biomass", "prithvi-burn-scars", "prithvi-crops", "prithvi-floods", "s2cloudless"}
    assert set(known) == maps | embeddings
    assert not set(known) & set(read_catalogue())


def test_a_record_is_fetched_pinned_and_appended(tmp_path: Path) -> None:
    catalogue = tmp_path / "models.toml"
    catalogue.write_text(
        '[models.other]\ntitle = "Other"\nrunner = "onnx"\nprocessor = "tabular"\nsource = "x"\nrevision = "1"'
    )
    with a_hub(REPOSITORY, FILES) as hub:
        done = run(tmp_path, "models", "add", "prithvi-floods", "--json", HF_ENDPOINT=hub)
        assert done.code == 0, done.err
    assert done.document()["revision"] == COMMIT
    models = tomllib.loads(catalogue.read_text())["models"]
    assert set(models) == {"other", "prithvi-floods"}
    pinned = {name: hashlib.sha256(FILES[name]).hexdigest() for name in ("config.json", "model.safetensors")}
    assert models["prithvi-floods"]["files"] == pinned
    assert models["prithvi-floods"]["revision"] == COMMIT
    with pytest.raises(ConfigError, match="has a record of prithvi-floods already"):
        add_ready("prithvi-floods", catalogue, lambda *_: {})


def test_the_hash_of_a_source_that_is_one_file_is_its_own(tmp_path: Path) -> None:
    with a_hub("made-with-clay/Clay", {}) as hub:
        made = add_ready("clay-embeddings", tmp_path / "models.toml", lambda *_: {"": "ab" * 32}, hub=hub)
    assert (made.revision, made.files, made.sha256) == (COMMIT, {}, "ab" * 32)


@pytest.mark.breadth
def test_of_a_record_of_one_file_that_file_alone_is_fetched_and_pinned(tmp_path: Path) -> None:
    files = {"v1.5/clay-v1.5.ckpt": b"clay 1.5", "v1/clay-v1-base.ckpt": b"clay 1", "config.json": b"{}"}
    with a_hub("made-with-clay/Clay", files) as hub:
        done = run(tmp_path, "models", "add", "clay-embeddings", "--json", HF_ENDPOINT=hub)
    assert done.code == 0, done.err
    made = read_catalogue(tmp_path / "models.toml")["clay-embeddings"]
    assert (made.revision, made.files) == (COMMIT, {})
    assert made.sha256 == done.document()["sha256"] == hashlib.sha256(b"clay 1.5").hexdigest()
    fetched = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix == ".ckpt"]
    assert fetched == ["clay-v1.5.ckpt"]


def test_nothing_is_written_where_the_hub_cannot_be_reached(tmp_path: Path) -> None:
    catalogue = tmp_path / "models.toml"
    with pytest.raises(ModelUnavailable, match="does not tell the commit of ibm-nasa-geospatial/Prithvi"):
        add_ready("prithvi-floods", catalogue, lambda *_: {}, hub="http://127.0.0.1:9")
    with a_hub(REPOSITORY, {}) as hub:
        done = run(tmp_path, "models", "add", "prithvi-floods", HF_ENDPOINT=hub)
    assert done.code != 0
    assert "prithvi-floods" in done.err
    assert not catalogue.exists()


def test_a_catalogue_that_cannot_be_read_stays_as_it_is(tmp_path: Path) -> None:
    catalogue = tmp_path / "models.toml"
    catalogue.write_text("[models.cut\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        add_ready("s2cloudless", catalogue, lambda *_: {})
    assert catalogue.read_text() == "[models.cut\n"


def test_a_record_of_a_package_needs_no_hub(tmp_path: Path) -> None:
    made = add_ready("s2cloudless", tmp_path / "models.toml", lambda *_: {}, hub="http://127.0.0.1:9")
    assert made == ready_records()["s2cloudless"]


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'prithvi-floods'"):
        add_ready("prithvi-flood", tmp_path / "models.toml", lambda *_: {})
    listed = run(tmp_path, "models", "add", "--json")
    assert {row["model"] for row in json.loads(listed.out)} == set(ready_records())
