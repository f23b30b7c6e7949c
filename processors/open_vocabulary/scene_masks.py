"""Mask generation on scenes: outlines objects in a window of a scene, on the scene's grid and as polygons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS, Transformer
from pyproj.exceptions import CRSError, ProjError

from penstock.errors import InvalidInput, Issue
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Result
from penstock.processors.directory import check_options
from penstock.processors.geo.options import NODATA
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.raster import FileRows, Scene, open_dataset, read_scene
from penstock.processors.geo.sample import write_sample
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.cog import RASTER_OUTPUTS, Cog, Scratch
from penstock.processors.geo.write.lonlat import NoLonLat, lonlat_bounds
from penstock.processors.geo.write.vector import GEOJSON_TYPE, lonlat_of
from penstock.processors.open_vocabulary.masks import SIGNATURES, Framed, Mask, entry, inside, read_masker
from penstock.processors.open_vocabulary.request import PointedObject, SceneMaskRequest
from penstock.processors.outputs import Kind, write_json
from penstock.processors.vision.image import ImageArray
from penstock.views import View

OUTPUTS = RASTER_OUTPUTS.register("geojson", Kind(GEOJSON_TYPE, ".geojson", write_json))
#: Maximum side of a window: its masks have its size in memory.
_MAX_WINDOW_PX = 8192
#: Percentiles of a window that are shown as black and white.
_SHOWN = (2, 98)


@dataclass(frozen=True, slots=True)
class RasterMaskGenerationContext:
    """Request state for `post_process`."""

    request: SceneMaskRequest
    framed: Framed
    window: Box
    #: The scene's header, cut to the window.
    grid: Scene
    valid: Mask
    shown: tuple[float, float]


class RasterMaskGeneration:
    """The processor of masks on scenes."""

    request = SceneMaskRequest
    outputs = (
        OUTPUTS.spec("mask", "mask.tif: the objects' numbers on the scene's grid, cut to the window", kind="cog"),
        OUTPUTS.spec("polygons", "masks.geojson: the objects in longitude and latitude", kind="geojson"),
    )
    views = (View("rows", "/objects"),)
    io_signatures = SIGNATURES

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model)
        self._masker = read_masker(model)

    def pre_process(self, request: SceneMaskRequest, media: Media) -> Prepared[RasterMaskGenerationContext]:
        """Return the prompts of the window."""
        path = media.path(request.scene)
        scene = read_scene(path, self._model.limits)
        objects = on_the_grid(request, scene)
        window = window_of(objects, scene, request.window_px, self._masker.side_px)
        numbers, valid = _read(path, scene, window, request.bands)
        shown = _range(numbers, valid, request.range)
        moved = [_moved(one, lambda x, y: (x - window.left, y - window.top)) for one in objects]
        prompts, framed = self._masker.prompts(_as_bytes(numbers, valid, shown), moved)
        transform = scene.transform @ rasterio.Affine.translation(window.left, window.top)
        grid = replace(scene, height=window.height, width=window.width, transform=transform, rpcs=None)
        context = RasterMaskGenerationContext(request, framed, window, grid, valid, shown)
        return Prepared(iter(prompts), len(prompts), sum(prompt.cost for prompt in prompts), context)

    def post_process(
        self, outputs: Iterator[Output], context: RasterMaskGenerationContext, sink: ArtifactSink
    ) -> Result:
        """Return `{"window", "range", "network_px", "objects": [{"id", "object", "score", "pixels", "bbox"}]}`, notes.

        An object's `id` is its value in mask.tif, where the one with the higher score lies above; 0 is none. `window`
        has the rows and columns of the scene that the network saw, resized to `network_px`. `bbox` is west, south,
        east and north, or None for an object without pixels.
        """
        found = self._masker.found(outputs, context.framed)
        ids = np.where(context.valid, 0, NODATA).astype(np.uint8)
        features: dict[int, dict[str, Any]] = {}
        for at in sorted(range(len(found)), key=lambda at: found[at].score):
            mask, number = self._masker.mask(found[at]) & context.valid, at + 1
            ids[mask] = number
            geometry = _geometry(mask, context.grid)
            properties = {name: value for name, value in entry(number, found[at], mask).items() if name != "box"}
            properties["bbox"] = list(lonlat_bounds(geometry)) if mask.any() else None
            features[number] = {"properties": properties, "geometry": shapely.geometry.mapping(geometry)}
        inner = [{"type": "Feature", **features[number]} for number in sorted(features)]
        if "mask" in context.request.outputs:
            scratch = sink.path("mask.scratch.tif")
            with Scratch(scratch, context.grid, 1, {}) as raster:
                raster.write(ids[None], Box(0, 0, *ids.shape))
            OUTPUTS.put(sink, "mask", Cog(scratch, "MODE"), kind="cog")
        if "polygons" in context.request.outputs:
            OUTPUTS.put(sink, "masks", {"type": "FeatureCollection", "features": inner}, kind="geojson")
        window = context.window
        seen = {"rows": [window.top, window.bottom], "columns": [window.left, window.right]}
        data = {"window": seen, "range": list(context.shown), "network_px": self._masker.side_px}
        notes = [] if context.valid.any() else ["No pixel of the window has data, so the objects are empty."]
        return Result(data={**data, "objects": [one["properties"] for one in inner], "notes": notes})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return a scene of a window's size with one point in its middle."""
        side = min(max(self._masker.side_px, 64), 1024)
        path = folder / "scene.tif"
        write_sample(path, size_px=side)
        with rasterio.open(path) as dataset:
            x, y = dataset.xy(side // 2, side // 2)
            crs = f"EPSG:{dataset.crs.to_epsg()}"
        request = {"scene": "media://dummy", "objects": [{"points": [[x, y]]}], "crs": crs}
        return Dummy(request, {"media://dummy": path})


def on_the_grid(request: SceneMaskRequest, scene: Scene) -> list[PointedObject]:
    """Return the objects in pixels of the scene, x to the right; raise `InvalidInput` for those outside."""
    if scene.transform is None or scene.crs is None:
        raise InvalidInput("Points and boxes need a scene with a CRS and a geotransform; the file has none.")
    to_pixels = ~scene.transform
    try:
        own = scene.crs.to_wkt()
        given = {"wgs84": "EPSG:4326", "scene": own}.get(request.crs, request.crs)
        transformer = Transformer.from_crs(CRS.from_user_input(given), own, always_xy=True)
    except (CRSError, ProjError) as error:
        detail = f"There is no CRS {request.crs!r}, or no way from it to the scene's: give a code such as EPSG:32738."
        raise InvalidInput(detail, errors=[Issue("/input/crs", "is not usable")]) from error

    def place(x: float, y: float) -> tuple[float, float]:
        column, row = to_pixels @ transformer.transform(x, y)
        return float(column), float(row)

    objects = []
    for number, one in enumerate(each.plain() for each in request.objects):
        corners = [place(x, y) for x in one.box[::2] for y in one.box[1::2]] if one.box else []
        points = [place(*point) for point in one.points]
        if not all(map(math.isfinite, (side for point in (*corners, *points) for side in point))):
            detail = f"object {number} has no place in the scene's CRS"
            raise InvalidInput(detail, errors=[Issue(f"/input/objects/{number}", detail)])
        box = [*np.min(corners, axis=0).tolist(), *np.max(corners, axis=0).tolist()] if corners else None
        objects.append(one.model_copy(update={"points": [list(point) for point in points], "box": box}))
    return inside(objects, scene.width, scene.height, "scene")


def window_of(objects: Sequence[PointedObject], scene: Scene, asked_px: int | None, network_px: int) -> Box:
    """Return the square of the scene around the objects, moved inside the scene and cut where that is smaller.

    Its side is `asked_px`, else the network's, else what the objects need. Raises `InvalidInput` for objects that do
    not fit.
    """
    places = [place for one in objects for place in one.points]
    places += [corner for one in objects if one.box for corner in (one.box[:2], one.box[2:])]
    low = np.maximum(np.floor(np.min(places, axis=0)), 0).astype(int)
    high = np.minimum(np.ceil(np.max(places, axis=0)), (scene.width, scene.height)).astype(int)
    needed = int((high - low).max())
    side = asked_px or max(network_px, needed)
    if needed > side or side > _MAX_WINDOW_PX:
        detail = (
            f"the objects extend over {needed} pixels of the scene, and the window has {min(side, _MAX_WINDOW_PX)}: "
            "send objects that lie apart as jobs of their own"
        )
        raise InvalidInput(detail, errors=[Issue("/input/window_px", detail)])
    width, height = min(side, scene.width), min(side, scene.height)
    left, top = (low + high - (width, height)) // 2
    left, top = min(max(int(left), 0), scene.width - width), min(max(int(top), 0), scene.height - height)
    return Box(top, left, top + height, left + width)


def _moved(one: PointedObject, move: Any) -> PointedObject:
    box = one.box and [*move(*one.box[:2]), *move(*one.box[2:])]
    return one.model_copy(update={"points": [list(move(*point)) for point in one.points], "box": box})


def _read(path: Path, scene: Scene, window: Box, bands: Sequence[int]) -> tuple[npt.NDArray[Any], Mask]:
    """Return the numbers (3, rows, columns) of the window and where they are data."""
    if max(bands) > scene.count:
        detail = f"the scene has {scene.count} bands: name three of them"
        raise InvalidInput(detail, errors=[Issue("/input/bands", detail)])
    nodata = [scene.nodata[band - 1] for band in bands]
    with open_dataset(path, scene) as dataset:
        chunks = [chunk[1:] for chunk in FileRows(lambda _: dataset, scene, bands, nodata).read(window)]
    numbers, valid = zip(*chunks, strict=True)
    return np.concatenate(numbers, axis=1), np.concatenate(valid)


def _range(numbers: npt.NDArray[Any], valid: Mask, asked: Sequence[float] | None) -> tuple[float, float]:
    """Return the numbers that are shown as black and white: one pair for all bands keeps the colours."""
    if asked is not None:
        return asked[0], asked[1]
    if numbers.dtype == np.uint8 or not valid.any():
        return 0.0, 255.0
    low, high = np.percentile(numbers[:, valid], _SHOWN)
    return float(low), float(high)


def _as_bytes(numbers: npt.NDArray[Any], valid: Mask, shown: tuple[float, float]) -> ImageArray:
    """Return uint8 (rows, columns, 3), black where there is no data."""
    low, high = shown
    shares = np.clip((numbers.astype(np.float32) - low) / ((high - low) or 1), 0, 1)
    image = np.rint(np.nan_to_num(shares) * 255).astype(np.uint8).transpose(1, 2, 0)
    return np.ascontiguousarray(np.where(valid[..., None], image, 0).astype(np.uint8))


def _geometry(mask: Mask, grid: Scene) -> Any:
    """Return a mask as a multipolygon in longitude and latitude; its parts share no pixel's side."""
    shapes = rasterio.features.shapes(mask.astype(np.uint8), mask=mask, connectivity=4)
    parts = np.array([shapely.geometry.shape(shape) for shape, _ in shapes], dtype=object)
    if not len(parts):
        return shapely.MultiPolygon()
    try:
        placed = lonlat_of(grid)(parts)
    except NoLonLat as error:
        raise InvalidInput(f"The masks have no longitude and latitude: {error}.") from error
    return shapely.multipolygons(shapely.get_parts(placed))
