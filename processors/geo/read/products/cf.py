"""Variables of NetCDF, HDF5 and Zarr as scenes: bands, scale, fill and valid range by the CF conventions.

Each variable with rows and columns is one raster. A further dimension, such as that of the wavelengths, has its bands.

Sources: https://cfconventions.org (2.5.1 missing data, 8.1 packed data);
https://docs.unidata.ucar.edu/nug/current/attribute_conventions.html (`valid_range`, `_Unsigned`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import numpy as np

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.json_body import shown
from penstock.processors.geo.read.band_names import named_sensor
from penstock.processors.geo.read.metadata import parse_time
from penstock.processors.geo.read.products.cf_bands import read_bands
from penstock.processors.geo.read.products.cf_grid import SWATH, Grid, Role, find_grid, is_swath, role_of
from penstock.processors.geo.read.products.product import Product, Raster
from penstock.processors.geo.read.products.times import decode_time, decode_times
from penstock.processors.geo.read.products.variable_raster import Axes, OpenVariables, VariablePart
from penstock.processors.geo.read.products.variables import UnreadError, Variable, Variables
from penstock.processors.geo.read.raster import MAX_BLOCK_BYTES, Scene, ValidNumbers
from penstock.processors.geo.read.sensors import Sensor

#: Bands of a variable, and rasters of a file, at most.
_MAX_BANDS: Final = 1000
#: Rows of a block, at most: higher blocks are decoded several times.
_MAX_BLOCK_ROWS: Final = 1024
#: The default fill of NetCDF for floating point numbers; no measurement is near it.
_FILL_FROM: Final = 9.9e36
_PERCENT: Final = ("%", "percent")
_ANGLES: Final = ("latitude", "longitude")
#: Attributes of coordinates with the name of a variable that has the edges of their cells.
_BOUNDS: Final = ("bounds", "climatology")
_ONE: Final = ("1", "reflectance", "unitless", "dimensionless")
_PLATFORMS: Final = (
    "platform", "platform_name", "sensor", "instrument", "satellite", "source", "title", "product_name",
)  # fmt: skip
_START: Final = ("time_coverage_start", "start_datetime", "datetime", "SENSING_TIME")


@dataclass(frozen=True, slots=True, eq=False)
class _Raster:
    """A variable that is a raster, while its file is open."""

    variable: Variable
    scene: Scene
    grid: Grid


def read_variables(variables: Variables, driver: str, open_variables: OpenVariables) -> Product:
    """Return the rasters of a file. Raises `MediaUnreadable` for a file without one, with the reason."""
    sensor = _sensor(variables)
    bounds = {each.text(name) for each in variables.each.values() for name in _BOUNDS}
    found, unread = list[_Raster](), list(variables.unread)
    for variable in variables.each.values():
        if variable.name in bounds or not _may_be_raster(variable):
            continue
        if len(found) + len(unread) > _MAX_BANDS:
            raise MediaTooLarge(f"The {driver} file has more than {_MAX_BANDS:,} variables with rows and columns.")
        try:
            found.append(_raster(variables, variable, driver, open_variables, sensor))
        except UnreadError as error:
            unread.append(f"{variable.label} {error}")
    if not found:
        reason = f": {unread[0]}" if unread else ": it has no variables of numbers with rows and columns"
        raise MediaUnreadable(f"The {driver} file is no scene{reason}. {READ_ALL}")
    parts = _finest(found)
    notes = tuple(dict.fromkeys(note for each in parts for note in each.grid.notes))
    return Product(tuple(Raster(each.variable.path, each.scene) for each in parts), unread=tuple(unread), notes=notes)


READ_ALL: Final = "The page `Scenes as NetCDF, HDF5, SAFE and Zarr` lists what is read."


def _may_be_raster(variable: Variable) -> bool:
    """Return True for numbers of two dimensions or more that are no coordinates, texts or lists of flags."""
    if len(variable.shape) < 2 or variable.dtype.kind not in "iuf" or variable.dtype.itemsize > 8:
        return False
    standard = variable.text("standard_name")
    return "flag_meanings" not in variable.attributes and standard not in _ANGLES and 0 not in variable.shape


def _raster(
    variables: Variables, variable: Variable, driver: str, open_variables: OpenVariables, sensor: Sensor | None
) -> _Raster:
    roles = [role_of(variables, variable, dimension) for dimension in variable.dimensions]
    block_bytes = int(np.prod(variable.chunks, dtype=object)) * variable.dtype.itemsize
    if block_bytes > MAX_BLOCK_BYTES:
        raise UnreadError(f"is stored in blocks of {block_bytes:,} bytes; at most {MAX_BLOCK_BYTES:,} are read")
    rows, columns, bands = _dimensions(variables, variable, roles)
    height, width = variable.shape[rows], variable.shape[columns]
    grid = find_grid(variables, variable, roles[columns][1], roles[rows][1], width, height)
    axes = Axes(rows, columns, bands, grid.flip_rows, grid.flip_columns)
    dtype = _dtype(variable)
    own = read_bands(variables, variable, bands, sensor)
    nodata, valid = _missing(variable, dtype)
    scale, offset, physical = _scaling(variable, dtype)
    count = len(own)
    scene = Scene(
        driver=driver, height=height, width=width, dtype=dtype.name, count=count, bands=own, crs=grid.crs,
        transform=grid.transform, gcps=(), gcps_crs=None, scales=(scale,) * count, offsets=(offset,) * count,
        nodata=(nodata,) * count, mask_band=None, block_rows=_block_rows(variable, rows),
        acquired=_acquired(variables, variable, roles), valid=valid, physical=physical,
        part=VariablePart(open_variables, variable.path, axes, dtype.name),
    )  # fmt: skip
    return _Raster(variable, scene, grid)


def _dimensions(
    variables: Variables, variable: Variable, roles: Sequence[tuple[Role, Variable | None]]
) -> tuple[int, int, int | None]:
    """Return the dimensions of rows, columns and bands. Raises `UnreadError` for a variable that has other ones."""
    at = {
        wanted: [place for place, (role, _) in enumerate(roles) if role == wanted]
        for wanted in ("x", "y", "time", "rotated")
    }
    if at["rotated"]:
        raise UnreadError("is on a rotated pole, which is not read: bring it onto another grid first")
    if len(at["x"]) != 1 or len(at["y"]) != 1:
        if is_swath(variables, variable):
            raise UnreadError(SWATH)
        every = _named(variable, range(len(variable.shape)))
        raise UnreadError(f"has no coordinates of rows and columns (CF): its dimensions are {every}")
    [columns], [rows] = at["x"], at["y"]
    for place in at["time"]:
        if variable.shape[place] > 1:
            raise UnreadError(_times(variable.shape[place], roles[place][1]))
    more = [
        place for place, size in enumerate(variable.shape) if place not in (rows, columns, *at["time"]) and size > 1
    ]
    if len(more) > 1 or (more and variable.shape[more[0]] > _MAX_BANDS):
        raise UnreadError(
            f"has the dimensions {_named(variable, more)} besides rows and columns; one of at most {_MAX_BANDS} is read"
        )
    return rows, columns, more[0] if more else None


def _named(variable: Variable, places: Iterable[int]) -> str:
    return ", ".join(f"{shown(variable.dimensions[place] or 'unnamed')} ({variable.shape[place]})" for place in places)


def _times(count: int, coordinate: Variable | None) -> str:
    shown = ""
    if coordinate is not None:
        ends = decode_times(coordinate.read(), coordinate.text("units"), coordinate.text("calendar"))
        if all(ends):
            shown = " (" + " to ".join(f"{end:%Y-%m-%d}" for end in ends if end) + ")"
    return (
        f"has {count} times{shown}, and a scene has one: write a file for each time, such as with `ncks -d time,0` or "
        "`Dataset.isel(time=0)` of xarray, and list them in `dates`"
    )


def _dtype(variable: Variable) -> np.dtype[Any]:
    dtype = variable.dtype.newbyteorder("=")
    if dtype.kind == "i" and variable.text("_Unsigned").lower() == "true":
        return np.dtype(f"u{dtype.itemsize}")
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def _block_rows(variable: Variable, rows: int) -> int:
    return max(1, min(variable.chunks[rows], variable.shape[rows], _MAX_BLOCK_ROWS))


def _missing(variable: Variable, dtype: np.dtype[Any]) -> tuple[float | None, ValidNumbers | None]:
    """Return the nodata number, and what else marks missing data: further fill values, and the valid range.

    All of them are packed numbers, as the file has them. Raises `UnreadError` for a range that no number lies in.
    """

    def packed(name: str) -> list[float]:
        return [_unsigned(number, dtype) if turned else number for number in variable.numbers(name)]

    turned = variable.dtype.kind == "i" and dtype.kind == "u"
    fills = packed("_FillValue") + packed("missing_value")
    low, high = (packed("valid_range") + [None] * 2)[:2]
    low, high = next(iter(packed("valid_min")), low), next(iter(packed("valid_max")), high)
    bounds = [number for number in (low, high) if number is not None]
    if bounds != sorted(bounds) or any(map(math.isnan, bounds)):
        raise UnreadError(f"has the valid range {bounds}, in which no number lies: correct its `valid_range`")
    if dtype.kind == "f":
        high = min(high, _FILL_FROM) if high is not None else _FILL_FROM
    others = tuple(dict.fromkeys(fills[1:]))
    others = tuple(number for number in others if number != fills[0])
    ranged = any(name in variable.attributes for name in ("valid_range", "valid_min", "valid_max"))
    plain = low is None and high is None and not others
    return (fills[0] if fills else None), None if plain else ValidNumbers(low, high, others, declared=ranged)


def _unsigned(number: float, dtype: np.dtype[Any]) -> float:
    """Return a number of a signed attribute as the unsigned numbers of `_Unsigned` have it."""
    return number + 2 ** (8 * dtype.itemsize) if number < 0 else number


def _scaling(variable: Variable, dtype: np.dtype[Any]) -> tuple[float, float, bool]:
    """Return scale, offset, and True if they are declared: by attributes, or for real numbers by their unit.

    Raises `UnreadError` for a scale or an offset that is not one number.
    """
    scales, offsets = _one(variable, "scale_factor"), _one(variable, "add_offset")
    unit = variable.text("units").lower()
    factor = 0.01 if unit in _PERCENT else 1.0
    declared = bool(scales or offsets) or (dtype.kind == "f" and unit in (*_PERCENT, *_ONE))
    return (scales[0] if scales else 1.0) * factor, (offsets[0] if offsets else 0.0) * factor, declared


def _one(variable: Variable, name: str) -> list[float]:
    """Return the number of an attribute; empty if there is none. Raises `UnreadError` for another than one number."""
    found = variable.numbers(name)
    if name in variable.attributes and len(set(map(repr, found))) != 1:
        raise UnreadError(f"has a `{name}` that is not one number")
    return found


def _acquired(
    variables: Variables, variable: Variable, roles: Sequence[tuple[Role, Variable | None]]
) -> datetime | None:
    """Return the time of a variable: of its dimension, its scalar coordinate, or the file's first time."""
    coordinates = [found for role, found in roles if role == "time" and found is not None]
    scalar = variables.find("time", variable)
    for each in (*coordinates, *([scalar] if scalar is not None and scalar.shape in ((), (1,)) else [])):
        number = each.read().reshape(-1)[0]
        if found := decode_time(number, each.text("units"), each.text("calendar")):
            return found
    for name in _START:
        text = str(variables.inherited(name, variable) or "").strip()
        if found := parse_time(text) or parse_time(f"{text}+00:00"):
            return found
    return None


