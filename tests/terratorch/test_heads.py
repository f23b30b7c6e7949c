"""TerraTorch's decoders behind a tiny Prithvi: each answers what TerraTorch's own forward pass does."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.processors.base import Prompt
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.terratorch.checkpoint import Checkpoint
from penstock.workers.engine.terratorch.network import outline
from tests.terratorch.tiny import answer, model_args, network, normalised, record, save, scene

NECKS = model_args()["necks"]
#: Necks before a decoder that takes the backbone's own grid.
FLAT = NECKS[:2]
LAST = [{"name": "SelectIndices", "indices": [3]}, NECKS[1]]
DECODERS: dict[str, dict[str, Any]] = {
    "UperNetDecoder": {"decoder_channels": 16},
    "UNetDecoder": {"decoder_channels": [32, 16, 8, 8]},
    "FCNDecoder": {"decoder_channels": 16, "decoder_num_convs": 2, "necks": FLAT},
    "LinearDecoder": {"decoder_upsampling_size": 16, "decoder_num_classes": 8, "necks": FLAT},
    "MLPDecoder": {"necks": LAST},
    "smp_Unet": {"decoder_decoder_channels": [32, 16, 8]},
    "IdentityDecoder": {"necks": FLAT},
}


def arguments(decoder: str, **head: Any) -> dict[str, Any]:
    """Return a network's arguments with a decoder's own."""
    args = {name: value for name, value in model_args(**head).items() if name != "decoder_channels"}
    return {**args, "decoder": decoder, **DECODERS[decoder]}


@pytest.mark.parametrize("task", ["segmentation", "regression"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_decoder_answers_what_terratorch_says(decoder: str, task: str, tmp_path: Path) -> None:
    head = {"num_classes": 3} if task == "segmentation" else {"num_outputs": 2}
    args = arguments(decoder, **head)
    built = network(task, args)
    folder = save(tmp_path / "model", task, args, built)
    model = record(folder, classes=3) if task == "segmentation" else record(folder, quantities=[{}, {}])
    outline(Checkpoint.of(model))
    pixels = normalised(scene(tmp_path / "s.tif"))
    with closing(Runners.installed().load(model)) as runner:
        (done,) = runner.step([runner.admit(Prompt({"pixels": pixels[0].numpy()}))])
    expected = answer(built, pixels)
    if task == "segmentation":
        expected = torch.softmax(torch.from_numpy(expected), dim=0).numpy()
    (found,) = done.output.data.values()
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
    assert found.std(axis=(1, 2)).mean() > 1e-4, "the network says the same everywhere: nothing is compared"
