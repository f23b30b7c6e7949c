"""Drawing of map tiles: the look of a raster (bands, colours, stretch, zooms), and its tiles as PNG.

A class raster has the colours of its palette. One band of numbers has the ramp of the previews, and an input its red,
green and blue, both between the 1st and the 99th percentile of a sample of 1024 x 1024 px. Pixels are not interpolated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np
from morecantile import Tile
from rasterio.transform import from_bounds
from rasterio.vrt import WarpedVRT
from rasterio.warp import calculate_default_transform
from rasterio.windows import Window
from rio_tiler.errors import TileOutsideBounds
from rio_tiler.io import Reader
from rio_tiler.models import ImageData

from penstock.errors import FetchFailed, MediaTooLarge, MediaUnreadable, UnknownArtifact
from penstock.maps.gdal import REMOTE, names_files, rasterio, reading
from penstock.processors.geo.options import NODATA
from penstock.processors.geo.write.preview import ramp, steps
from penstock.processors.geo.write.quicklook import brightness

TILE_PX: Final = 256
#: Highest zoom that is drawn: 1 cm to a pixel.
MAX_ZOOM: Final = 24
#: Highest latitude of Web Mercator, and its projection with the antimeridian in the middle.
_HIGHEST, _TURNED = 85.06, "+proj=webmerc +lon_0=180 +datum=WGS84"
#: Zooms below that of the smallest overview: a tile then reads 1024 pixels of its side.
_ZOOMS_WITHOUT_OVERVIEW = 2
#: Side of the sample from which the stretch is taken, and its percentiles, as of previews and quicklooks.
_SAMPLE_PX = 1024
_LOW, _HIGH = 1, 99
#: Parts of a side of the sample, where the smallest overview is more than so many times as large as the sample.
_PARTS, _LARGE = 4, 2
#: Bytes of a block of the file, at most: GDAL decodes whole blocks.
_BLOCK_BYTES = 64 << 20

Colour = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Source:
    """A raster to draw. Sources of the same bytes that look the same are equal."""

    #: Short-lived link to the file.
    url: str = field(compare=False)
    etag: str
    title: str
    model: str
    #: Time at which the tile link expires, in seconds since the epoch, and the link with its placeholders.
    expires_s: int = field(compare=False)
    #: Numbers of an input's red, green and blue bands, from 1; None for a result, of which one band is drawn.
    bands: tuple[int, int, int] | None = None
    #: Nodata number in place of the file's own.
    nodata: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The way in which a raster is drawn."""

    #: One band, or red, green and blue.
    bands: tuple[int, ...]
    #: Colour by class id; None for numbers, which are stretched from `low` to `high`.
    colours: dict[int, Colour] | None
    low: float
    high: float
    #: West, south, east and north in degrees; east is beyond 180 for a raster across the antimeridian.
    bounds: tuple[float, float, float, float]
    minzoom: int
    maxzoom: int
    #: Names of the file's bands, and lines of the legend.
    names: tuple[str, ...]
    legend: tuple[str, ...]


@contextmanager
def opened(source: Source) -> Iterator[Reader]:
    """Open a raster by ranges of its file.

    Raises `MediaUnreadable` for a file that is no GeoTIFF with a place on the earth, `MediaTooLarge` for one that needs
    too much memory, `UnknownArtifact` for one that was deleted, and `FetchFailed` where the store does not answer.
    """
    with ExitStack() as held:
        held.enter_context(rasterio.Env(**REMOTE))
        held.enter_context(_reading())
        dataset = held.enter_context(rasterio.open(f"/vsicurl/{source.url}", driver="GTiff"))
        _require_drawable(dataset)
        if not dataset.gcps[0] and _is_turned(dataset.transform):
            dataset = held.enter_context(WarpedVRT(dataset, nodata=dataset.nodata))
        options: Any = {} if source.nodata is None else {"nodata": source.nodata}
        yield held.enter_context(Reader(None, dataset=dataset, options=options))


def look_of(source: Source, band: int) -> Look:
    """Return the look of a raster; `band` counts from 1 and chooses the one that is drawn of a result."""
    with opened(source) as reader:
        dataset: Any = reader.dataset
        bands = source.bands or (band,)
        if max(bands) > dataset.count:
            raise UnknownArtifact(f"{source.title} has no band {max(bands)}; its bands: 1 to {dataset.count}")
        colours = reader.colormap if len(set(bands)) == 1 and dataset.dtypes[bands[0] - 1] == "uint8" else None
        low, high = (0.0, 0.0) if colours else _stretch(reader, bands)
        west, south, east, north = reader.get_geographic_bounds(reader.tms.rasterio_geographic_crs)
        if south >= _HIGHEST or north <= -_HIGHEST:
            raise MediaUnreadable("The raster lies nearer to a pole than web maps reach.")
        east += 360 * (west > east)
        maxzoom = min(reader.maxzoom, MAX_ZOOM)
        if west > 0 and east > 180:  # the Reader takes it for a raster around the earth
            grid, *_ = calculate_default_transform(reader.crs, _TURNED, dataset.width, dataset.height, *reader.bounds)
            maxzoom = min(reader.tms.zoom_for_res(max(abs(grid.a), abs(grid.e))), MAX_ZOOM)
        return Look(
            bands=bands[:1] if colours else bands,
            colours=dict(colours) if colours else None,
            low=low,
            high=high,
            bounds=(west, max(south, -_HIGHEST), east, min(north, _HIGHEST)),
            minzoom=max(0, maxzoom - len(dataset.overviews(1)) - _ZOOMS_WITHOUT_OVERVIEW),
            maxzoom=maxzoom,
            names=tuple(name or f"band {at}" for at, name in enumerate(dataset.descriptions, 1)),
            legend=_legend(dataset, bands, colours, low, high),
        )


