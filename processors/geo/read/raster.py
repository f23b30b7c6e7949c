"""One raster file: its header and its rows of pixels.

Only files written by the service are opened, with the one driver that matches their first bytes. Every size is checked
before pixels are read: a file of 5 MB can declare 149 GiB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput, MediaTooLarge, MediaUnreadable, ProcessorFailed
from penstock.models import Limits
from penstock.processors.decoding import decoding
from penstock.processors.geo.read.band_identity import SceneBand
from penstock.processors.geo.read.band_tags import read_bands
from penstock.processors.geo.read.foreign_formats import HEAD_BYTES, foreign_format
from penstock.processors.geo.read.gdal import rasterio, reading, without_georeference
from penstock.processors.geo.read.metadata import parse_time
from penstock.processors.geo.read.radiometry import Declaration, MaskName, from_tags
from penstock.processors.geo.read.resample import Chunk
from penstock.processors.geo.tiling.plan import Box

_DRIVERS = {
    b"II*\0": "GTiff",
    b"MM\0*": "GTiff",
    b"II+\0": "GTiff",
    b"MM\0+": "GTiff",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JP2OpenJPEG",
    b"\xff\x4f\xff\x51": "JP2OpenJPEG",
}
#: Maximum block size; GDAL decodes whole blocks.
MAX_BLOCK_BYTES = 256 * 2**20
#: Minimum rows per read; lower blocks are combined.
_MIN_CHUNK_ROWS = 64


class ScenePart(Protocol):
    """A raster inside a file of several, such as a variable of a NetCDF file."""

    def open(self, path: Path) -> Any:
        """Return a dataset (rasterio), or what reads pixels like one. Raises `MediaUnreadable`."""
        ...


@dataclass(frozen=True, slots=True)
class ValidNumbers:
    """Numbers that are data, besides the nodata number: those in a range, without further fill values."""

    low: float | None = None
    high: float | None = None
    missing: tuple[float, ...] = ()
    #: True if the file declares the range, as `valid_range` does.
    declared: bool = False

    def of(self, numbers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return bool: True where a number is data."""
        valid = np.ones(numbers.shape, bool)
        if self.low is not None:
            valid &= numbers >= self.low
        if self.high is not None:
            valid &= numbers <= self.high
        return valid & ~np.isin(numbers, self.missing) if self.missing else valid


@dataclass(frozen=True, slots=True)
class Scene:
    """Header of a raster file: size, bands, georeference, tags."""

    driver: str
    height: int
    width: int
    dtype: str
    #: Number of all bands; `bands` excludes alpha bands.
    count: int
    bands: tuple[SceneBand, ...]
    #: CRS and affine transform (rasterio objects); None if the file has none.
    crs: Any | None
    transform: Any | None
    #: Ground control points and their CRS.
    gcps: tuple[Any, ...]
    gcps_crs: Any | None
    scales: tuple[float, ...]
    offsets: tuple[float, ...]
    nodata: tuple[float | None, ...]
    #: Number of the alpha band, 0 for the internal mask, None for no mask.
    mask_band: int | None
    block_rows: int
    #: Acquisition time from the file's tags.
    acquired: datetime | None = None
    #: Rational polynomial coefficients (rasterio object); None if the file has none.
    rpcs: Any | None = None
    #: Path and header of a mask in a file of its own: one band for all bands, or as many as the file has.
    outer_mask: tuple[Path, Scene] | None = None
    #: The raster inside its file; None for a file that is one raster.
    part: ScenePart | None = None
    #: Numbers that are data, if the file declares more than a nodata number.
    valid: ValidNumbers | None = None
    #: True if the file declares its scale and offset, even 1 and 0.
    physical: bool = False

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk: the height of one block, or of several low blocks."""
        return self.block_rows * max(1, _MIN_CHUNK_ROWS // self.block_rows)

    @property
    def mask(self) -> MaskName | None:
        """Kind of validity mask in the file, besides nodata numbers."""
        match self.mask_band:
            case None if self.outer_mask is not None:
                return "external mask"
            case None:
                return "valid range" if self.valid is not None and self.valid.declared else None
            case 0:
                return "internal mask"
            case _:
                return "alpha"

    def declared(self, bands: Sequence[SceneBand]) -> tuple[Declaration, ...]:
        """Return the radiometry that the file's tags declare for the used bands."""
        at = [band.index - 1 for band in bands]
        scales, offsets = ([each[i] for i in at] for each in (self.scales, self.offsets))
        nodata = [self.nodata[i] for i in at]
        return from_tags(scales, offsets, nodata, physical=self.physical)


def read_scene(path: Path, limits: Limits) -> Scene:
    """Return the header of a raster file.

    Raises `MediaUnreadable` for unsupported files, `MediaTooLarge` for more pixels than the model's limit, and
    `InvalidInput` for an unusable data type or georeference.
    """
    return read_header(path, _driver(path), limits)


