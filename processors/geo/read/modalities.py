"""Scenes of a model's further sensors, on the grid of its scene, each with bands and radiometry of its own.

Each is read like a scene of its own and becomes one more of the `dates` of the inputs, so that strips, areas, parts and
checkpoints need nothing more. Pixels that nest in the scene's are those of a scene of several files; others are
reprojected as in a mosaic with a stated grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from penstock.errors import InputError, InvalidInput, Issue
from penstock.models import Limits
from penstock.processors.base import Media
from penstock.processors.geo.options import ModalityOptions, SceneOptions
from penstock.processors.geo.read.grids import Factor, nesting
from penstock.processors.geo.read.inputs import Inputs, SensorInputs, read_inputs
from penstock.processors.geo.read.mosaic import DateScenes
from penstock.processors.geo.read.placement import Shift, bounds_in, warped
from penstock.processors.geo.read.radiometry import Radiometry
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.request import ModalityScene, SceneRequest
from penstock.processors.geo.scene_request import Acquisition
from penstock.processors.geo.tiling.plan import Box

_POINTER = "/input/modalities"


def read_sensors(request: SceneRequest, media: Media, options: SceneOptions, limits: Limits) -> Inputs:
    """Return the opened scene, and those of the model's further sensors; see `read_inputs`.

    Raises `InvalidInput` for missing, unknown and repeated sensors, and for decibels that the model does not take.
    """
    inputs = read_inputs(
        request, media, options.bands, dates=options.dates, defaults=options.default_radiometry,
        reflectance=options.reflectance, limits=limits,
    )  # fmt: skip
    given = request.modalities or ()
    _check_names([one.name for one in given], [one.name for one in options.modalities])
    if options.modalities:
        inputs = replace(inputs, sensors=(SensorInputs(options.modality, inputs.times[-1].at),))
    for sensor in options.modalities:
        at, scene = next((at, one) for at, one in enumerate(given) if one.name == sensor.name)
        with _of_modality(at, sensor.name):
            # Of a scene with an area, only the area counts.
            own = _read(scene, media, sensor, limits if request.area is None else Limits())
            inputs = _with(inputs, own, sensor.name)
    for number, one in enumerate(options.sensors, 1) if options.dates == 1 else ():
        if not one.decibels and any(band.power for band in inputs.of(number).radiometry.bands):
            raise InvalidInput(
                "The model does not take decibels here: leave `to_decibels` out.",
                errors=[Issue("/input/radiometry/to_decibels", "is for models of decibels")],
            )
    return inputs


def _check_names(given: Sequence[str], needed: Sequence[str]) -> None:
    """Raise `InvalidInput` unless the request has each of the model's further sensors once."""
    if sorted(given) == sorted(needed):
        return
    wanted = f"the modalities {', '.join(needed)} beside the scene" if needed else "no modalities beside the scene"
    named = ", ".join(given) or "none"
    raise InvalidInput(
        f"The model takes {wanted}, each once; the request gives {named}.",
        errors=[Issue(_POINTER, f"must be {', '.join(needed)}" if needed else "is for models of several sensors")],
    )


@contextmanager
def _of_modality(at: int, name: str) -> Iterator[None]:
    """Name the sensor in errors: its request has the fields of the modality as its own."""
    try:
        yield
    except InputError as error:
        issues = [replace(issue, pointer=_in_modality(issue.pointer, at)) for issue in error.errors]
        raise type(error)(f"{name}: {error.detail}", errors=issues) from error


def _in_modality(pointer: str, at: int) -> str:
    field = pointer.removeprefix("/input/")
    return f"{_POINTER}/{at}/{field}" if field.partition("/")[0] in Acquisition.model_fields else pointer


def _read(scene: ModalityScene, media: Media, sensor: ModalityOptions, limits: Limits) -> Inputs:
    """Return the scene of a sensor, on a grid of its own."""
    alone = SceneRequest(**{name: getattr(scene, name) for name in Acquisition.model_fields})
    own = read_inputs(
        alone, media, sensor.bands, defaults=sensor.default_radiometry, reflectance=sensor.reflectance, limits=limits
    )
    if own.masked:
        raise InvalidInput("A mask belongs to the scene: it hides pixels of the results.")
    return own


def _with(inputs: Inputs, own: Inputs, name: str) -> Inputs:
    """Return the inputs with the scene of a further sensor on their grid."""
    [date] = own.dates
    number, (placed, resampling) = len(inputs.dates) + 1, _on_grid(date, inputs.scene)
    return replace(
        inputs,
        bands=(*inputs.bands, *(replace(band, date=number) for band in own.bands)),
        radiometry=Radiometry((*inputs.radiometry.bands, *own.radiometry.bands)),
        factors=(*inputs.factors, *placed.members[0].factors),
        files=(*inputs.files, *own.files),
        dates=(*inputs.dates, placed),
        sensors=(*inputs.sensors, SensorInputs(name, own.times[-1].at, resampling)),
        notes=(*inputs.notes, *(f"{name}: {note}" for note in own.notes)),
        items=(*inputs.items, *own.items),
    )


def _on_grid(date: DateScenes, target: Scene) -> tuple[DateScenes, Literal["none", "bilinear", "nearest"]]:
    """Return the scenes of a sensor on the grid `target`, and how their values get there."""
    factors = _nesting(date, target)
    if factors is not None:
        [member] = date.members
        place = Shift(Box(0, 0, target.height, target.width))
        member = replace(member, scene=target, factors=factors, placement=place)
        return DateScenes(target, (member,)), "none" if all(one.same for one in factors) else "bilinear"
    if target.crs is None or target.transform is None or date.scene.crs is None or date.scene.transform is None:
        raise InvalidInput("It is on another grid than the scene, and one of them has no CRS or no geotransform.")
    whole = Box(0, 0, target.height, target.width)
    if all(bounds_in(one.scene, target.crs, target.transform).clipped(whole) is None for one in date.members):
        raise InvalidInput("It does not overlap the scene.")
    members = tuple(
        replace(member, placement=warped(member.scene, target.crs, target.transform, target.height, target.width))
        for member in date.members
    )
    alone = date.merge is None
    return DateScenes(target, members, date.merge or "first", reprojected=True, moved=alone), "nearest"


def _nesting(date: DateScenes, target: Scene) -> tuple[Factor, ...] | None:
    """Return the factor of each band of a single scene whose pixels nest in the target's; else None."""
    if date.merge is not None:
        return None
    try:
        return tuple(nesting(target, band.file.scene, label="") for band in date.members[0].bands)
    except InvalidInput:
        return None
