"""TerraTorch's `tiled_inference`: `tiled_inference_script.py READY HOW`; reads jobs from its input, one a line.

HOW is JSON: the arguments of `tiled_inference`. When the program is loaded, the file `READY-PID` is written.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import torch
from prithvi_model import operators
from work import NODATA, SCALE, Work, write_cog

warnings.simplefilter("ignore")
LIBRARY = operators()

from terratorch.tasks.tiled_inference import tiled_inference  # noqa: E402


def main(ready: str, how: dict[str, Any]) -> None:
    """Map scenes until the input ends."""
    work = Work()
    Path(f"{ready}-{os.getpid()}").touch()
    for line in sys.stdin:
        job = json.loads(line)
        run(work, job, how)
        Path(job["done"]).touch()


def run(work: Work, job: dict[str, Any], how: dict[str, Any]) -> None:
    """Map one scene."""
    with rasterio.open(job["scene"]) as file:
        numbers, profile = file.read(), file.profile
    pixels = np.empty(numbers.shape, np.float32)
    for band, values in enumerate(numbers):
        pixels[band] = (values * np.float32(SCALE) - work.order["mean"][band]) / work.order["std"][band]
    valid = (numbers != 0).all(axis=0)
    with torch.inference_mode():
        scores = tiled_inference(work.network, torch.from_numpy(pixels)[None], **how)
    classes = scores[0].argmax(dim=0).to(torch.uint8).numpy()
    classes[~valid] = NODATA
    write_cog(classes, profile, job["out"])


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
