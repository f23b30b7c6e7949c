"""Check of a scene's radiometry before it is tiled: reject impossible values, note doubtful ones, never change any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import numpy as np

from penstock.errors import InvalidInput, Issue
from penstock.processors.geo.options import SceneOptions, SensorOptions
from penstock.processors.geo.read.encodings import decimal, level_1_sun
from penstock.processors.geo.read.inputs import Inputs
from penstock.processors.geo.read.number_sample import Numbers, sample_numbers
from penstock.processors.geo.read.opened_scene import naming
from penstock.processors.geo.read.plausibility import Training, Verdict, judge
from penstock.processors.geo.read.radiometry import PICTURE, Radiometry, eight_bit_advice
from penstock.processors.geo.read.row_stream import SceneRows
from penstock.processors.geo.read.scene_rows import fill_files, open_rows
from penstock.processors.geo.tiling.plan import Box

#: Encodings that a message names at most.
_MOST_NAMED = 2
_POINTER = "/input/radiometry"
_TRUST = 'To use the numbers as they are, add "trust": true to `radiometry`.'


def check_radiometry(inputs: Inputs, options: SceneOptions) -> tuple[str, ...]:
    """Return notes on doubtful radiometry, date by date.

    Only the requested area is read. Raises `InvalidInput` that names the likeliest encoding if a date's values are
    impossible, unless the request trusts them. Models without a declared unit or range are not checked. Each sensor of
    a model of several is checked by itself.
    """
    if not options.modalities:
        return _check(inputs, options, options.dates)
    found = list[str]()
    for number, (sensor, used) in enumerate(zip(options.sensors, inputs.sensors, strict=True), 1):
        with naming(used.name):
            found += [f"{used.name}: {note}" for note in _check(inputs.of(number), sensor, 1)]
    return tuple(found)


def _check(inputs: Inputs, options: SensorOptions, dates: int) -> tuple[str, ...]:
    """Return notes on the bands of one sensor."""
    if options.reflectance is None and not options.decibels and all(band.range is None for band in options.bands):
        return ()
    block_rows = max(band.file.scene.block_rows for band in inputs.bands)
    numbers = sample_numbers(partial(_look, inputs), inputs.box, dates=dates, block_rows=block_rows)
    if options.decibels:
        _check_decibels(numbers, inputs.radiometry)
    training = Training(tuple(options.bands), options.reflectance)
    notes: list[str] = []
    for date, (start, end) in enumerate(pairwise(range(0, len(inputs.bands) + 1, len(options.bands))), start=1):
        label = f"Date {date}: " if dates > 1 else ""
        used = Radiometry(inputs.radiometry.bands[start:end])
        eight_bit = any(band.file.scene.dtype in ("uint8", "int8") for band in inputs.bands[start:end])
        notes += [label + note for note in check_numbers(numbers[start:end], used, training, label, eight_bit)]
    return tuple(notes)


def _check_decibels(numbers: Numbers, used: Radiometry) -> None:
    """Raise `InvalidInput` for values of which none is below 0: of land and water, decibels nearly always are."""
    values = numbers * np.array(used.scale)[:, None] + np.array(used.offset)[:, None]
    if values.size and values.min() >= 0 and not any(band.trusted for band in used.bands):
        raise InvalidInput(
            "The model takes decibels, and no value of the scene is below 0: the numbers look like linear power. Give "
            f'"radiometry": {{"scale": 1, "to_decibels": true}}. {_TRUST}',
            errors=[Issue(f"{_POINTER}/to_decibels", "does not fit the scene's numbers")],
        )


@contextmanager
def _look(inputs: Inputs, boxes: Sequence[Box]) -> Iterator[SceneRows]:
    """Fetch boxes of the scene, and open it: opened before, GDAL might have read what was not there yet."""
    for box in boxes:
        fill_files(inputs, box)
    with open_rows(inputs) as rows:
        yield rows


def check_numbers(
    numbers: Numbers, used: Radiometry, training: Training, label: str = "", eight_bit: bool = False
) -> Iterator[str]:
    """Yield notes on the numbers (bands, pixels) of one date; raise `InvalidInput` for impossible values."""
    verdict = judge(numbers, used.scale, used.offset, training)
    trusted = any(band.trusted for band in used.bands)
    doubted = not trusted and training.unit is not None and used.source != "sidecar"
    if verdict.refused and not trusted:
        raise InvalidInput(
            label + _refusal(verdict, used, training),
            errors=[Issue(_POINTER, "does not fit the scene's numbers")],
        )
    if verdict.refused:
        yield f"The values are implausible, but the request trusts them: {verdict.graded.findings[0].text}."
    elif verdict.doubtful and doubted:
        yield _doubt(verdict, training)
    if doubted:
        yield from _sun_notes(used, training)
    if doubted and eight_bit:
        yield f"The scene has 8-bit numbers. {eight_bit_advice(training.unit or 1.0)}"


def _refusal(verdict: Verdict, used: Radiometry, training: Training) -> str:
    found = verdict.graded.findings[0]
    why = f"With {_words(used)}, the scene's values are impossible: {found.text}."
    if found.kind == "stretch":
        return f"{why} {PICTURE} {_TRUST}"
    if training.unit is None:
        return f"{why} Give the scale and offset of the model's unit in `radiometry`. {_TRUST}"
    if not verdict.likely:
        return f"{why} No usual encoding explains the numbers: check that the bands are in the right order. {_TRUST}"
    first, *others = verdict.likely[:_MOST_NAMED]
    unit = training.unit
    more = "".join(f" If they are {one.name}: {one.remedy(unit)}." for one in others)
    like = f"{first.name}: {first.remedy(unit)} (on the command line: {first.command(unit)})"
    return f"{why} The numbers look like {like}.{more} {_TRUST}"


def _doubt(verdict: Verdict, training: Training) -> str:
    unit = training.unit or 1.0
    found = verdict.graded.findings[0].text
    ifs = " ".join(
        f"If the numbers are {one.name}, {one.remedy(unit)} (on the command line: {one.command(unit)})."
        for one in verdict.likely[:_MOST_NAMED]
    )
    return f"The radiometry cannot be verified: {found}. {ifs}"


def _sun_notes(used: Radiometry, training: Training) -> Iterator[str]:
    """Yield a note on the sun's elevation, which Landsat level 1 needs and the numbers do not show."""
    sun = level_1_sun(used.scale[0], used.offset[0], training.unit or 1.0)
    if sun is not None:
        yield (
            f"Scale {decimal(used.scale[0])} and offset {decimal(used.offset[0])} are right for Landsat level 1 with "
            f"the sun at {sun:.1f} degrees. The numbers do not show the sun's elevation; the product's *_MTL.json has "
            "it: give that file as `sidecar`."
        )


def _words(used: Radiometry) -> str:
    """Return scale, offset and source in words; bands that differ are listed."""
    scale, offset = (", ".join(dict.fromkeys(map(decimal, values))) for values in (used.scale, used.offset))
    return f"scale {scale} and offset {offset} (source: {used.source})"