def read_header(path: Path, driver: str, limits: Limits, part: ScenePart | None = None) -> Scene:
    """Return the header of a raster file, or of a raster inside a file. Raises the errors of `read_scene`."""
    with (
        _open(path, driver) if part is None else part.open(path) as dataset,
        reading("The scene's header cannot be read"),
    ):
        scene = replace(_scene(dataset, driver), part=part)
        _check_size(dataset, scene, limits)
    return scene


class FileRows:
    """Reader for some bands of an open file, in the file's data type and on the file's grid.

    `dataset` returns the file as a dataset (rasterio) with the pixels of a box there, and may wait for them.
    `indexes` are band numbers from 1, `nodata` the nodata number of each band, and `label` the file's name in errors.
    `filled` is the part that a partial file has; None for a whole file.
    """

    def __init__(
        self,
        dataset: Callable[[Box], Any],
        scene: Scene,
        indexes: Sequence[int],
        nodata: Sequence[float | None],
        *,
        label: str = "The scene",
        filled: Box | None = None,
    ) -> None:
        self._dataset, self._scene, self._filled = dataset, scene, filled
        self._indexes, self._label = list(indexes), label
        self.dtype = np.dtype(scene.dtype)
        self._nodata = [_in_dtype(value, self.dtype) for value in nodata]
        self.chunk_rows = scene.chunk_rows

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield the box in chunks from top to bottom. Chunks end at block boundaries, so each block is decoded once.

        A pixel is valid if all bands hold data.
        """
        if self._filled is not None and box.clipped(self._filled) != box and box.height > 0:
            raise ProcessorFailed(f"{self._label} was to be read at {box}, but only {self._filled} was fetched")
        if self._scene.outer_mask is None:
            yield from self._chunks(box, None)
            return
        outer = open_dataset(*self._scene.outer_mask)  # no `with`: the thread that ends it may be another
        try:
            yield from self._chunks(box, outer)
        finally:
            outer.close()

    def _chunks(self, box: Box, outer: Any | None) -> Iterator[Chunk]:
        top = box.top
        while top < box.bottom:
            bottom = min(box.bottom, (top // self.chunk_rows + 1) * self.chunk_rows)
            window = rasterio.windows.Window(box.left, top, box.width, bottom - top)
            pixels = self._scene.width * self.chunk_rows * self._scene.count
            dataset = self._dataset(Box(top, box.left, bottom, box.right))  # a wait for pixels is no decoding
            with reading(f"{self._label}'s rows {top} to {bottom - 1} cannot be read"), decoding(pixels=pixels):
                numbers = dataset.read(self._indexes, window=window)
                mask = self._mask(dataset, window, outer)
            yield top, numbers, self._valid(numbers, mask)
            top = bottom

    def _mask(self, dataset: Any, window: Any, outer: Any | None) -> npt.NDArray[np.bool_] | None:
        """Return the validity by the file's masks; None if it has none."""
        masks = []
        if outer is not None:
            bands = self._indexes if outer.count > 1 else [1]
            with reading(f'{self._label}: the mask beside it cannot be read ("beside": [] reads it without)'):
                masks.append((outer.read(bands, window=window) != 0).all(axis=0))
        match self._scene.mask_band:
            case None:
                pass
            case 0:
                masks.append(dataset.read_masks(self._indexes[0], window=window) != 0)
            case band:
                masks.append(dataset.read(band, window=window) != 0)
        return np.logical_and.reduce(masks) if masks else None

    def _valid(self, numbers: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_]:
        valid = np.ones(numbers.shape[1:], dtype=bool) if mask is None else mask
        for band, nodata in zip(numbers, self._nodata, strict=True):
            if nodata is not None:
                valid &= band != nodata
            if band.dtype.kind == "f":
                valid &= np.isfinite(band)
            if self._scene.valid is not None:
                valid &= self._scene.valid.of(band)
        return valid


def open_dataset(path: Path, scene: Scene) -> Any:
    """Return the open raster of a header, a context manager; any thread may close it. Raises `MediaUnreadable`."""
    return _open(path, scene.driver) if scene.part is None else scene.part.open(path)


def _open(path: Path, driver: str) -> Any:
    return open_raster(str(path), driver, path.stat().st_size)


def open_raster(name: str, driver: str, size_bytes: int) -> Any:
    """Return a raster that GDAL opens with one driver, by its path or by a `/vsi...` name. Raises `MediaUnreadable`."""
    with reading("The scene cannot be opened"), without_georeference(), decoding(size_bytes=size_bytes):
        return rasterio.open(name, driver=driver)


def is_tiff(path: Path) -> bool:
    """Return True for a file that begins as a TIFF file does."""
    with path.open("rb") as file:
        return _DRIVERS.get(file.read(4)) == "GTiff"


