"""Test helpers for scenes: small scenes, small models, and an engine that runs a function instead of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rasterio.rpc import RPC

from penstock.models import Limits, Model
from penstock.processors.base import Output, Prompt, Result
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.numbers import as_floats

Network = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
GREY = ({"name": "grey", "mean": 0.0, "std": 1.0},)
COLOURS = ("#000000", "#ff0000", "#00ff00", "#0000ff", "#ffffff")
NORTH_UP = rasterio.Affine(30, 0, 500_000, 0, -30, 5_000_000)
#: Coefficients of a scene of 30 x 40 pixels around 15 degrees east and 45 degrees north: linear, without heights.
RPCS = RPC(
    height_off=500, height_scale=500, lat_off=45, lat_scale=0.1, long_off=15, long_scale=0.1,
    line_off=15, line_scale=15, samp_off=20, samp_scale=20,
    line_num_coeff=[0, 0, -1, *[0] * 17], line_den_coeff=[1, *[0] * 19],
    samp_num_coeff=[0, 1, *[0] * 18], samp_den_coeff=[1, *[0] * 19],
)  # fmt: skip


class Files:
    """Media of local files, and checkpoints of an earlier attempt."""

    def __init__(self, saved: Mapping[str, Path] | None = None) -> None:
        self.saved = dict(saved or {})

    def is_partial(self, _reference: str) -> bool:
        return False

    def fill(self, reference: str, ranges: Sequence[tuple[int, int]], *, later: bool = False) -> None:
        """Local files are whole."""

    def fetch(self, reference: str, *, by_range: bool = False) -> None:
        """Local files are there."""

    def checkpoints(self, prefix: str) -> dict[str, Path]:
        return {name: path for name, path in self.saved.items() if name.startswith(prefix)}

    def path(self, reference: str) -> Path:
        return Path(reference)

    def etag(self, reference: str) -> str | None:
        return f"etag of {Path(reference).name}"


class Folder:
    """A sink that records its artifacts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self.artifacts: dict[str, Path] = {}
        self.types: dict[str, str] = {}
        self.saved: dict[str, bytes] = {}

    def path(self, name: str) -> Path:
        return self._folder / name

    def add(self, name: str, path: Path, *, media_type: str) -> None:
        assert path.is_file()
        assert name not in self.artifacts
        self.artifacts[name], self.types[name] = path, media_type

    def checkpoint(self, name: str, path: Path) -> None:
        self.saved[name] = path.read_bytes()


def make_model(
    *,
    bands: Sequence[dict[str, Any]] = GREY,
    classes: int = 5,
    limits: Limits | None = None,
    max_pixels: int | None = None,
    **options: Any,
) -> Model:
    """Return a model with one grey band whose input is the file's numbers, unless overridden."""
    dtypes = ("uint8", "uint16", "int16", "float32")
    labels = [{"id": i, "name": f"class {i}", "colour": COLOURS[i]} for i in range(classes)]
    defaults = {
        "halo_px": 0,
        "stride_px": 1,
        "tile_px": 64,
        "default_radiometry": [{"dtypes": dtypes, "scale": 1.0}],
    }
    return Model(
        name="toy",
        title="A toy",
        runner="fake",
        processor="raster-segmentation",
        source="nowhere",
        revision="1",
        limits=limits or Limits(max_pixels=max_pixels),
        options={**defaults, "bands": bands, "classes": labels, **options},
    )


def one_hot(ids: npt.NDArray[Any], classes: int = 5) -> npt.NDArray[np.float32]:
    """Return probabilities (classes, rows, columns) that are 1 for the given ids."""
    return (ids[None] == np.arange(classes)[:, None, None]).astype(np.float32)


def by_value(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return for each pixel the class given by its first band, modulo 5."""
    return one_hot(np.rint(pixels[0]).astype(np.int64) % 5)


def answers(prompts: Iterator[Prompt], network: Network, *, batch: int = 1) -> Iterator[Output]:
    """Draw `batch` prompts ahead, compute them in reverse order, and yield the outputs in order."""
    while group := list(islice(prompts, batch)):
        done = [Output({"probability": network(as_floats(prompt).data["pixels"])}) for prompt in reversed(group)]
        yield from reversed(done)


def segment(
    scene: Path | None,
    folder: Path,
    *,
    network: Network = by_value,
    model: Model | None = None,
    batch: int = 1,
    **request: Any,
) -> tuple[Folder, Result]:
    """Run a scene through both halves of the processor; `None` if the request names its files itself.

    Probabilities are asked for too, unless the request names its outputs.
    """
    processor = RasterSegmentation(model or make_model())
    given: dict[str, Any] = {"outputs": ("classes", "probability", "preview", "stats")}
    given |= {} if scene is None else {"scene": str(scene)}
    prepared = processor.pre_process(processor.request(**given | request), Files())
    sink = Folder(folder)
    outputs = answers(prepared.prompts, network, batch=batch)
    return sink, processor.post_process(outputs, prepared.context, sink)


def write_scene(path: Path, numbers: npt.NDArray[Any], *, descriptions: Sequence[str] = (), **profile: Any) -> Path:
    """Write (bands, rows, columns) as a GeoTIFF, in UTM unless the profile sets another CRS."""
    count, height, width = numbers.shape
    place = {"crs": "EPSG:32633", "transform": NORTH_UP}
    scales = profile.pop("scales", None)
    # GDAL treats the fourth of four uint8 bands as alpha, unless the photometric interpretation is grey.
    profile = {"driver": "GTiff", "dtype": numbers.dtype, "photometric": "MINISBLACK", **place, **profile}
    profile = {name: value for name, value in profile.items() if value is not None}
    with without_georeference(), rasterio.open(path, "w", count=count, height=height, width=width, **profile) as file:
        file.write(numbers)
        if descriptions:
            file.descriptions = tuple(descriptions)
        if scales:
            file.scales = scales
    return path


def read(path: Path) -> npt.NDArray[Any]:
    """Return all bands of a raster."""
    with without_georeference(), rasterio.open(path) as file:
        return np.asarray(file.read())


def pattern(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return (1, height, width) numbers from 1 to 249 that differ between neighbouring pixels."""
    rows, columns = np.mgrid[0:height, 0:width]
    return ((rows * 7 + columns * 3 + rows * columns % 11) % 249 + 1).astype(np.uint8)[None]
