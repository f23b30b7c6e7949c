"""Inputs are refused before the model is loaded, which may take a minute: here loading would fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import penstock
from penstock.errors import InputError, ModelUnavailable
from penstock.jobs import Phase
from tests.support.catalogues import penstock as cli
from tests.support.hub import a_vit

pytestmark = pytest.mark.breadth

RECORD = """
[models.damaged]
title = "Its weights cannot be read"
runner = "transformers"
processor = "image-classification"
source = "files"
revision = "1"
limits = { max_items = 2, max_bytes = 50_000, max_pixels = 10_000 }
"""


@pytest.mark.parametrize(("out", "why"), [("taken/sub", "Not a directory"), ("/proc/x", "No such file")])
def test_a_folder_that_cannot_be_made_is_said_first(folder: Path, out: str, why: str) -> None:
    (folder / "taken").write_text("a file")
    done = cli(folder, "run", "damaged", "good.png", "--catalogue", "models.toml", "--out", out)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"cannot write files in {out}: {why}" in done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = a_vit(tmp_path / "files")
    recipe = '{"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}'
    (files / "preprocessor_config.json").write_text(recipe)
    (files / "model.safetensors").write_bytes(b"damaged")
    (tmp_path / "models.toml").write_text(RECORD)
    Image.new("RGB", (32, 32)).save(tmp_path / "good.png")
    Image.new("RGB", (101, 100)).save(tmp_path / "wide.png")
    Image.effect_noise((200, 200), 99).save(tmp_path / "heavy.bmp")
    (tmp_path / "text.png").write_text("no picture")
    return tmp_path


@pytest.fixture(params=[False, True], ids=["here", "isolated"])
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[penstock.Engine]:
    with penstock.Engine(catalogue=[folder / "models.toml"], isolated=request.param) as engine:
        yield engine


def test_a_good_input_finds_that_the_model_cannot_be_loaded(engine: penstock.Engine, folder: Path) -> None:
    phases: list[Phase] = []
    with pytest.raises(ModelUnavailable):
        engine.run("damaged", images=folder / "good.png", on_progress=lambda phase, _: phases.append(phase))
    assert phases == [Phase.PREPROCESSING, Phase.LOADING]


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("invalid_input", {}),
        ("invalid_input", {"images": "good.png", "topk": 3}),
        ("invalid_input", {"images": "good.png", "top_k": "three"}),
        ("invalid_input", {"images": ["good.png"] * 3}),
        ("media_not_found", {"images": "gone.png"}),
        ("media_too_large", {"images": "heavy.bmp"}),
        ("media_too_large", {"images": "wide.png"}),
        ("media_unreadable", {"images": "text.png"}),
    ],
)
def test_a_wrong_input_is_refused_before(
    engine: penstock.Engine, folder: Path, code: str, wrong: dict[str, Any]
) -> None:
    def here(name: str) -> str:
        return str(folder / name)

    images = wrong.get("images", [])
    given = {"images": here(images) if isinstance(images, str) else [here(name) for name in images]} if images else {}
    phases: list[Phase] = []
    with pytest.raises(InputError) as refused:
        engine.run("damaged", **(wrong | given), on_progress=lambda phase, _: phases.append(phase))
    assert (refused.value.code, Phase.LOADING in phases) == (code, False)
