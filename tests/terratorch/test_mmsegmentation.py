"""Fine-tunes of Prithvi 1.0 in the layout of MMSegmentation: the numbers of the published network, from its file."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.terratorch.checkpoint import Checkpoint
from penstock.workers.engine.terratorch.network import outline
from tests.terratorch.test_check import CHECK
from tests.terratorch.tiny import record

DIM, HEADS, CLASSES, SIDE = 32, 4, 13, 32
SIZES = {"embed_dim": DIM, "num_heads": HEADS, "depth": 2, "img_size": SIDE, "channels": 8, "num_classes": CLASSES}
FACTORY = {"model_factory": "TemporalEncoderDecoder"}


def weights(dates: int) -> dict[str, Tensor]:
    """Return random weights by the names and shapes in the published files."""
    torch.manual_seed(2)
    wide = DIM * dates
    shapes: dict[str, tuple[int, ...]] = {
        "backbone.cls_token": (1, 1, DIM), "backbone.pos_embed": (1, 1 + dates * (SIDE // 16) ** 2, DIM),
        "backbone.patch_embed.proj.weight": (DIM, 6, 1, 16, 16), "backbone.patch_embed.proj.bias": (DIM,),
        "backbone.norm.weight": (DIM,), "backbone.norm.bias": (DIM,),
    }  # fmt: skip
    for block in ("backbone.blocks.0", "backbone.blocks.1"):
        for name, (rows, columns) in {"attn.qkv": (3 * DIM, DIM), "attn.proj": (DIM, DIM), "mlp.fc1": (4 * DIM, DIM),
                                      "mlp.fc2": (DIM, 4 * DIM)}.items():  # fmt: skip
            shapes |= {f"{block}.{name}.weight": (rows, columns), f"{block}.{name}.bias": (rows,)}
        for name in ("norm1", "norm2"):
            shapes |= {f"{block}.{name}.weight": (DIM,), f"{block}.{name}.bias": (DIM,)}
    for part in ("neck.fpn1", "neck.fpn2"):
        for index in (0, 3):
            shapes |= {f"{part}.{index}.weight": (wide, wide, 2, 2), f"{part}.{index}.bias": (wide,)}
        shapes |= {f"{part}.1.ln.weight": (wide,), f"{part}.1.ln.bias": (wide,)}
    for head, count in {"decode_head": 1, "auxiliary_head": 2}.items():
        for index in range(count):
            convolution = f"{head}.convs.{index}"
            shapes[f"{convolution}.conv.weight"] = (8, wide if index == 0 else 8, 3, 3)
            shapes |= {f"{convolution}.bn.{name}": (8,) for name in ("weight", "bias", "running_mean", "running_var")}
            shapes[f"{convolution}.bn.num_batches_tracked"] = ()
        shapes |= {f"{head}.conv_seg.weight": (CLASSES, 8, 1, 1), f"{head}.conv_seg.bias": (CLASSES,)}
    made = {name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}
    for name in made:
        if name.endswith("running_var"):
            made[name] = made[name].abs() + 0.5
    made["backbone.pos_embed"] = torch.from_numpy(positions(dates)).float()[None]
    return made


def positions(dates: int) -> np.ndarray[Any, Any]:
    """Return the published table: sines and cosines of column, row and date, after a row of zeros."""

    def waves(numbers: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
        angles = numbers[:, None] / 10_000 ** (np.arange(width // 2) / (width / 2))
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    side = SIDE // 16
    date, row, column = (axis.ravel() for axis in np.meshgrid(range(dates), range(side), range(side), indexing="ij"))
    parts = [waves(column, DIM // 16 * 6), waves(row, DIM // 16 * 6), waves(date, DIM // 16 * 4)]
    return np.concatenate([np.zeros((1, DIM)), np.concatenate(parts, axis=1)])


def published(state: Mapping[str, Tensor], pixels: Tensor) -> Tensor:
    """Return the scores of (batch, dates * bands, H, W), date after date, by the operations of the published code."""

    def linear(name: str, given: Tensor) -> Tensor:
        return functional.linear(given, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(name: str, given: Tensor, eps: float = 1e-5) -> Tensor:
        return functional.layer_norm(given, (given.shape[-1],), state[f"{name}.weight"], state[f"{name}.bias"], eps)

    # The training reshaped the channels as they lay, which mixes bands and dates.
    folded = pixels.reshape(len(pixels), 6, -1, SIDE, SIDE)
    projected = functional.conv3d(
        folded, state["backbone.patch_embed.proj.weight"], state["backbone.patch_embed.proj.bias"], stride=(1, 16, 16)
    )
    table = state["backbone.pos_embed"]
    tokens = projected.flatten(2).transpose(1, 2) + table[:, 1:]
    tokens = torch.cat([(state["backbone.cls_token"] + table[:, :1]).expand(len(pixels), -1, -1), tokens], dim=1)
    for block in ("backbone.blocks.0", "backbone.blocks.1"):
        mixed = linear(f"{block}.attn.qkv", norm(f"{block}.norm1", tokens))
        q, k, v = mixed.reshape(len(pixels), -1, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        shares = torch.softmax(q @ k.transpose(-1, -2) / (DIM // HEADS) ** 0.5, dim=-1)
        tokens = tokens + linear(f"{block}.attn.proj", (shares @ v).transpose(1, 2).flatten(2))
        hidden = functional.gelu(linear(f"{block}.mlp.fc1", norm(f"{block}.norm2", tokens)))
        tokens = tokens + linear(f"{block}.mlp.fc2", hidden)
    tokens = norm("backbone.norm", tokens)[:, 1:]
    found = tokens.permute(0, 2, 1).reshape(len(pixels), -1, SIDE // 16, SIDE // 16)

    def doubled(name: str, given: Tensor) -> Tensor:
        return functional.conv_transpose2d(given, state[f"{name}.weight"], state[f"{name}.bias"], stride=2)

    for part in ("neck.fpn1", "neck.fpn2"):
        found = norm(f"{part}.1.ln", doubled(f"{part}.0", found).permute(0, 2, 3, 1), 1e-6).permute(0, 3, 1, 2)
        found = doubled(f"{part}.3", functional.gelu(found))
    found = functional.conv2d(found, state["decode_head.convs.0.conv.weight"], padding=1)
    bn = {name: state[f"decode_head.convs.0.bn.{name}"] for name in ("running_mean", "running_var", "weight", "bias")}
    found = functional.relu(functional.batch_norm(found, **bn))
    return functional.conv2d(found, state["decode_head.conv_seg.weight"], state["decode_head.conv_seg.bias"])


def checkpoint(file: Path, state: Mapping[str, Tensor]) -> Path:
    """Write a file as MMCV does: weights, the optimizer's state, and facts of the training with a number of numpy."""
    file.parent.mkdir(parents=True, exist_ok=True)
    facts = {"mmseg_version": "0.30.0", "config": "num_frames = 3\n", "CLASSES": [str(i) for i in range(1, 14)],
             "PALETTE": None, "epoch": 80, "hook_msgs": {"best_score": np.float64(0.4269)}}  # fmt: skip
    optimizer = {"state": {0: {"step": 3, "exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 1.5e-5, "params": [0]}]}
    buffer = io.BytesIO()
    torch.save({"meta": facts, "state_dict": OrderedDict(state), "optimizer": optimizer}, buffer)
    # The published file was written with a numpy before 2.
    with zipfile.ZipFile(buffer) as new, zipfile.ZipFile(file, "w") as old:
        for name in new.namelist():
            content = new.read(name)
            if name.endswith("/data.pkl"):
                assert b"numpy._core.multiarray\nscalar" in content
                content = content.replace(b"numpy._core.multiarray\nscalar", b"numpy.core.multiarray\nscalar")
            old.writestr(name, content)
    return file


def crops(file: Path, dates: int = 3, **changed: Any) -> Model:
    return record(
        file,
        classes=CLASSES,
        dates=dates,
        tile_px=SIDE,
        terratorch={**FACTORY, **SIZES, "num_frames": dates, **changed},
    )


@pytest.mark.parametrize("dates", [3, 1])
def test_the_scores_are_those_of_the_published_network(dates: int, tmp_path: Path) -> None:
    state = weights(dates)
    model = crops(checkpoint(tmp_path / "crops.pth", state), dates)
    outline(Checkpoint.of(model))
    pixels = torch.randn(2, dates * 6, SIDE, SIDE)
    expected = torch.softmax(published(state, pixels), dim=1).numpy()
    with closing(BatchingEngine(Runners.installed())) as engine:
        outputs = list(engine.run(model, (Prompt({"pixels": tile.numpy()}) for tile in pixels), check=lambda: None))
    found = np.stack([output.data["probability"] for output in outputs])
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
    assert expected.std(axis=(0, 2, 3)).min() > 1e-3, "all pixels have the same answer: nothing is compared"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"depth": 3}, "crops.pth lacks 12 of the weights .* the first is 'backbone.blocks.2"),
        ({"depth": 1}, "crops.pth has, and the network lacks, 12 of the weights"),
        ({"num_classes": 12}, "of a network of 12 classes, options.classes are 13"),
        ({"embed_dim": 48}, "have other shapes than the network of options.terratorch"),
        ({"heads": 8}, "options.terratorch is not of TemporalEncoderDecoder: heads: Extra inputs"),
    ],
)
def test_sizes_of_another_network_are_refused(changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    file = checkpoint(tmp_path / "crops.pth", weights(3))
    with pytest.raises(ModelUnavailable, match=sentence):
        outline(Checkpoint.of(crops(file, **changed)))


def test_a_checkpoint_of_mmsegmentation_that_is_taken_for_one_of_terratorch_is_refused_with_the_way_out(
    tmp_path: Path,
) -> None:
    file = checkpoint(tmp_path / "crops.pth", weights(3))
    args = {"backbone": "prithvi_eo_v1_100", "decoder": "FCNDecoder", "num_classes": CLASSES, "backbone_num_frames": 3}
    model = record(file, classes=CLASSES, dates=3, terratorch=args)
    with pytest.raises(ModelUnavailable, match=r'is of MMSegmentation.* model_factory = "TemporalEncoderDecoder"'):
        CHECK(model)


class _Code:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("code of a checkpoint ran",)


def test_a_checkpoint_with_code_is_not_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.save({"meta": {"hook": _Code()}, "state_dict": weights(3)}, tmp_path / "crops.pth", pickle_module=pickle)
    with pytest.raises(ModelUnavailable, match=r"crops\.pth holds more than tensors, or is damaged"):
        outline(Checkpoint.of(crops(tmp_path / "crops.pth")))
    assert "code of a checkpoint ran" not in capfd.readouterr().out
