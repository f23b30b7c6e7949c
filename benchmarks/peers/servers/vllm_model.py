"""The tiny Prithvi of `prithvi_model.py` as vLLM reads it: `vllm_model.py FOLDER`, in vLLM's environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from prithvi_model import ARGUMENTS, BANDS, SIZE_PX
from safetensors.torch import save_file
from terratorch.vllm import InferenceRunner


def main(folder: Path) -> None:
    """Build the network with random weights and save it."""
    tiles = {"h_crop": SIZE_PX, "w_crop": SIZE_PX}
    # The plugin always passes locations, so this network takes them; the others' does not.
    network_arguments = ARGUMENTS | {"backbone_coords_encoding": ["location"]}
    task = {
        "model_factory": "EncoderDecoderFactory",
        "model_args": network_arguments,
        "tiled_inference_parameters": tiles,
    }
    data = {
        "data_root": ".", "bands": list(BANDS),
        "test_transform": [{"class_path": "albumentations.pytorch.ToTensorV2"}],
    }  # fmt: skip
    tensors = {
        "pixel_values": {"type": "torch.Tensor", "shape": [len(BANDS), SIZE_PX, SIZE_PX]},
        "location_coords": {"type": "torch.Tensor", "shape": [1, 2]},
    }
    made = {
        "architectures": ["Terratorch"],
        "num_classes": 0,
        "pretrained_cfg": {
            "seed_everything": 0,
            "input": {"target": "pixel_values", "data": tensors},
            "model": {"class_path": "terratorch.tasks.SemanticSegmentationTask", "init_args": task},
            "data": {"class_path": "terratorch.datamodules.Sen1Floods11NonGeoDataModule", "init_args": data},
        },
    }
    torch.manual_seed(7)
    network = InferenceRunner(made["pretrained_cfg"]).model
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(made))
    save_file({name: value.contiguous() for name, value in network.state_dict().items()}, folder / "model.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
