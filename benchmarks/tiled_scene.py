"""Scene with TerraTorch's `tiled_inference`: `PYTHON -I benchmarks/tiled_scene.py ORDER`, where ORDER is JSON.

Runs in TerraTorch's own environment, so it imports nothing from Penstock. `-I` keeps this folder, with its own
`terratorch.py`, off the path. The loop around `tiled_inference` saves memory: it normalises band by band into one array
of float32, and frees the input. Prints JSON like `library_scene`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

_BEGUN = time.perf_counter()

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import rasterio  # noqa: E402
import torch  # noqa: E402

_SCALE = 1e-4

# torchvision from PyPI is built for CUDA and does not load its operators with a CPU build of torch. Its import
# registers implementations for these two operators, so they must exist.
_OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from terratorch.tasks.tiled_inference import InferenceInput, tiled_inference  # noqa: E402


class Network:
    """An exported program that counts its forward passes."""

    def __init__(self, path: Path) -> None:
        self._module, self.tiles = torch.export.load(path).module(), 0

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the program's output like a TerraTorch task, without softmax."""
        self.tiles += len(pixels)
        answer: torch.Tensor = self._module(pixels)
        return answer


class Windows:
    """TerraTorch `TileSource` that reads each chip on demand, for chips without padding and cropping."""

    def __init__(self, file: rasterio.DatasetReader, order: dict[str, Any]) -> None:
        self._file, self._order = file, order
        #: Validity masks of the chips that were read.
        self.valid = np.zeros(file.shape, bool)

    def __call__(self, chip: InferenceInput) -> torch.Tensor:
        """Return a chip's pixels, normalised."""
        rows, columns = chip.input_coords
        numbers = self._file.read(window=rasterio.windows.Window.from_slices(rows, columns))
        self.valid[rows, columns] = (numbers != 0).all(axis=0)
        return torch.from_numpy(_normalised(numbers, self._order))


def main(order: dict[str, Any]) -> dict[str, float]:
    """Map a small scene to load everything, and then the measured scene."""
    network = Network(Path(order["program"]))
    out = Path(order["out"])
    _map(network, order, Path(order["first"]), out)
    idle_mb, start_s = _status_mb("VmRSS"), time.perf_counter() - _BEGUN
    begun, before, network.tiles = time.perf_counter(), _processor_s(), 0
    _map(network, order, Path(order["scene"]), out)
    return {
        "seconds": time.perf_counter() - begun, "processor_s": _processor_s() - before, "start_s": start_s,
        "idle_mb": idle_mb, "peak_mb": _status_mb("VmHWM"), "tiles": network.tiles,
    }  # fmt: skip


def _map(network: Network, order: dict[str, Any], scene: Path, out: Path) -> None:
    with rasterio.open(scene) as file:
        profile = file.profile
        if order["windows"]:
            # Only its shape is used.
            pixels, windows = torch.zeros(()).expand(1, file.count, *file.shape), Windows(file, order)
            scores, valid = tiled_inference(network, pixels, source=windows, **order["how"]), windows.valid
        else:
            valid, pixels = _read(file, order)
            scores = tiled_inference(network, pixels, **order["how"])
    classes = scores[0].argmax(dim=0).to(torch.uint8).numpy()
    classes[~valid] = 255
    _write_cog(classes, profile, out)


def _read(file: rasterio.DatasetReader, order: dict[str, Any]) -> tuple[npt.NDArray[np.bool_], torch.Tensor]:
    numbers = file.read()
    return (numbers != 0).all(axis=0), torch.from_numpy(_normalised(numbers, order))[None]


def _normalised(numbers: npt.NDArray[np.uint16], order: dict[str, Any]) -> npt.NDArray[np.float32]:
    """Return float32, computed in float64 as in Penstock, so that both networks have the same input."""
    pixels = np.empty(numbers.shape, np.float32)
    for band, values in enumerate(numbers):
        pixels[band] = (values.astype(np.float64) * _SCALE - order["mean"]) / order["std"]
    return pixels


def _write_cog(classes: npt.NDArray[np.uint8], profile: Any, out: Path) -> None:
    profile = {**profile, "driver": "COG", "count": 1, "dtype": "uint8", "nodata": 255, "blocksize": 512}
    for name in ("tiled", "blockxsize", "blockysize", "interleave"):
        profile.pop(name, None)
    with rasterio.open(out, "w", **(profile | {"overview_resampling": "mode", "predictor": 2})) as file:
        file.write(classes, 1)


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _status_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"no {name} in /proc/self/status")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))))
