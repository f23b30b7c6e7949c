"""A tiny Prithvi with random weights, in the layout that vLLM and TerraTorch read: `python tiny.py FOLDER [SEED]`.

Runs in an environment that has TerraTorch. `config.json` holds TerraTorch's own configuration under `pretrained_cfg`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

SIZE_PX = 128
CLASSES = 3
BANDS = ("BLUE", "GREEN", "RED", "NIR_NARROW", "SWIR_1", "SWIR_2")


def config() -> dict[str, Any]:
    """Return a segmentation task with the smallest Prithvi there is: 6 bands, 128 px, 3 classes, and locations."""
    network = {
        "backbone": "prithvi_eo_tiny", "backbone_pretrained": False, "backbone_bands": list(BANDS),
        "backbone_img_size": SIZE_PX, "backbone_num_frames": 1, "backbone_coords_encoding": ["location"],
        "necks": [
            {"name": "SelectIndices", "indices": [0, 1, 2, 3]},
            {"name": "ReshapeTokensToImage"},
            {"name": "LearnedInterpolateToPyramidal"},
        ],
        "decoder": "UNetDecoder", "decoder_channels": [32, 16, 16, 8], "num_classes": CLASSES, "rescale": True,
    }  # fmt: skip
    tiles = {"h_crop": SIZE_PX, "w_crop": SIZE_PX}
    task = {"model_factory": "EncoderDecoderFactory", "model_args": network, "tiled_inference_parameters": tiles}
    shapes = {"pixel_values": [len(BANDS), SIZE_PX, SIZE_PX], "location_coords": [1, 2]}
    data = {
        "data_root": ".", "bands": list(BANDS),
        "test_transform": [{"class_path": "albumentations.pytorch.ToTensorV2"}],
    }  # fmt: skip
    tensors = {name: {"type": "torch.Tensor", "shape": shape} for name, shape in shapes.items()}
    return {
        "architectures": ["Terratorch"],
        "num_classes": 0,
        "pretrained_cfg": {
            "seed_everything": 0,
            "input": {"target": "pixel_values", "data": tensors},
            "model": {"class_path": "terratorch.tasks.SemanticSegmentationTask", "init_args": task},
            "data": {"class_path": "terratorch.datamodules.Sen1Floods11NonGeoDataModule", "init_args": data},
        },
    }


def write(folder: Path, seed: int = 0) -> None:
    """Build the network with random weights and save it."""
    import torch
    from safetensors.torch import save_file
    from terratorch.vllm import InferenceRunner

    torch.manual_seed(seed)
    made = config()
    network = InferenceRunner(made["pretrained_cfg"]).model
    _balance(network)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(made, indent=2))
    save_file({name: value.contiguous() for name, value in network.state_dict().items()}, folder / "model.safetensors")


def _balance(network: Any) -> None:
    """Have every class win somewhere: untrained, one of them would win nearly everywhere."""
    import torch

    with torch.no_grad():
        noise, place = torch.randn(4, len(BANDS), SIZE_PX, SIZE_PX), torch.zeros(4, 2)
        means = network.eval()(noise, location_coords=place).output.mean(dim=(0, 2, 3))
        biases = [value for name, value in network.named_parameters() if value.shape == means.shape]
        biases[-1] -= means


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
