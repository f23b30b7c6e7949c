"""Scenes of one date on one grid: a single scene, or a mosaic of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from penstock.errors import InvalidInput, Issue
from penstock.processors.geo.read.gdal import CRSError, rasterio
from penstock.processors.geo.read.grids import Factor, finest, nesting
from penstock.processors.geo.read.input_file import InputBand, InputFile
from penstock.processors.geo.read.masks import SceneMask, fitted
from penstock.processors.geo.read.merge import Merge, merged_dtype
from penstock.processors.geo.read.opened_scene import OpenedMask, naming
from penstock.processors.geo.read.placement import Placement, Shift, bounds_in, extent_in, warped
from penstock.processors.geo.read.radiometry import BandRadiometry
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.read.row_stream import layer_dtype
from penstock.processors.geo.scene_request import GridRequest, MosaicRequest
from penstock.processors.geo.tiling.plan import Box

_POINTER: Final = "/input/mosaic"
#: Largest deviation of a scene's pixels from the mosaic's, in pixels.
_TOLERANCE_PX: Final = 0.01
#: Pixels of a mosaic for each pixel of its scenes, at most: scenes that are far apart would be mostly nodata.
_MOST_EMPTY: Final = 100
#: Pixels of the scenes for each pixel of a stated grid, at most, and the reverse. Beyond, the resolution is taken to be
#: in a wrong unit: metres for degrees are a factor of 1e10.
_COARSEST: Final = 10_000
_FINEST: Final = _MOST_EMPTY
_SAME: Final = Factor(1, 1)


@dataclass(frozen=True, slots=True)
class ChosenScene:
    """One scene with the bands that the model needs."""

    label: str
    bands: tuple[InputBand, ...]
    radiometry: tuple[BandRadiometry, ...]
    mask: OpenedMask | None
    #: Notes on the choice of the bands.
    notes: tuple[str, ...] = ()
    #: Notes on what was assumed from the scene's STAC item.
    item_notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One scene on the grid of its date."""

    #: Header of the scene's own grid.
    scene: Scene
    bands: tuple[InputBand, ...]
    radiometry: tuple[BandRadiometry, ...]
    #: Pixels of the scene's grid per file pixel, for each band.
    factors: tuple[Factor, ...]
    mask: SceneMask | None
    placement: Placement
    #: The part of the date's grid beside which the scene counts as without data; None for all.
    window: Box | None = None

    @property
    def box(self) -> Box:
        """The part of the date's grid that has the scene's pixels."""
        box = self.placement.box
        return box if self.window is None else box.clipped(self.window) or Box(box.top, box.left, box.top, box.left)

    @property
    def crop(self) -> Box:
        """The part of the scene that is read, as if its files had no other: whole pixels of all its bands."""
        height, width = self.scene.height, self.scene.width
        whole, placement = Box(0, 0, height, width), self.placement
        if self.window is None or not isinstance(placement, Shift) or (seen := placement.source(self.window)) is None:
            return whole
        rows = math.lcm(*(factor.rows for factor in self.factors))
        columns = math.lcm(*(factor.columns for factor in self.factors))
        around = Box(
            seen.top // rows * rows, seen.left // columns * columns,
            -(-seen.bottom // rows) * rows, -(-seen.right // columns) * columns,
        )  # fmt: skip
        return around.clipped(whole) or whole

    def files(self) -> tuple[InputFile, ...]:
        """Return the files of the bands, each once."""
        return tuple(dict.fromkeys(band.file for band in self.bands))


@dataclass(frozen=True, slots=True, eq=False)
class DateScenes:
    """The scenes of one date."""

    #: Header of the grid of all scenes together.
    scene: Scene
    members: tuple[Member, ...]
    #: Way in which scenes are merged; None for a single scene.
    merge: Merge | None = None
    #: True if each scene is interpolated by itself: the scenes are reprojected to a stated grid, or `moved`.
    reprojected: bool = False
    #: True for a single scene that is read like another scene, on its grid; its `merge` fills the pixels beside it.
    moved: bool = False

    def dtypes(self) -> list[np.dtype[Any]]:
        """Return the data type of each band's numbers on the grid."""
        each = []
        for place, factor in enumerate(self.members[0].factors):
            own = [self._dtype(member, place) for member in self.members]
            dtype = own[0] if self.merge is None else merged_dtype(own, self.merge)
            each.append(dtype if self.reprojected else layer_dtype(dtype, factor))
        return each

    def _dtype(self, member: Member, place: int) -> np.dtype[Any]:
        file, factor = member.bands[place].file, member.factors[place]
        dtype = np.dtype(file.scene.dtype)
        return rescaled_dtype(layer_dtype(dtype, factor) if self.reprojected else dtype, self.rescaling(member))

    @property
    def masks(self) -> tuple[SceneMask, ...]:
        """The masks of the scenes."""
        return tuple(member.mask for member in self.members if member.mask is not None)

    @property
    def overlaps(self) -> int:
        """Return the largest number of scenes that overlap one scene, with this scene itself."""
        boxes = [member.placement.box for member in self.members]
        return max(sum(box.clipped(other) is not None for other in boxes) for box in boxes)

    def merges_coarse(self, factor: Factor) -> bool:
        """Return True if bands of this factor are merged in their own coarser pixels, and then interpolated."""
        return self.merge is not None and not self.reprojected and not factor.same

    def rescaling(self, member: Member) -> tuple[tuple[float, float], ...] | None:
        """Return scale and offset from a scene's numbers to those of the first scene; None if they are the same."""
        pairs = [
            (own.scale / first.scale, (own.offset - first.offset) / first.scale)
            for own, first in zip(member.radiometry, self.members[0].radiometry, strict=True)
        ]
        return None if all(pair == (1, 0) for pair in pairs) else tuple(pairs)

    def to_json(self) -> dict[str, Any] | None:
        """Return the mosaic as recorded in the statistics: the place of each scene in it; None for a single scene."""
        if self.merge is None or self.moved:
            return None
        boxes = [member.placement.box for member in self.members]
        return {
            "merge": self.merge,
            "reprojected": self.reprojected,
            "scenes": [{"rows": [box.top, box.bottom], "columns": [box.left, box.right]} for box in boxes],
        }


def rescaled_dtype(dtype: np.dtype[Any], rescaling: object | None) -> np.dtype[Any]:
    """Return the data type of rescaled numbers."""
    return dtype if rescaling is None else np.result_type(dtype, np.float32)


def on_one_grid(bands: Sequence[InputBand]) -> tuple[Scene, tuple[Factor, ...]]:
    """Return the scene of the finest file, and the factor of each band's pixels to its grid."""
    files = list(dict.fromkeys(band.file for band in bands))
    target = files[finest([file.scene for file in files])].scene
    factors = {file: nesting(target, file.scene, label=file.label) for file in files}
    return target, tuple(factors[band.file] for band in bands)


def single_scene(chosen: ChosenScene, target: Scene, factors: tuple[Factor, ...]) -> DateScenes:
    """Return a date of one scene on the grid of all dates."""
    mask = fitted(chosen.mask, target)
    place = Shift(Box(0, 0, target.height, target.width))
    return DateScenes(target, (Member(target, chosen.bands, chosen.radiometry, factors, mask, place),))


def merge_scenes(chosen: Sequence[ChosenScene], request: MosaicRequest) -> DateScenes:
    """Return the scenes of a mosaic on one grid.

    Raises `InvalidInput` for scenes without a georeference, on different grids (unless a grid is stated), and far
    apart, for masks of some scenes only, and for masks of several kinds.
    """
    grids = []
    for one in chosen:
        with naming(one.label):
            grids.append(on_one_grid(one.bands))
            _check_place(grids[-1][0])
    if len({one.mask is None for one in chosen}) > 1:
        raise _wrong("Some scenes of the mosaic have a mask, others have none: give all of them a mask, or none.")
    kinds = [one.mask.kind for one in chosen if one.mask is not None]
    if any(kind != kinds[0] for kind in kinds):
        raise _wrong("The masks of a mosaic must be of one kind.")
    scenes = [scene for scene, _ in grids]
    labels = [one.label for one in chosen]
    placements: Sequence[Placement]
    if request.grid is None:
        union, placements = shifts = _on_their_grid(scenes, labels)
        _check_factors([factors for _, factors in grids], shifts[1])
    else:
        union, placements = _on_stated_grid(scenes, labels, request.grid)
    if union.height * union.width > _MOST_EMPTY * sum(scene.height * scene.width for scene in scenes):
        raise _wrong("The scenes of the mosaic are far apart, and nearly all of it would be empty: use several jobs.")
    members = tuple(
        Member(scene, one.bands, one.radiometry, factors, fitted(one.mask, scene), place)
        for one, (scene, factors), place in zip(chosen, grids, placements, strict=True)
    )
    return DateScenes(union, members, request.merge, request.grid is not None)


def on_other_grid(date: DateScenes, target: Scene, rows: int, columns: int, window: Box) -> DateScenes:
    """Return the scenes of a date on the grid `target` of the same pixels, of which they may cover only a part.

    `rows` and `columns` are the place of the date's first pixel in `target`: grids of ground control points have no
    transform that tells it. The pixels beside the scenes, and beside `window` in `target`, have no data. A mosaic stays
    on its own grid if its coarser bands do not nest in `target`.
    """
    place = ("crs", "transform", "height", "width", "gcps", "gcps_crs", "rpcs")
    grid = replace(date.scene, **{name: getattr(target, name) for name in place})
    members = tuple(
        replace(member, placement=member.placement.moved(rows, columns, target.transform), window=window)
        for member in date.members
    )
    if date.merge is None:
        return DateScenes(grid, members, "first", reprojected=True, moved=True)
    coarse = [factor for factor in date.members[0].factors if date.merges_coarse(factor)]
    nests = all(rows % factor.rows == 0 and columns % factor.columns == 0 for factor in coarse)
    return replace(date, scene=grid, members=members) if nests else date


def _wrong(sentence: str, place: str = "") -> InvalidInput:
    return InvalidInput(sentence, errors=[Issue(_POINTER + place, "cannot be made")])


def _check_place(scene: Scene) -> None:
    if scene.crs is None or scene.transform is None:
        raise _wrong("A mosaic needs scenes with a CRS and a geotransform; this scene has none.")


def _on_their_grid(scenes: Sequence[Scene], labels: Sequence[str]) -> tuple[Scene, list[Shift]]:
    """Return the grid that covers scenes of one pixel grid, and the place of each."""
    first, boxes = scenes[0], list[Box]()
    for scene, label in zip(scenes, labels, strict=True):
        if scene.crs != first.crs:
            raise _differs(f"{label} has another CRS than the first scene.")
        # A transform times its inverse may differ from identity by rounding.
        same = scene.transform == first.transform
        px = rasterio.Affine.identity() if same else _inverse(first.transform) @ scene.transform
        top, left = round(px.f), round(px.c)
        box = Box(top, left, top + scene.height, left + scene.width)
        if _deviation(px, scene, box) > _TOLERANCE_PX:
            raise _differs(f"The pixels of {label} are not those of the first scene's grid.")
        boxes.append(box)
    top, left = min(box.top for box in boxes), min(box.left for box in boxes)
    bottom, right = max(box.bottom for box in boxes), max(box.right for box in boxes)
    moved = first.transform if top == left == 0 else first.transform @ rasterio.Affine.translation(left, top)
    corner_box = Box(top, left, bottom, right)
    union = _grid(first, first.crs, moved, corner_box.height, corner_box.width)
    return union, [Shift(box.within(corner_box)) for box in boxes]


def _inverse(transform: Any) -> Any:
    return ~transform


def _deviation(px: Any, scene: Scene, box: Box) -> float:
    """Return the largest distance in pixels of a scene's corners from those of its box; `px` places its pixels."""
    off = [math.dist(px @ (u, v), (box.left + u, box.top + v)) for u in (0, scene.width) for v in (0, scene.height)]
    return max(off)


def _differs(sentence: str) -> InvalidInput:
    return _wrong(f"{sentence} State a `grid` (`crs` and `resolution`), to which all scenes are then reprojected.")


def _check_factors(factors: Sequence[tuple[Factor, ...]], placements: Sequence[Shift]) -> None:
    """Raise `InvalidInput` unless each band has one resolution in all scenes, and its pixels are on one grid."""
    if len(set(factors)) > 1:
        raise _differs("The bands of the scenes have different resolutions.")
    for factor in set(factors[0]):
        if any(place.coarser(factor.rows, factor.columns) is None for place in placements):
            raise _differs("The pixels of the scenes' coarser bands are not on one grid.")


def _on_stated_grid(
    scenes: Sequence[Scene], labels: Sequence[str], request: GridRequest
) -> tuple[Scene, list[Placement]]:
    """Return the stated grid that covers the scenes, and the place of each."""
    try:
        crs = rasterio.crs.CRS.from_string(request.crs)
    except CRSError as error:
        raise _wrong(f"There is no CRS {request.crs!r}; give a code such as EPSG:32738.", "/grid/crs") from error
    size = request.resolution
    anchor = rasterio.Affine(size, 0, 0, 0, -size, 0)
    boxes, covered = [], 0.0
    for scene, label in zip(scenes, labels, strict=True):
        with naming(label):
            boxes.append(bounds_in(scene, crs, anchor))
            north, west, south, east = extent_in(scene, crs, anchor)
            covered += (south - north) * (east - west)
    top, left = min(box.top for box in boxes), min(box.left for box in boxes)
    height, width = max(box.bottom for box in boxes) - top, max(box.right for box in boxes) - left
    transform = rasterio.Affine(size, 0, left * size, 0, -size, -top * size)
    if not math.isfinite(transform.c * transform.f) or height * width <= 0:
        raise _wrong("The scenes have no place on the stated grid.", "/grid")
    own = sum(scene.height * scene.width for scene in scenes)
    if covered * _COARSEST < own or min(sum(box.height * box.width for box in boxes), height * width) > _FINEST * own:
        raise _wrong(
            f"The resolution of a mosaic's grid is in the unit of its CRS. The unit of {request.crs} is the "
            f"{_unit(crs)}: with the resolution {size:g}, the mosaic would have {width:,} x {height:,} pixels, "
            f"and its scenes have {own:,} pixels together.",
            "/grid/resolution",
        )
    union = _grid(scenes[0], crs, transform, height, width)
    return union, [warped(scene, crs, transform, height, width) for scene in scenes]


def _unit(crs: Any) -> str:
    """Return the name of a CRS's unit, such as degree or metre."""
    name, _ = crs.units_factor
    return str(name)


def _grid(first: Scene, crs: Any, transform: Any, height: int, width: int) -> Scene:
    """Return the header of a mosaic, with the first scene's data type and blocks."""
    return replace(
        first, crs=crs, transform=transform, height=height, width=width, gcps=(), gcps_crs=None, rpcs=None,
    )  # fmt: skip