def draw(source: Source, look: Look, z: int, x: int, y: int) -> bytes:
    """Return a tile of the Web Mercator grid as a PNG of 256 px, transparent where the raster has no data."""
    if z < look.minzoom:
        return EMPTY
    with opened(source) as reader:
        # GDAL warps to the tile's own grid, from the overview next to it: rio-tiler's default picks pixels twice.
        place = from_bounds(*reader.tms.xy_bounds(Tile(x, y, z)), TILE_PX, TILE_PX)
        grid = {"transform": place, "width": TILE_PX, "height": TILE_PX}
        try:
            tile = reader.tile(x, y, z, tilesize=TILE_PX, indexes=look.bands, vrt_options=grid)
        except TileOutsideBounds:
            return EMPTY
        return _png(tile.array, look)


def _png(numbers: np.ma.MaskedArray[Any, Any], look: Look) -> bytes:
    """Return an image of numbers (bands, rows, columns) with a mask."""
    if look.colours is not None:
        return _rendered(numbers, look.colours)
    if len(look.bands) == 1:
        colours = {at: (int(r), int(g), int(b), 255) for at, (r, g, b) in enumerate(ramp(NODATA + 1))}
        return _rendered(np.ma.MaskedArray(steps(numbers.data, look.low, look.high), numbers.mask), colours)
    light = brightness(numbers.data.astype(np.float64), look.low, look.high)
    return _rendered(np.ma.MaskedArray(light, numbers.mask), None)


def _rendered(numbers: np.ma.MaskedArray[Any, Any], colours: dict[int, Colour] | None) -> bytes:
    return ImageData(numbers).render(img_format="PNG", colormap=colours)


#: A tile without data.
EMPTY: Final = _rendered(np.ma.MaskedArray(np.zeros((3, TILE_PX, TILE_PX), np.uint8), mask=True), None)


@contextmanager
def _reading() -> Iterator[None]:
    """Translate GDAL's errors, also those of the connection to the store."""
    try:
        with reading("The raster cannot be read"):
            yield
    except MediaUnreadable as error:
        cause = f"{error.__cause__} {error.__cause__ and error.__cause__.__cause__}"
        if "HTTP response code: 404" in cause:
            raise UnknownArtifact("the file no longer exists") from error
        if "HTTP response code" in cause or "CURL error" in cause:
            raise FetchFailed("the object store did not send the raster") from error
        raise


def _require_drawable(dataset: Any) -> None:
    gcps, crs = dataset.gcps
    crs = crs if gcps else dataset.crs
    if crs is None or (not gcps and dataset.transform.is_identity):
        raise MediaUnreadable("The raster has no place on the earth: it has no coordinate system or no geotransform.")
    if names_files(crs.to_wkt()):
        raise MediaUnreadable("The raster's coordinate system names files.")
    together = dataset.count if dataset.interleaving is not None and dataset.interleaving.name == "pixel" else 1
    for shape, dtype in zip(dataset.block_shapes, dataset.dtypes, strict=True):
        if prod(shape) * np.dtype(dtype).itemsize * together > _BLOCK_BYTES:
            raise MediaTooLarge(f"The raster's blocks are larger than {_BLOCK_BYTES >> 20} MiB. Write it in tiles.")


def _is_turned(transform: Any) -> bool:
    return bool(transform.a < 0 or transform.e > 0 or transform.b or transform.d)


def _stretch(reader: Reader, bands: tuple[int, ...]) -> tuple[float, float]:
    """Return the percentiles of a sample's values, of all bands together."""
    values = np.concatenate([part.compressed() for part in _sample(reader, bands)])
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 0.0
    method: Any = "inverted_cdf" if len(bands) == 1 else "linear"
    low, high = np.percentile(values, (_LOW, _HIGH), method=method)
    return float(low), float(high)


def _sample(reader: Reader, bands: tuple[int, ...]) -> Iterator[np.ma.MaskedArray[Any, Any]]:
    """Yield the raster in small, or where that would read all of a large file, parts on a grid of 4 x 4 places."""
    dataset: Any = reader.dataset
    smallest = max(dataset.overviews(1), default=1)
    if max(dataset.width, dataset.height) <= _SAMPLE_PX * _LARGE * smallest:
        yield reader.read(max_size=_SAMPLE_PX, indexes=bands).array
        return
    side = _SAMPLE_PX // _PARTS
    for row, column in product(range(_PARTS), repeat=2):
        place = [
            max(0, (2 * at + 1) * length // (2 * _PARTS) - side // 2)
            for at, length in ((column, dataset.width), (row, dataset.height))
        ]
        window = Window(*place, min(side, dataset.width - place[0]), min(side, dataset.height - place[1]))
        yield reader.read(window=window, indexes=bands, height=window.height, width=window.width).array


def _legend(
    dataset: Any, bands: tuple[int, ...], colours: dict[int, Colour] | None, low: float, high: float
) -> tuple[str, ...]:
    if colours:
        names = {int(tag[6:]): name for tag, name in dataset.tags(bands[0]).items() if tag.startswith("CLASS_")}
        return tuple(f"#{bytes(colours[at][:3]).hex()} {name}" for at, name in sorted(names.items()) if at in colours)
    if len(set(bands)) > 1:
        return ()
    at = bands[0] - 1
    scale, unit = dataset.scales[at], dataset.units[at] or ""
    ends = zip((low, high), (ramp(NODATA + 1)[0], ramp(NODATA + 1)[NODATA - 1]), strict=True)
    return tuple(f"#{bytes(colour).hex()} {value * scale:g} {unit}".rstrip() for value, colour in ends)
