"""Baseline loop for scenes without the service: `python -m benchmarks.bare_scene CATALOGUE MODEL SCENE OUT [TILE_PX]`.

Reads the whole scene, cuts it into square tiles of the record's size or TILE_PX, runs batches of tiles on the same
runner, computes the class with the largest probability, masks nodata and writes a COG. Prints JSON: `seconds` without
loading the model, `busy_s` in the runner, and resident memory in MB: `idle_mb` with the model loaded, `batch_mb` as the
peak during one batch, `peak_mb` as the total peak.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import structlog

from benchmarks.measuring import peak_mb
from penstock.catalogue.records import read_catalogue
from penstock.processors.base import Output, Prompt
from penstock.processors.geo.options import SegmentationOptions, read_options
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.tiling.plan import Box, Tile, make_plan
from penstock.workers.engine.base import Done, Runner
from penstock.workers.engine.runners import Runners

_SCALE = 1e-4


class Network:
    """A runner with a timer."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.busy_s = runner, 0.0

    def run(self, pixels: list[npt.NDArray[np.float32]]) -> list[Output]:
        """Return the outputs of a batch."""
        states = [self.runner.admit(Prompt({"pixels": each})) for each in pixels]
        begun = time.perf_counter()
        steps = self.runner.step(states)
        self.busy_s += time.perf_counter() - begun
        return [step.output for step in steps if isinstance(step, Done)]


def main(catalogue: Path, name: str, scene: Path, out: Path, tile_px: int | None = None) -> dict[str, float]:
    """Measure one scene. Log lines go to stderr: stdout is JSON."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    model = read_catalogue(catalogue)[name]
    if tile_px:
        model = model.model_copy(update={"options": {**model.options, "tile_px": tile_px}})
    options, network = read_options(model, SegmentationOptions), Network(Runners.installed().load(model))
    side = options.tile_px + 2 * options.halo_px
    network.run([np.ones((len(options.bands), 64, 64), np.float32)])
    idle_mb = psutil.Process().memory_info().rss / 1e6
    network.run([np.ones((len(options.bands), side, side), np.float32) for _ in range(network.runner.max_batch)])
    batch_mb, network.busy_s = peak_mb(), 0.0
    begun = time.perf_counter()
    _loop(network, options, scene, out)
    seconds = time.perf_counter() - begun
    return {
        "seconds": seconds, "busy_s": network.busy_s, "idle_mb": idle_mb, "batch_mb": batch_mb, "peak_mb": peak_mb()
    }  # fmt: skip


def _loop(network: Network, options: SegmentationOptions, scene: Path, out: Path) -> None:
    with rasterio.open(scene) as file:
        numbers, profile = file.read(), file.profile
    mean, std = (np.float32([getattr(band, name) for band in options.bands])[:, None, None] for name in ("mean", "std"))
    classes = np.empty(numbers.shape[1:], np.uint8)
    for tiles in _batches(numbers.shape[1:], options, network.runner.max_batch):
        outputs = network.run([(_window(numbers, tile) * np.float32(_SCALE) - mean) / std for tile in tiles])
        for tile, output in zip(tiles, outputs, strict=True):
            core, inside = tile.core, tile.core.within(tile.window)
            found = output.data["probability"].argmax(axis=0)
            classes[_slices(core)] = found[_slices(inside)]
    classes[(numbers == 0).any(axis=0)] = 255
    _write_cog(classes, profile, out)


def _batches(shape: Any, options: SegmentationOptions, size: int) -> Iterator[list[Tile]]:
    """Yield batches of tiles of one shape, as full as possible."""
    plan = make_plan(
        *shape, tile_px=options.tile_px, halo_px=options.halo_px, stride_px=options.stride_px,
        pixel_bytes=1, strip_bytes=2**40,
    )  # fmt: skip
    groups: dict[tuple[int, int], list[Tile]] = defaultdict(list)
    for strip in plan.strips():
        for tile in strip.tiles:
            groups[tile.window.height, tile.window.width].append(tile)
    for tiles in groups.values():
        yield from (tiles[first : first + size] for first in range(0, len(tiles), size))


def _window(numbers: npt.NDArray[np.uint16], tile: Tile) -> npt.NDArray[np.uint16]:
    """Return a tile's pixels, padded with zeros to the right and below to a multiple of the stride."""
    box, part = tile.window, numbers[:, *_slices(tile.window)]
    beyond = ((0, 0), (0, box.height - part.shape[1]), (0, box.width - part.shape[2]))
    return np.pad(part, beyond) if any(map(any, beyond)) else part


def _slices(box: Box) -> tuple[slice, slice]:
    return slice(box.top, box.bottom), slice(box.left, box.right)


def _write_cog(classes: npt.NDArray[np.uint8], profile: Any, out: Path) -> None:
    profile = {**profile, "driver": "COG", "count": 1, "dtype": "uint8", "nodata": 255, "blocksize": 512}
    for name in ("tiled", "blockxsize", "blockysize", "interleave"):
        profile.pop(name, None)
    with rasterio.open(out, "w", **(profile | {"overview_resampling": "mode", "predictor": 2})) as file:
        file.write(classes, 1)


if __name__ == "__main__":
    catalogue, name, scene, out, *tile_px = sys.argv[1:]
    figures = main(Path(catalogue), name, Path(scene), Path(out), *map(int, tile_px))
    sys.stdout.write(json.dumps(figures))