def _driver(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    for magic, driver in _DRIVERS.items():
        if head.startswith(magic):
            return driver
    foreign = foreign_format(head, path.suffix.lower())
    found = _found(head[:64]) + "." if foreign is None else f"it is {foreign.name}. {foreign.advice(path.suffix)}"
    raise MediaUnreadable(f"The scene is neither a GeoTIFF nor a JPEG 2000 file: {found}")


def _found(head: bytes) -> str:
    if not head:
        return "it is empty"
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return "it holds XML or HTML"
    printable = sum(32 <= byte < 127 or byte in b"\t\r\n" for byte in head)
    if printable == len(head):
        return "it holds text"
    return f"it begins with the bytes {head[:8].hex(' ')}"


def _scene(dataset: Any, driver: str) -> Scene:
    if dataset.count == 0:
        raise MediaUnreadable("The scene has no bands.")
    dtypes = set(dataset.dtypes)
    if len(dtypes) > 1 or np.dtype(_numpy_name(dataset.dtypes[0])).kind not in "iuf":
        raise InvalidInput(f"The scene's data type is {', '.join(sorted(dtypes))}; one real type is needed.")
    alphas = [i for i, colour in enumerate(dataset.colorinterp, 1) if colour.name == "alpha"]
    gcps, gcps_crs = dataset.gcps
    return Scene(
        driver=driver,
        height=dataset.height,
        width=dataset.width,
        dtype=dataset.dtypes[0],
        count=dataset.count,
        bands=read_bands(dataset, alphas),
        crs=dataset.crs,
        transform=_transform(dataset),
        gcps=tuple(gcps),
        gcps_crs=gcps_crs,
        scales=tuple(map(float, dataset.scales)),
        offsets=tuple(map(float, dataset.offsets)),
        nodata=tuple(dataset.nodatavals),
        mask_band=alphas[0] if alphas else 0 if _has_mask(dataset) else None,
        block_rows=dataset.block_shapes[0][0],
        acquired=_acquired(dataset),
        rpcs=dataset.rpcs,
    )


def _acquired(dataset: Any) -> datetime | None:
    """Return the acquisition time from the file's tags. TIFFTAG_DATETIME is ignored: it is the time of writing.

    HLS has SENSING_TIME; a mosaic has several times, of which the first is used. GDAL writes ACQUISITIONDATETIME (UTC).
    """
    tags = dataset.tags(ns="IMAGERY") | dataset.tags()
    sensed, acquired = tags.get("SENSING_TIME", ""), tags.get("ACQUISITIONDATETIME", "")
    return parse_time(re.split("[;,]", sensed)[0].strip()) or parse_time(f"{acquired.strip()}+00:00")


def _numpy_name(dtype: str) -> str:
    return "complex64" if dtype == "complex_int16" else dtype


def _transform(dataset: Any) -> Any | None:
    transform = dataset.transform
    if transform.is_identity:
        return None
    corner = transform @ (dataset.width, dataset.height)
    numbers = (*tuple(transform)[:6], transform.determinant, *corner)
    if not all(map(math.isfinite, numbers)) or transform.determinant == 0:
        raise InvalidInput("The scene's georeference (geotransform) is not usable: its numbers must be finite.")
    return transform


def _has_mask(dataset: Any) -> bool:
    return any("per_dataset" in (flag.name for flag in flags) for flags in dataset.mask_flag_enums)


def check_pixels(grid: Scene, limits: Limits, *, what: str = "The scene") -> None:
    """Raise `MediaTooLarge` for a grid with more pixels than the model's limit."""
    pixels = grid.height * grid.width
    if limits.max_pixels is not None and pixels > limits.max_pixels:
        raise MediaTooLarge(
            f"{what} has {grid.width} x {grid.height} = {pixels:,} pixels; the model takes {limits.max_pixels:,}."
        )


def _check_size(dataset: Any, scene: Scene, limits: Limits) -> None:
    check_pixels(scene, limits)
    rows, columns = dataset.block_shapes[0]
    interleaved = dataset.count if dataset.interleaving is not None and dataset.interleaving.name == "pixel" else 1
    block_bytes = rows * columns * interleaved * np.dtype(scene.dtype).itemsize
    if block_bytes > MAX_BLOCK_BYTES:
        raise MediaTooLarge(
            f"The scene's blocks of {columns} x {rows} pixels take {block_bytes:,} bytes each; at most "
            f"{MAX_BLOCK_BYTES:,} are allowed. Write a tiled file, e.g. with `gdal_translate -co TILED=YES`."
        )


def _in_dtype(nodata: float | None, dtype: np.dtype[Any]) -> Any | None:
    """Return the nodata number in the pixels' data type; None if no pixel can have it. NaN is handled separately."""
    if nodata is None or math.isnan(nodata):
        return None
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return dtype.type(nodata)
    limits = np.iinfo(dtype)
    whole = nodata == int(nodata) if math.isfinite(nodata) else False
    return dtype.type(int(nodata)) if whole and limits.min <= nodata <= limits.max else None
