"""Reading one file: what it says of itself, and its rows.

Only files that the service made are opened, with the one driver that their first bytes name, and every size is checked
before a pixel is read: a file of 5 MB can declare 149 GiB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput, MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.geo.bands import SceneBand
from penstock.processors.geo.documents import moment
from penstock.processors.geo.gdal import rasterio, reading, without_georeference
from penstock.processors.geo.plan import Box
from penstock.processors.geo.radiometry import MaskName, Said, tagged
from penstock.processors.geo.resample import Chunk

_DRIVERS = {
    b"II*\0": "GTiff",
    b"MM\0*": "GTiff",
    b"II+\0": "GTiff",
    b"MM\0+": "GTiff",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JP2OpenJPEG",
    b"\xff\x4f\xff\x51": "JP2OpenJPEG",
}
#: GDAL decodes whole blocks; a larger one is refused.
_MAX_BLOCK_BYTES = 256 * 2**20
#: Rows read at a time where blocks are lower than this.
_MIN_CHUNK_ROWS = 64


@dataclass(frozen=True, slots=True)
class Scene:
    """What the file says of itself."""

    driver: str
    height: int
    width: int
    dtype: str
    #: How many bands there are; `bands` are those that may hold data.
    count: int
    bands: tuple[SceneBand, ...]
    #: rasterio's CRS and affine transform; None where the file has none.
    crs: Any | None
    transform: Any | None
    #: Ground control points and their CRS, for a file that has these only.
    gcps: tuple[Any, ...]
    gcps_crs: Any | None
    scales: tuple[float, ...]
    offsets: tuple[float, ...]
    nodata: tuple[float | None, ...]
    #: The band that says where there is data, or 0 for the file's mask, or None.
    mask_band: int | None
    block_rows: int
    #: When it was taken, by the file's own tags.
    taken: datetime | None = None

    @property
    def chunk_rows(self) -> int:
        """How many rows most chunks have: those of a block, or of several low ones."""
        return self.block_rows * max(1, _MIN_CHUNK_ROWS // self.block_rows)

    @property
    def mask(self) -> MaskName | None:
        """What says where there is data, numbers aside."""
        match self.mask_band:
            case None:
                return None
            case 0:
                return "internal mask"
            case _:
                return "alpha"

    def said(self, bands: Sequence[SceneBand]) -> tuple[Said, ...]:
        """Return what the file's own tags say of the bands that are used."""
        at = [band.index - 1 for band in bands]
        return tagged([self.scales[i] for i in at], [self.offsets[i] for i in at], [self.nodata[i] for i in at])


def read_scene(path: Path, limits: Limits) -> Scene:
    """Return what the file says of itself.

    Raises `MediaUnreadable` if it is no raster file we take, `MediaTooLarge` if it has more pixels than the model
    takes, `InvalidInput` if its numbers or its georeference are not usable.
    """
    driver = _driver(path)
    with opened(path, driver) as dataset, reading("The scene's header cannot be read"):
        scene = _scene(dataset, driver)
        _check_size(dataset, scene, limits)
    return scene


