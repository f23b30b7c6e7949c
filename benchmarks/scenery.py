"""Generated scenes and models for `benchmarks.scene`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from penstock.processors.geo.read.gdal import rasterio

BANDS = ("blue", "green", "red", "nir", "swir16", "swir22")
_BLOCK_PX = 512

RECORD = """
[models.{name}]
title = "{name}"
runner = "{runner}"
processor = "raster-segmentation"
source = "{source}"
revision = "1"
device = "cpu"
max_batch = {max_batch}
execution_timeout_s = 7200
files = {{ {files} }}
[models.{name}.options]
{options}
{cut}
default_radiometry = [{{ dtypes = ["uint16"], scale = 1e-4, nodata = 0.0 }}]
bands = [{bands}]
classes = [{classes}]
"""

#: Tiling options of csmask.
CUT = """
tile_px = 768
halo_px = 96
stride_px = 16
"""

PROGRAM = """
multiples = {{ H = 16, W = 16 }}
[inputs.pixels]
dtype = "float32"
shape = ["bands=6", "H", "W"]
[outputs.probability]
reduce = "{reduce}"
"""
#: Mean and standard deviation of every band in reflectance.
MEAN, STD = 0.2, 0.17
_COLOURS = ("#8c9a4b", "#2166ac", "#a6e3f0", "#4d4d4d", "#f7f7f7")


def record(
    name: str, *, runner: str, source: Path, max_batch: int = 1, options: str = "", cut: str = CUT, classes: int = 2
) -> str:
    """Return a record of a model of six bands and up to five classes, a pinned program, and tiling options `cut`."""
    bands = ", ".join(f'{{ name = "{band}", mean = {MEAN}, std = {STD} }}' for band in BANDS)
    labels = ", ".join(
        f'{{ id = {i}, name = "class {i}", colour = "{colour}" }}' for i, colour in enumerate(_COLOURS[:classes])
    )
    return RECORD.format(
        name=name, runner=runner, source=source, max_batch=max_batch, options=options, cut=cut, bands=bands,
        classes=labels, files=pins(source),
    )  # fmt: skip


def pins(source: Path) -> str:
    """Return the names and hashes of a directory's programs, for `files` of a record."""
    return ", ".join(f'"{path.name}" = "{sha256(path.read_bytes()).hexdigest()}"' for path in source.glob("*.pt2"))


def cheap_network(folder: Path) -> Path:
    """Export three convolutions of 8 channels with random weights for the runner `torch`, in its own folder."""
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)
    )
    return export(network, folder, reduce="softmax")


def export(network: nn.Module, folder: Path, *, reduce: str) -> Path:
    """Export a network of six bands and a stride of 16 for the runner `torch`, in its own folder."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    (folder / "penstock.toml").write_text(PROGRAM.format(reduce=reduce))
    sides = {2: 16 * torch.export.Dim("h", min=1, max=4096), 3: 16 * torch.export.Dim("w", min=1, max=4096)}
    batch = {0: torch.export.Dim("batch", min=1, max=4096)}
    program = torch.export.export(network.eval(), (torch.zeros(2, 6, 64, 96),), dynamic_shapes=(batch | sides,))
    torch.export.save(program, folder / "program.pt2")
    return folder


def write_scene(path: Path, size_px: int, *, empty: float = 0.0) -> Path:
    """Write six bands of uint16, DEFLATE, tiled: smooth fields with noise. The share `empty` is nodata.

    It compresses like Sentinel-2, to about half of its raw size. Which of the first two bands is larger, and so the map
    of the runner `fake`, is noise.
    """
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 256, (len(BANDS), _BLOCK_PX, 2 * size_px), dtype=np.uint16)
    columns = np.arange(size_px)
    with _open(path, size_px, size_px) as file:
        for top in range(0, size_px, _BLOCK_PX):
            rows = np.arange(top, min(top + _BLOCK_PX, size_px))
            numbers = _fields(rows, columns)
            shift = int(rng.integers(size_px))
            numbers += noise[:, : len(rows), shift : shift + size_px]
            if empty:
                # The swath's edge is slanted by about a tenth of the scene.
                edge = size_px * (empty - 0.05 + 0.1 * rows / size_px)
                numbers[:, columns[None] < edge[:, None]] = 0
            file.write(numbers, window=rasterio.windows.Window(0, top, size_px, len(rows)))
    return path


def write_sparse(path: Path, height: int, width: int) -> Path:
    """Write a sparse scene in which only every tenth block along a diagonal exists."""
    block = np.full((len(BANDS), _BLOCK_PX, _BLOCK_PX), 1500, np.uint16)
    with _open(path, height, width, SPARSE_OK=True, BIGTIFF="YES") as file:
        for left, top in _diagonal(height, width):
            file.write(block, window=rasterio.windows.Window(left, top, _BLOCK_PX, _BLOCK_PX))
    return path


def _open(path: Path, height: int, width: int, **more: object) -> rasterio.DatasetWriter:
    place = {"crs": "EPSG:32633", "transform": rasterio.Affine(10, 0, 300_000, 0, -10, 5_000_000)}
    tiled = {"tiled": True, "blockxsize": _BLOCK_PX, "blockysize": _BLOCK_PX, "compress": "deflate", "zlevel": 6}
    tiled |= {"num_threads": "all_cpus"}
    file = rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=len(BANDS), dtype="uint16", nodata=0,
        predictor=2, **place, **tiled, **more,
    )  # fmt: skip
    file.descriptions = BANDS
    return file


def _fields(rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
    waves = np.sin(rows / 210)[:, None] * np.cos(columns / 170)[None]
    return np.stack([(1400 + 150 * band + 700 * waves).astype(np.uint16) for band in range(len(BANDS))])


def _diagonal(height: int, width: int) -> Iterator[tuple[int, int]]:
    for left in range(0, width - _BLOCK_PX, 10 * _BLOCK_PX):
        top = left * (height - _BLOCK_PX) // width // _BLOCK_PX * _BLOCK_PX
        yield left, top
