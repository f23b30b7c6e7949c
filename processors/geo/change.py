"""Two dates of one scene: a second run of the model on an earlier scene, and the outputs split between the two runs.

Each run has its own plan, nodata and checkpoints (see `runs`), so that its classes are those of the model on that scene
alone. Where the scenes have different extents, both are seen with the same edges (`read.inputs.alike`).
Workers share the strips of both: those of the earlier scene come first, those of the later one are numbered after them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from penstock.errors import InputError, InvalidInput, Issue
from penstock.processors.geo.read.grids import is_shifted, nesting
from penstock.processors.geo.read.inputs import Inputs
from penstock.processors.geo.read.provenance import Provenance
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.request import ChangeRequest, SegmentationRequest
from penstock.processors.geo.runs import of_one_scene
from penstock.processors.geo.scene_request import Acquisition
from penstock.processors.geo.tiling.plan import Box

_POINTER = "/input/change"
#: Fields that give a scene.
_WAYS = ("scene", "files", "mosaic", "stac")


def earlier_request(request: SegmentationRequest, change: ChangeRequest) -> SegmentationRequest:
    """Return the request of the earlier scene alone: its class map, of the same area and bands."""
    return of_one_scene(request, change.before, change=None, zones=None, uncertainty=None, outputs=("classes",))


@contextmanager
def of_the_earlier_scene() -> Iterator[None]:
    """Name the earlier scene in errors: its request has the fields of `change.before` as its own."""
    try:
        yield
    except InputError as error:
        issues = [replace(issue, pointer=_in_before(issue.pointer)) for issue in error.errors]
        raise type(error)(f"Before: {error.detail}", errors=issues) from error


def _in_before(pointer: str) -> str:
    """Return the pointer to a field of the earlier scene in the whole request."""
    field = pointer.removeprefix("/input/")
    return f"{_POINTER}/before/{field}" if field.partition("/")[0] in Acquisition.model_fields else pointer


def check_dates(before: Inputs, after: Inputs, request: Acquisition) -> None:
    """Raise `InvalidInput` for two dates on different grids, and for an earlier date that is the later one.

    `request` is that of the earlier scene.
    """
    way = next(name for name in _WAYS if getattr(request, name) is not None)
    place = f"{_POINTER}/before/{way}"
    try:
        factor = nesting(after.grid, before.grid, label="The scene of `change.before`", target_label="the scene")
    except InvalidInput as error:
        if after.area is None and is_shifted(after.grid, before.grid):
            raise _other_extent(before.grid, after.grid, place) from error
        raise InvalidInput(error.detail, errors=[Issue(place, "is on another grid")]) from error
    if not factor.same:
        raise InvalidInput(
            "The scene of `change.before` has another resolution than the scene: both dates must be on one grid.",
            errors=[Issue(place, "has another resolution than the scene")],
        )
    first, last = before.times[-1].at, after.times[-1].at
    if first is not None and last is not None and last < first:
        raise InvalidInput(
            f"The scene of `change.before` is of {first.isoformat()}, after the scene of {last.isoformat()}.",
            errors=[Issue(f"{_POINTER}/before", "is later than the scene")],
        )


def _other_extent(before: Scene, after: Scene, place: str) -> InvalidInput:
    """Return the error for two scenes of one pixel grid and different extents, with the area that both have."""
    ours: Any = after.transform  # both have one: see `is_shifted`
    theirs: Any = before.transform
    corner = ~ours @ (theirs @ (0, 0))
    box = Box(0, 0, before.height, before.width).moved(round(corner[1]), round(corner[0]))
    shared = box.clipped(Box(0, 0, after.height, after.width))
    if shared is None:
        return InvalidInput(
            "The scene of `change.before` does not overlap the scene.", errors=[Issue(place, "is elsewhere")]
        )
    ends = [ours @ (x, y) for x in (shared.left, shared.right) for y in (shared.top, shared.bottom)]
    (west, *_, east), (south, *_, north) = map(sorted, zip(*ends, strict=True))
    crs = json.dumps(str(after.crs))
    return InvalidInput(
        "The scene of `change.before` has another extent than the scene, and its pixels are on the same grid. Give an "
        f'`area` inside both. All that both have is "area": {{"bbox": [{west:.12g}, {south:.12g}, {east:.12g}, '
        f'{north:.12g}], "crs": {crs}}}.',
        errors=[Issue(place, "has another extent than the scene")],
    )


def both(before: Provenance, after: Provenance) -> Provenance:
    """Return the provenance of a change: sources, times and notes of both dates."""
    known = (*before.acquired, *after.acquired) if before.acquired and after.acquired else ()
    return replace(
        after,
        sources=(*after.sources, *before.sources),
        used={**after.used, "before": dict(before.used)},
        acquired=known,
        notes=(*after.notes, *(f"Before: {note}" for note in before.notes)),
        items=(*after.items, *before.items),
    )
