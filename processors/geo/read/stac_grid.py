"""Grid of a STAC asset by the Projection extension: used where the file has no georeference, and else compared with it.

Fields (Projection extension 1.0 to 2.0): `proj:code` or `proj:epsg`, `proj:wkt2` or `proj:projjson`, `proj:transform`
(six or nine numbers, row by row) or else `proj:bbox` (west, south, east, north), and `proj:shape` (rows, columns), each
of the asset, or of the item if the asset has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from pyproj import CRS, Transformer
from pyproj.exceptions import ProjError

from penstock.errors import InvalidInput, Issue, MediaUnreadable
from penstock.processors.geo.read.gdal import CRSError, names_files, rasterio
from penstock.processors.geo.read.raster import Scene

#: Deviation of corners in pixels beyond which the item contradicts its file.
_TOLERANCE_PX: Final = 1.0
#: Code of an authority.
_CODE: Final = re.compile(r"[A-Za-z]{2,12}:[0-9A-Za-z]{1,16}")
_WHOLE_TRANSFORM: Final = (6, 9)
_WHOLE_BBOX: Final = (4, 6)
#: Fields of the CRS, best first.
_CRS_FIELDS: Final = ("proj:code", "proj:epsg", "proj:wkt2", "proj:projjson")


@dataclass(frozen=True, slots=True)
class AssetGrid:
    """The grid that a STAC item declares for an asset; None for what it does not declare."""

    #: CRS as a rasterio object, and as the item gives it.
    crs: Any | None = None
    crs_text: str = ""
    transform: Any | None = None
    #: True if the transform follows from the bounding box, which may be rounded.
    by_bbox: bool = False
    #: Rows and columns.
    shape: tuple[int, int] | None = None
    #: The field that cannot be used, and its value; empty if all can.
    unusable: str = ""


def asset_grid(asset: Mapping[str, Any], properties: Mapping[str, Any]) -> AssetGrid:
    """Return the grid of an asset; a field that cannot be used is left out, and named in `unusable`."""
    owner = asset if any(asset.get(name) for name in _CRS_FIELDS) else properties
    # A transform belongs to the shape beside it: the item's may be that of assets with other pixels.
    place = asset if asset.get("proj:transform") is not None else properties
    own_shape = asset.get("proj:shape", place.get("proj:shape"))
    try:
        shape = _numbers(place.get("proj:shape"), "proj:shape", (2,))
        others = own_shape != place.get("proj:shape")
        numbers = [] if others else _numbers(place.get("proj:transform"), "proj:transform", _WHOLE_TRANSFORM)
        crs, text = _crs(owner)
        if place.get("proj:transform") is None:
            shape = _numbers(own_shape, "proj:shape", (2,))
            box = asset.get("proj:bbox", properties.get("proj:bbox"))
            numbers = _from_bbox(_numbers(box, "proj:bbox", _WHOLE_BBOX), shape)
    except MediaUnreadable as error:
        return AssetGrid(unusable=error.detail)
    transform = rasterio.Affine(*numbers[:6]) if numbers else None
    if transform is not None and not 0 < abs(transform.determinant) < math.inf:
        return AssetGrid(unusable=_unreadable("proj:transform", str(numbers)).detail)
    by_bbox = transform is not None and place.get("proj:transform") is None
    return AssetGrid(crs, text, transform, by_bbox, (int(shape[0]), int(shape[1])) if shape else None)


def _from_bbox(box: Sequence[float], shape: Sequence[float]) -> list[float]:
    """Return the transform of a grid whose rows run from west to east; empty without both fields."""
    if not box or not shape:
        return []
    west, south, east, north = (*box[:2], *box[len(box) // 2 :][:2])
    if not (west < east and south < north and min(shape) >= 1):
        raise _unreadable("proj:bbox", str(list(box)))
    return [(east - west) / shape[1], 0.0, west, 0.0, (south - north) / shape[0], north]


def on_the_grid(scene: Scene, grid: AssetGrid) -> Scene:
    """Return the header of a file with the CRS and the transform of its asset where the file has none.

    A CRS is of no use to a file that stays without a transform. Raises `InvalidInput` for a grid that contradicts the
    file, and `MediaUnreadable` for one that is needed and not usable.
    """
    same_size = grid.shape in (None, (scene.height, scene.width))
    if scene.gcps or scene.rpcs is not None:
        return scene
    if grid.unusable and (scene.crs is None or scene.transform is None):
        raise MediaUnreadable(grid.unusable)
    if grid.crs is not None and scene.crs is not None and scene.transform is not None:
        _check_crs(scene, grid)
    if scene.transform is None and grid.transform is not None and not same_size:
        raise _contradiction(
            f"`proj:shape` is {list(grid.shape or ())}, but the file has {scene.height} rows and {scene.width} "
            "columns, and no georeference of its own"
        )
    exact = grid.transform is not None and not grid.by_bbox
    if scene.transform is not None and exact and grid.shape == (scene.height, scene.width):
        _check_transform(scene, grid)
    transform = grid.transform if scene.transform is None else scene.transform
    crs = grid.crs if scene.crs is None and transform is not None else scene.crs
    return replace(scene, crs=crs, transform=transform)


def grid_notes(before: Scene, after: Scene, grid: AssetGrid) -> Iterator[str]:
    """Yield a note on what was taken from the item."""
    taken = [
        f"{name} ({value})"
        for name, value, old, new in (
            ("CRS", grid.crs_text, before.crs, after.crs),
            (
                "transform",
                _words(after.transform) + (", by `proj:bbox` and `proj:shape`" if grid.by_bbox else ""),
                before.transform,
                after.transform,
            ),
        )
        if old is None and new is not None
    ]
    if taken:
        yield f"The file has no {' and no '.join(taken)} of its own: the STAC item's was used."
    elif grid.crs is not None and after.transform is None and not (after.gcps or after.rpcs):
        yield (
            "The file has no georeference, and the STAC item gives it a CRS, but neither `proj:transform` nor "
            "`proj:bbox` and `proj:shape`. The results have no georeference."
        )


def _crs(fields: Mapping[str, Any]) -> tuple[Any | None, str]:
    """Return the CRS of the fields, and its text; raises `MediaUnreadable` if they have several or an unusable one."""
    found = {name: _crs_of(name, value) for name in _CRS_FIELDS if (value := fields.get(name))}
    codes = {name: crs.to_epsg() for name, (crs, _) in found.items() if crs.to_epsg() is not None}
    if len(set(codes.values())) > 1:
        named = " and ".join(f"{name} is EPSG:{code}" for name, code in codes.items())
        raise MediaUnreadable(f"The STAC item contradicts itself: {named}. Correct or remove one of them.")
    return next(iter(found.values()), (None, ""))


def _crs_of(name: str, value: Any) -> tuple[Any, str]:
    """Return the CRS of one field, and its text."""
    try:
        if name in ("proj:code", "proj:epsg"):
            text = f"EPSG:{value}" if name == "proj:epsg" else str(value)
            if not _CODE.fullmatch(text):
                raise _unreadable(name, text)
            return rasterio.crs.CRS.from_string(text), text
        wkt = CRS.from_json_dict(value).to_wkt() if isinstance(value, dict) else value
        if not isinstance(wkt, str) or names_files(wkt):
            raise _unreadable(name, str(value))
        return rasterio.crs.CRS.from_wkt(wkt), name
    except (CRSError, ProjError) as error:
        raise _unreadable(name, str(value)) from error


def _numbers(value: Any, name: str, counts: tuple[int, ...]) -> list[float]:
    """Return the numbers of a field; empty for a missing one."""
    if value is None or value == []:
        return []
    numbers = value if isinstance(value, list) else []
    if len(numbers) not in counts or not all(isinstance(each, int | float) and math.isfinite(each) for each in numbers):
        raise _unreadable(name, str(value))
    return [float(each) for each in numbers]


def _unreadable(name: str, value: str) -> MediaUnreadable:
    return MediaUnreadable(f"The STAC item's {name} is {value[:60]!r}, which cannot be used: correct or remove it.")


def _check_crs(scene: Any, grid: Any) -> None:
    """Raise `InvalidInput` if the file's corners have other coordinates in the item's CRS than in the file's."""
    corners = np.array([scene.transform @ corner for corner in _corners(scene)])
    try:
        own, declared = (CRS.from_wkt(crs.to_wkt()) for crs in (scene.crs, grid.crs))
        moved = np.stack(Transformer.from_crs(own, declared, always_xy=True).transform(*corners.T), axis=1)
    except ProjError:
        moved = np.full_like(corners, np.inf)
    with np.errstate(invalid="ignore"):
        off_px = np.hypot(*(moved - corners).T).max() / math.sqrt(abs(scene.transform.determinant))
    if not off_px <= _TOLERANCE_PX:
        raise _contradiction(f"its CRS is {grid.crs_text}, but the file's is {str(scene.crs)[:60]}")


def _check_transform(scene: Any, grid: Any) -> None:
    """Raise `InvalidInput` if the item has the file's corners elsewhere."""
    size = math.sqrt(abs(scene.transform.determinant))
    off_px = max(math.dist(scene.transform @ at, grid.transform @ at) for at in _corners(scene)) / size
    if not off_px <= _TOLERANCE_PX:
        raise _contradiction(
            f"`proj:transform` is {_words(grid.transform)}, but the file's is {_words(scene.transform)}"
        )


def _corners(scene: Scene) -> list[tuple[int, int]]:
    return [(column, row) for column in (0, scene.width) for row in (0, scene.height)]


def _words(transform: Any) -> str:
    return "" if transform is None else ", ".join(f"{number:.10g}" for number in tuple(transform)[:6])


def _contradiction(what: str) -> InvalidInput:
    return InvalidInput(
        f"The STAC item contradicts the file: {what}. Give the item of this file, or leave out `stac` and give "
        "`radiometry`.",
        errors=[Issue("/input/stac", "contradicts the file")],
    )
