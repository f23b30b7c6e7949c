"""A tiny Prithvi with random weights, built by TerraTorch and exported: `prithvi_model.py FOLDER`.

Writes `program.pt2` and `penstock.toml` for Penstock's runner `torch` and all peers, and the state dictionary.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

SIZE_PX = 128
BANDS = ("BLUE", "GREEN", "RED", "NIR_NARROW", "SWIR_1", "SWIR_2")
ARGUMENTS = {
    "backbone": "prithvi_eo_tiny", "backbone_pretrained": False, "backbone_bands": list(BANDS),
    "backbone_img_size": SIZE_PX, "backbone_num_frames": 1,
    "necks": [
        {"name": "SelectIndices", "indices": [0, 1, 2, 3]},
        {"name": "ReshapeTokensToImage"},
        {"name": "LearnedInterpolateToPyramidal"},
    ],
    "decoder": "UNetDecoder", "decoder_channels": [32, 16, 16, 8], "num_classes": 3,
}  # fmt: skip
DESCRIPTION = """
[inputs.pixels]
dtype = "float32"
shape = [6, 128, 128]
[outputs.probability]
reduce = "softmax"
"""


def operators() -> torch.library.Library:
    """Declare two operators of torchvision: from PyPI it is built for CUDA, and its import asks for them."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


class Scores(torch.nn.Module):
    """The network without TerraTorch's wrapper of its output."""

    def __init__(self, network: torch.nn.Module) -> None:
        """Wrap a network."""
        super().__init__()
        self.network = network

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, classes, rows, columns)."""
        scores: torch.Tensor = self.network(pixels).output
        return scores


def main(folder: Path) -> None:
    """Build and write."""
    library = operators()
    from terratorch.models import EncoderDecoderFactory

    torch.manual_seed(7)
    network = Scores(EncoderDecoderFactory().build_model(task="segmentation", **ARGUMENTS)).eval()
    balance(network)
    folder.mkdir(parents=True, exist_ok=True)
    free = {0: torch.export.Dim("batch", min=1, max=64)}
    pixels = torch.randn(2, len(BANDS), SIZE_PX, SIZE_PX)
    program = torch.export.export(network, (pixels,), dynamic_shapes=(free,))
    torch.export.save(program, folder / "program.pt2")
    (folder / "penstock.toml").write_text(DESCRIPTION)
    del library


def balance(network: torch.nn.Module) -> None:
    """Have every class win somewhere: untrained, one of them would win nearly everywhere."""
    with torch.no_grad():
        means = network(torch.randn(4, len(BANDS), SIZE_PX, SIZE_PX)).mean(dim=(0, 2, 3))
        biases = [value for _, value in network.named_parameters() if value.shape == means.shape]
        biases[-1] -= means


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