def _sensor(variables: Variables) -> Sensor | None:
    root = variables.attributes.get("", {})
    return named_sensor(str(root[name])[:200] for name in _PLATFORMS if name in root)


def _finest(rasters: Sequence[_Raster]) -> list[_Raster]:
    """Return the rasters, of each name the finest one; others of a name in several places get their whole path."""
    found = []
    for _, group in groupby(sorted(rasters, key=_name), key=_name):
        same = list(group)
        best = min(same, key=lambda each: abs(each.grid.transform.determinant))
        if all(each is best or _is_coarser(each.grid, best.grid) for each in same):
            found.append(best)
        else:
            found += [replace(each, scene=_renamed(each.scene, each.variable.path)) for each in same]
    order = {each.variable.path: at for at, each in enumerate(rasters)}
    return sorted(found, key=lambda each: order[each.variable.path])


def _name(raster: _Raster) -> str:
    return raster.variable.name


def _is_coarser(one: Grid, other: Grid) -> bool:
    """Return True for a grid of the same CRS and the same place, with larger pixels."""
    ratio = abs(one.transform.determinant / other.transform.determinant)
    corner = ~other.transform @ (one.transform.c, one.transform.f)
    return one.crs == other.crs and ratio > 1.5 and max(map(abs, corner)) < 0.5


def _renamed(scene: Scene, path: str) -> Scene:
    return scene if scene.count > 1 else replace(scene, bands=(replace(scene.bands[0], name=path),))