class FileRows:
    """The pixels of some bands of an open file, in its own numbers and on its own grid.

    `indexes` are the bands' numbers in the file, `nodata` each one's number that is no data, and `called` what errors
    call the file.
    """

    def __init__(
        self,
        dataset: Any,
        scene: Scene,
        indexes: Sequence[int],
        nodata: Sequence[float | None],
        *,
        called: str = "The scene",
    ) -> None:
        self._dataset, self._scene = dataset, scene
        self._indexes, self._called = list(indexes), called
        self.dtype = np.dtype(scene.dtype)
        self._nodata = [_in_dtype(value, self.dtype) for value in nodata]
        self.chunk_rows = scene.chunk_rows

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield the box from top to bottom; chunks end where the file's blocks end, so that each is decoded once.

        A pixel is valid where all the bands hold data.
        """
        top = box.top
        while top < box.bottom:
            bottom = min(box.bottom, (top // self.chunk_rows + 1) * self.chunk_rows)
            window = rasterio.windows.Window(box.left, top, box.width, bottom - top)
            with reading(f"{self._called}'s rows {top} to {bottom - 1} cannot be read"):
                numbers = self._dataset.read(self._indexes, window=window)
                mask = self._mask(window)
            yield top, numbers, self._valid(numbers, mask)
            top = bottom

    def _mask(self, window: Any) -> npt.NDArray[Any] | None:
        match self._scene.mask_band:
            case None:
                return None
            case 0:
                mask = self._dataset.read_masks(self._indexes[0], window=window)
            case band:
                mask = self._dataset.read(band, window=window)
        return np.asarray(mask)

    def _valid(self, numbers: npt.NDArray[Any], mask: npt.NDArray[Any] | None) -> npt.NDArray[np.bool_]:
        valid = np.ones(numbers.shape[1:], dtype=bool) if mask is None else mask != 0
        for band, nodata in zip(numbers, self._nodata, strict=True):
            if nodata is not None:
                valid &= band != nodata
            if band.dtype.kind == "f":
                valid &= np.isfinite(band)
        return valid


@contextmanager
def opened(path: Path, driver: str) -> Iterator[Any]:
    """Open a file that the service made with the one driver; the block closes it. Raises `MediaUnreadable`."""
    with reading("The scene cannot be opened"), without_georeference():
        dataset = rasterio.open(path, driver=driver)
    with dataset:
        yield dataset


def _driver(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(64)
    for magic, driver in _DRIVERS.items():
        if head.startswith(magic):
            return driver
    raise MediaUnreadable(f"The scene is neither a GeoTIFF nor a JPEG 2000 file: {_found(head)}.")


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
        raise MediaUnreadable("The scene holds no bands.")
    dtypes = set(dataset.dtypes)
    if len(dtypes) > 1 or np.dtype(_numpy_name(dataset.dtypes[0])).kind not in "iuf":
        raise InvalidInput(f"The scene's numbers are {', '.join(sorted(dtypes))}; one real data type is needed.")
    alphas = [i for i, colour in enumerate(dataset.colorinterp, 1) if colour.name == "alpha"]
    gcps, gcps_crs = dataset.gcps
    return Scene(
        driver=driver,
        height=dataset.height,
        width=dataset.width,
        dtype=dataset.dtypes[0],
        count=dataset.count,
        bands=tuple(SceneBand(i, name) for i, name in enumerate(dataset.descriptions, 1) if i not in alphas),
        crs=dataset.crs,
        transform=_transform(dataset),
        gcps=tuple(gcps),
        gcps_crs=gcps_crs,
        scales=tuple(map(float, dataset.scales)),
        offsets=tuple(map(float, dataset.offsets)),
        nodata=tuple(dataset.nodatavals),
        mask_band=alphas[0] if alphas else 0 if _has_mask(dataset) else None,
        block_rows=dataset.block_shapes[0][0],
        taken=_taken(dataset),
    )


def _taken(dataset: Any) -> datetime | None:
    """Return when the scene was taken by tags that mean just that; TIFFTAG_DATETIME says when a file was written.

    HLS has one SENSING_TIME or several of a mosaic, of which the first counts; GDAL writes ACQUISITIONDATETIME, in UTC.
    """
    tags = dataset.tags(ns="IMAGERY") | dataset.tags()
    sensed, acquired = tags.get("SENSING_TIME", ""), tags.get("ACQUISITIONDATETIME", "")
    return moment(re.split("[;,]", sensed)[0].strip()) or moment(f"{acquired.strip()}+00:00")


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


def _check_size(dataset: Any, scene: Scene, limits: Limits) -> None:
    pixels = scene.height * scene.width
    if limits.max_pixels is not None and pixels > limits.max_pixels:
        raise MediaTooLarge(
            f"The scene has {scene.width} x {scene.height} = {pixels:,} pixels; the model takes {limits.max_pixels:,}."
        )
    rows, columns = dataset.block_shapes[0]
    interleaved = dataset.count if dataset.interleaving is not None and dataset.interleaving.name == "pixel" else 1
    block_bytes = rows * columns * interleaved * np.dtype(scene.dtype).itemsize
    if block_bytes > _MAX_BLOCK_BYTES:
        raise MediaTooLarge(
            f"The scene's blocks of {columns} x {rows} pixels take {block_bytes:,} bytes each; at most "
            f"{_MAX_BLOCK_BYTES:,} are taken. Write it tiled, e.g. `gdal_translate -co TILED=YES`."
        )


def _in_dtype(nodata: float | None, dtype: np.dtype[Any]) -> Any | None:
    """Return the value as the pixels hold it; None where no pixel can be it. NaN is always found by itself."""
    if nodata is None or math.isnan(nodata):
        return None
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return dtype.type(nodata)
    limits = np.iinfo(dtype)
    whole = nodata == int(nodata) if math.isfinite(nodata) else False
    return dtype.type(int(nodata)) if whole and limits.min <= nodata <= limits.max else None
