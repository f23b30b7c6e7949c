"""A partial file that is fetched in steps, from top to bottom, while its pixels are read.

    steps    |----0----|----1----|----2----|      whole rows of blocks, a few megabytes or more each
    read                    ^ waits for step 1; step 2 is fetched meanwhile

Every read names its pixels, and gets a dataset that was opened after these had come: what a dataset read before, GDAL
may have kept with the zeros of what was missing then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from penstock.processors.geo.read.raster import Scene, open_dataset
from penstock.processors.geo.read.tiff_ranges import PartialTiff
from penstock.processors.geo.tiling.plan import Box

#: Bytes of a step at least: many small requests would take longer than their bytes.
STEP_BYTES = 8 * 2**20


class SteppedFile:
    """The pixels of a box of a partial file, for some bands from 1. One thread reads; call `close` at the end.

    `fetching` runs the fetches one after the other, in the order in which they begin.
    """

    def __init__(
        self, path: Path, scene: Scene, file: PartialTiff, box: Box, bands: Sequence[int], fetching: Executor, *,
        step_bytes: int = STEP_BYTES,
    ) -> None:  # fmt: skip
        self._path, self._scene, self._file, self._bands = path, scene, file, bands
        self._fetching = fetching
        self._steps = tuple(_steps(file, box, bands, scene.chunk_rows, step_bytes))
        #: Fetches that have begun, by step; None for those that have ended.
        self._begun: dict[int, Future[None] | None] = {}
        self._dataset: Any = None

    def at(self, box: Box) -> Any:
        """Return a dataset (rasterio) with the pixels of a box there. Raises the errors of `Media.fill`."""
        needed = [at for at, step in enumerate(self._steps) if step.clipped(box) is not None]
        for at in needed:
            self._begin(at)
        if needed:
            self._begin(needed[-1] + 1)
        waiting = [(at, fetch) for at in needed if (fetch := self._begun[at]) is not None]
        for at, fetch in waiting:
            fetch.result()
            self._begun[at] = None
        if waiting or self._dataset is None:
            self.close()
            self._dataset = open_dataset(self._path, self._scene)
        return self._dataset

    def close(self) -> None:
        """Close the dataset."""
        if self._dataset is not None:
            self._dataset.close()

    def _begin(self, at: int) -> None:
        if at < len(self._steps) and at not in self._begun:
            self._begun[at] = self._fetching.submit(self._file.fill, self._steps[at], self._bands)


def _steps(file: PartialTiff, box: Box, bands: Sequence[int], rows: int, step_bytes: int) -> Iterator[Box]:
    """Cut a box into steps of at least `step_bytes` that begin at multiples of `rows`."""
    top, size_bytes = box.top, 0
    for start in range(box.top // rows * rows, box.bottom, rows):
        end = min(box.bottom, start + rows)
        size_bytes += file.size_bytes(Box(max(box.top, start), box.left, end, box.right), bands)
        if size_bytes >= step_bytes or end == box.bottom:
            yield Box(top, box.left, end, box.right)
            top, size_bytes = end, 0
