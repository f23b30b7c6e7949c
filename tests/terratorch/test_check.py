"""`penstock models check` refuses what TerraTorch cannot build, without reading the numbers of the weights."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.workers.engine.checking import shared
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.terratorch.checkpoint import Checkpoint
from penstock.workers.engine.terratorch.network import build, outline
from tests.terratorch.test_backbones import TERRAMIND, backbone, published, vectors
from tests.terratorch.test_heads import NECKS, arguments
from tests.terratorch.tiny import config, network, record, save

CHECK = Runners.installed().check


def unet(folder: Path, **changed: Any) -> Model:
    """Return the record of a segmentation whose config was changed after its weights were saved."""
    args = arguments("UNetDecoder", num_classes=3)
    save(folder, "segmentation", args, network("segmentation", args))
    (folder / "config.json").write_text(json.dumps(config("segmentation", {**args, **changed})))
    return record(folder, classes=3)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a backbone": ({"backbone": "prithvi_eo_v2_30"}, r"prithvi_eo_v2_30, .* \(did you mean prithvi_eo_v2_300\?\)"),
    "a decoder": ({"decoder": "UNetDecodr"}, r"decoder UNetDecodr, .* \(did you mean UNetDecoder\?\)"),
    "a neck": ({"necks": [*NECKS[:1], {"name": "Nothing"}]}, "the neck Nothing, which TerraTorch does not have"),
    "a library's name": ({"backbone": "timm_resnet9999"}, "names the backbone timm_resnet9999"),
    "an argument": ({"decoder_nothing": 1}, "TerraTorch cannot build the network of config.json .*nothing"),
    "no decoder": ({"decoder": None}, "TerraTorch cannot build .*decoder must be provided"),
    "the width": ({"backbone_embed_dim": 32}, "have other shapes than the network of config.json"),
    "the depth": ({"backbone_depth": 5}, r"lacks 12 of the weights .* the first is 'encoder.blocks.4"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_terratorch_cannot_build_is_refused_before_it_is_loaded(wrong: str, tmp_path: Path) -> None:
    changed, sentence = WRONG[wrong]
    checkpoint = Checkpoint.of(unet(tmp_path / "model", **changed))
    for made in (outline, build):
        with pytest.raises(ModelUnavailable, match=sentence):
            made(checkpoint)


@pytest.fixture
def custom_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a file that TerraTorch runs when it is imported: by the check alone, since this process has imported it."""
    importlib.import_module("terratorch")
    shared(Path(sys.executable)).end()
    file = tmp_path / "custom_modules" / "__init__.py"
    file.parent.mkdir()
    monkeypatch.chdir(tmp_path)
    yield file
    shared(Path(sys.executable)).end()


@pytest.mark.fast
def test_the_check_asks_terratorch_in_one_process_for_all_records(custom_module: Path, tmp_path: Path) -> None:
    custom_module.write_text("print('imported', file=open('imports.txt', 'a'))")
    wrong = unet(tmp_path / "wrong", decoder="NoSuchDecoder")
    with pytest.raises(ModelUnavailable, match=r"model 'tiny' .* the decoder NoSuchDecoder, which TerraTorch does not"):
        CHECK(wrong)
    CHECK(unet(tmp_path / "sound"))
    assert (tmp_path / "imports.txt").read_text().splitlines() == ["imported"]


def test_a_process_that_dies_is_a_problem_of_the_model(custom_module: Path, tmp_path: Path) -> None:
    model = unet(tmp_path / "model")
    custom_module.write_text("raise SystemExit('no network for you')")
    with pytest.raises(ModelUnavailable, match="the check of model 'tiny' ended with 1: no network for you"):
        CHECK(model)


def test_terramind_which_reads_numbers_while_it_is_built_is_checked(tmp_path: Path) -> None:
    own = backbone(backbone=TERRAMIND["backbone"], modalities=["S2L2A"])
    torch.save(own.state_dict(), tmp_path / "TerraMind_v1_tiny.pt")
    model = vectors(tmp_path, terratorch=TERRAMIND, bands=[{}] * 12)
    built = outline(Checkpoint.of(model))
    assert all(weight.is_meta for weight in built.module.parameters())
    small = vectors(tmp_path, terratorch=TERRAMIND | {"backbone": "terramind_v1_small"}, bands=[{}] * 12)
    with pytest.raises(ModelUnavailable, match=r"other shapes than the network of options\.terratorch"):
        outline(Checkpoint.of(small))


def without_a_weight(folder: Path) -> None:
    weights = torch.load(folder / "Prithvi_EO_V2_tiny_TL.pt", weights_only=True)
    del weights["encoder.cls_token"]
    torch.save(weights, folder / "Prithvi_EO_V2_tiny_TL.pt")


def of_another_shape(folder: Path) -> None:
    weights = torch.load(folder / "Prithvi_EO_V2_tiny_TL.pt", weights_only=True)
    torch.save(weights | {"encoder.cls_token": torch.ones(1, 1, 8)}, folder / "Prithvi_EO_V2_tiny_TL.pt")


def of_a_later_prithvi(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"architecture": "prithvi_eo_v9"}))


def damaged(folder: Path) -> None:
    (folder / "Prithvi_EO_V2_tiny_TL.pt").write_bytes(b"damaged")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (of_another_shape, "have other shapes than the network"),
        (without_a_weight, "lacks 1 of the weights of the network of config.json, the first is 'encoder.cls"),
        (of_a_later_prithvi, "names the backbone prithvi_eo_v9, which TerraTorch does not have"),
        (damaged, "Prithvi_EO_V2_tiny_TL.pt holds more than tensors, or is damaged"),
    ],
)
def test_weights_of_another_backbone_are_refused(spoil: Callable[[Path], None], sentence: str, tmp_path: Path) -> None:
    folder = published(tmp_path / "published")
    spoil(folder)
    checkpoint = Checkpoint.of(vectors(folder))
    for made in (outline, build):
        with pytest.raises(ModelUnavailable, match=sentence):
            made(checkpoint)


@pytest.mark.parametrize("tag", ["", ".a1_in1k"])
def test_names_of_timm_may_have_the_tag_of_their_weights(tag: str, tmp_path: Path) -> None:
    with torch.device("meta"):
        own = backbone(backbone="timm_resnet18")
    torch.save({name: torch.empty(weight.shape) for name, weight in own.state_dict().items()}, tmp_path / "w.pt")
    model = vectors(tmp_path, terratorch={"backbone": f"timm_resnet18{tag}"}, bands=[{}] * 3, pooling="patches")
    outline(Checkpoint.of(model))


def test_importing_the_runner_does_not_import_terratorch() -> None:
    program = "import sys, penstock.workers.engine.terratorch.runner; sys.exit('terratorch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
