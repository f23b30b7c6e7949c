"""Process one scene with an engine that computes nothing, and print the peak resident memory in MB.

Started by `test_memory.py`, once per scene, because a process's peak never goes down.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from penstock.catalogue.records import read_catalogue
from penstock.models import Model
from penstock.processors.base import Output
from penstock.processors.geo.detection import RasterDetection
from penstock.processors.geo.embedding import RasterEmbedding
from penstock.processors.geo.read.gdal import rasterio
from tests.support.geo.high_water import peak_mb
from tests.support.geo.scenes import NORTH_UP, Files, Folder, make_model, segment
from tests.support.geo.shares import zones


def write(path: Path, height: int, width: int) -> None:
    """Write a six-band uint16 scene in blocks, so that writing does not determine the peak."""
    profile = {"driver": "GTiff", "dtype": "uint16", "count": 6, "crs": "EPSG:32633", "transform": NORTH_UP}
    profile |= {"tiled": True, "blockxsize": 512, "blockysize": 512, "nodata": 0, "compress": "deflate", "zlevel": 1}
    with rasterio.open(path, "w", height=height, width=width, **profile) as file:
        row = (np.arange(width) % 5000 + 1).astype(np.uint16)
        for top in range(0, height, 512):
            for left in range(0, width, 512):
                rows, some = min(512, height - top), row[left : left + 512]
                window = rasterio.windows.Window(left, top, len(some), rows)
                file.write(np.broadcast_to(some, (6, rows, len(some))), window=window)


def write_sparse(path: Path, height: int, width: int) -> int:
    """Write a scene of one band in which only three blocks exist; return the number of their pixels."""
    profile = {"driver": "GTiff", "dtype": "uint8", "count": 1, "crs": "EPSG:32633", "transform": NORTH_UP}
    profile |= {"tiled": True, "blockxsize": 512, "blockysize": 512, "nodata": 0, "compress": "deflate"}
    block = np.full((1, 500, 500), 3, np.uint8)
    with rasterio.open(path, "w", height=height, width=width, SPARSE_OK=True, BIGTIFF="YES", **profile) as file:
        for top, left in ((0, 0), (height // 2, width // 2), (height - 500, width - 500)):
            file.write(block, window=rasterio.windows.Window(left, top, 500, 500))
    return 3 * 500 * 500


def constant(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return constant probabilities without computation."""
    return np.broadcast_to(np.float32([0.1, 0.2, 0.3, 0.3, 0.1])[:, None, None], (5, *pixels.shape[1:]))


def small_buffers(**changes: Any) -> Model:
    """Return csmask with smaller tiles and strips, for scenes of a few megapixels."""
    model = read_catalogue()["csmask"]
    options = {**model.options, "tile_px": 256, "strip_bytes": 16 * 2**20, **changes}
    return model.model_copy(update={"options": options})


#: Processor, its options, and the answer to each tile of the kinds that make no map.
_OTHERS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "objects": (
        RasterDetection,
        {"overlap_px": 32},
        {"boxes": np.float32([[90, 90, 99, 99]] * 9), "scores": np.full(9, 0.9), "labels": np.arange(9)},
    ),
    "vectors": (RasterEmbedding, {"patch_px": 16}, {"embedding": np.ones((32, 16, 16), np.float32)}),
}


def run(kind: str, path: Path, folder: Path) -> None:
    """Find objects, or make vectors, without computation."""
    processor_type, more, answer = _OTHERS[kind]
    model = small_buffers()
    left_out = ("classes", "halo_px", "halo_exact", "stride_px", "overlap", "network")
    options = {name: value for name, value in model.options.items() if name not in left_out} | more
    processor = processor_type(model.model_copy(update={"options": options, "source": "/nowhere"}))
    prepared = processor.pre_process(processor.request(scene=str(path)), Files())
    outputs = (Output(answer) for _ in prepared.prompts)
    data = processor.post_process(outputs, prepared.context, Folder(folder)).data
    assert data is not None
    assert data["objects" if kind == "objects" else "embeddings"]["count"] > 0


def main(folder: Path, height: int, width: int, kind: str) -> None:
    """Measure one scene: `halo`, `hann`, `uncertainty` (of `hann`), `zones`, `sparse`, `objects` or `vectors`."""
    path, valid, request = folder / "scene.tif", height * width, {}
    model = (
        small_buffers(overlap="hann", halo_px=0, halo_exact=False, strip_bytes=32 * 2**20)
        if kind in ("hann", "uncertainty")
        else small_buffers()
    )
    if kind == "uncertainty":
        request = {"uncertainty": "flips"}
    if kind == "zones":
        edges = (0, 100, width - 100, width + 50)
        shapes = {f"{at}": shapely.box(edge, 10.5, edges[at], height - 3) for at, edge in enumerate(edges[:-1], 1)}
        request = {"zones": zones(shapes)}
    if kind == "sparse":
        valid, model = write_sparse(path, height, width), make_model(tile_px=768, halo_px=96, strip_bytes=16 * 2**20)
        request = {"outputs": ("classes", "stats")}
    else:
        write(path, height, width)
    if kind in _OTHERS:
        run(kind, path, folder / "out")
        sys.stdout.write(str(peak_mb()))
        return
    _, result = segment(path, folder / "out", network=constant, model=model, **request)
    assert result.data is not None
    assert result.data["valid_pixels"] == valid
    sys.stdout.write(str(peak_mb()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
