"""The place of a variable's pixels by the CF conventions: coordinates, grid mapping, and what GDAL and GeoZarr write.

Sources: https://cfconventions.org (4 coordinate types, 5.6 grid mappings, appendix F);
https://gdal.org/drivers/raster/netcdf.html (`spatial_ref`, `GeoTransform`); https://github.com/zarr-conventions
(`proj:code`, `proj:epsg`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pyproj import CRS
from pyproj.exceptions import CRSError as ProjCRSError

from penstock.json_body import shown
from penstock.processors.geo.read.gdal import CPLE_BaseError, CRSError, names_files, rasterio
from penstock.processors.geo.read.products.times import is_time
from penstock.processors.geo.read.products.variables import UnreadError, Variable, Variables, as_numbers, as_text

Role = Literal["x", "y", "time", "", "rotated"]

#: Largest distance of a coordinate from its place on an even grid, in pixels: coordinates are often float32.
_TOLERANCE_PX: Final = 0.05

_STANDARD_NAMES: Final[Mapping[str, Role]] = {
    "projection_x_coordinate": "x", "longitude": "x", "projection_x_angular_coordinate": "x",
    "projection_y_coordinate": "y", "latitude": "y", "projection_y_angular_coordinate": "y",
    "grid_longitude": "rotated", "grid_latitude": "rotated", "time": "time",
}  # fmt: skip
_AXES: Final[Mapping[str, Role]] = {"X": "x", "Y": "y", "T": "time"}
_DEGREES_EAST: Final = ("degrees_east", "degree_east", "degree_e", "degrees_e", "degreee", "degreese")
_DEGREES_NORTH: Final = ("degrees_north", "degree_north", "degree_n", "degrees_n", "degreen", "degreesn")
_NAMES: Final[Mapping[str, Role]] = {
    **dict.fromkeys(("x", "lon", "longitude", "easting", "eastings", "xc", "xdim"), "x"),
    **dict.fromkeys(("y", "lat", "latitude", "northing", "northings", "yc", "ydim"), "y"),
    **dict.fromkeys(("rlon", "rlat"), "rotated"),
    **dict.fromkeys(("time", "t"), "time"),
}  # fmt: skip
#: Factors to metres.
_METRES: Final = {"km": 1000.0, "kilometer": 1000.0, "kilometre": 1000.0, "kilometers": 1000.0, "kilometres": 1000.0}
#: Digits of a code of EPSG, at most.
_CODE_DIGITS: Final = 6
#: Names of attributes with a CRS as WKT.
_WKT: Final = ("crs_wkt", "spatial_ref")
_GEODETIC: Final = ("GEOGCRS", "GEOGCS", "GEODCRS", "PROJCRS", "PROJCS", "BOUNDCRS", "COMPD_CS", "COMPOUNDCRS")


#: Clause about a variable whose pixels have two-dimensional coordinates.
SWATH: Final = (
    "is a swath: two-dimensional longitudes and latitudes place its pixels. Bring it onto a grid first, such as with "
    "`gdalwarp -geoloc`"
)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The place of a variable's rows and columns, north at the top and west at the left."""

    crs: Any | None
    transform: Any
    #: True if the file has its rows from south to north, and its columns from east to west.
    flip_rows: bool
    flip_columns: bool
    notes: tuple[str, ...] = ()


def role_of(variables: Variables, variable: Variable, dimension: str) -> tuple[Role, Variable | None]:
    """Return what a dimension of a variable is, and its coordinate variable."""
    found = variables.find(dimension, variable) if dimension else None
    if found is None or len(found.shape) != 1 or found.dtype.kind not in "iufM":
        return _NAMES.get(dimension.lower(), ""), None
    units = found.text("units").lower()
    if role := _STANDARD_NAMES.get(found.text("standard_name")):
        return role, found
    if units in _DEGREES_EAST or units in _DEGREES_NORTH:
        return ("x" if units in _DEGREES_EAST else "y"), found
    if found.dtype.kind == "M" or is_time(units):
        return "time", found
    return _AXES.get(found.text("axis").upper()) or _NAMES.get(dimension.lower(), ""), found


def is_swath(variables: Variables, variable: Variable) -> bool:
    """Return True if two-dimensional longitudes and latitudes place the pixels of a variable."""
    named = [variables.find(name, variable) for name in variable.text("coordinates").split()]
    beside = [each for each in variables.each.values() if each.group == variable.group]
    found = [each for each in (*named, *beside) if each is not None and len(each.shape) >= 2]
    return any(_is_angle(each) and set(each.dimensions) <= set(variable.dimensions) for each in found)


def _is_angle(variable: Variable) -> bool:
    return (
        variable.text("standard_name") in ("longitude", "latitude")
        or variable.text("units").lower() in (*_DEGREES_EAST, *_DEGREES_NORTH)
        or variable.name.lower() in ("lon", "lat", "longitude", "latitude", "xlong", "xlat")
    )


def find_grid(
    variables: Variables, variable: Variable, x: Variable | None, y: Variable | None, width: int, height: int
) -> Grid:
    """Return the grid of a variable of `height` rows and `width` columns. Raises `UnreadError` for one without."""
    mapping = _mapping(variables, variable)
    attributes = {} if mapping is None else mapping.attributes
    crs, notes = _crs(variables, variable, attributes, x, y)
    stated = _geotransform(attributes) or _usable(variable.numbers("proj:transform")[:6], gdal=False)
    if x is None or y is None:
        if stated is None and is_swath(variables, variable):
            raise UnreadError(SWATH)
        if stated is None:
            raise UnreadError("has no coordinates (CF): no one-dimensional variables with the names of its dimensions")
        return Grid(crs, stated, flip_rows=False, flip_columns=False, notes=notes)
    left, step_x, flip_columns = _even(x, width, 1, stated.a if stated else None)
    top, step_y, flip_rows = _even(y, height, -1, stated.e if stated else None)
    if crs is not None and crs.is_geographic and left >= 180:
        left -= 360
    transform = rasterio.Affine(step_x, 0, left, 0, step_y, top)
    if stated is not None and _same(stated, transform, width, height):
        transform = stated  # without the rounding of coordinates
    return Grid(crs, transform, flip_rows, flip_columns, notes)


def _even(axis: Variable, size: int, sign: int, stated: float | None) -> tuple[float, float, bool]:
    """Return the first edge, the step and the need to reverse an axis, so that its step has the sign.

    Raises `UnreadError` for coordinates that are not evenly spaced, and for a single one without a stated step.
    """
    values = axis.read().astype(np.float64).reshape(-1) * _METRES.get(axis.text("units").lower(), 1.0)
    scale, offset = axis.numbers("scale_factor") or [1.0], axis.numbers("add_offset") or [0.0]
    values = values * scale[0] + offset[0]
    if values.size != size or not np.isfinite(values).all():
        raise UnreadError(f"has the coordinate {axis.label} with {values.size} usable values for {size} pixels")
    if size == 1:
        if not stated:
            raise UnreadError(f"has a single value of {axis.label}, so that the size of its pixels is not known")
        return float(values[0]) - sign * abs(stated) / 2, sign * abs(stated), False
    step = float(values[-1] - values[0]) / (size - 1)
    uneven = _uneven_px(values, step)
    if not uneven <= _TOLERANCE_PX:
        raise UnreadError(
            f"has the coordinate {axis.label}, whose values are not evenly spaced (up to {uneven:.3g} pixels off): "
            "bring it onto a regular grid first"
        )
    flip = step * sign < 0
    first = float(values[-1] if flip else values[0])
    return first - sign * abs(step) / 2, sign * abs(step), flip


def _uneven_px(values: npt.NDArray[np.float64], step: float) -> float:
    """Return the largest distance of a value from its place, in steps; infinity for values that do not move."""
    if step == 0:
        return math.inf
    return float(np.abs(values - (values[0] + step * np.arange(values.size))).max() / abs(step))


def _same(one: Any, other: Any, width: int, height: int) -> bool:
    corners = [(u, v) for u in (0, width) for v in (0, height)]
    if one.determinant == 0:
        return False
    return all(math.dist(~one @ (other @ corner), corner) <= _TOLERANCE_PX for corner in corners)


def _mapping(variables: Variables, variable: Variable) -> Variable | None:
    """Return the variable with the CRS: `grid_mapping = "crs"`, or `"crs: x y"` of CF 1.7; else `spatial_ref`."""
    names = variable.text("grid_mapping").split(":")[0].split()
    named = variables.find(names[0], variable) if names else None
    if names and named is None:
        raise UnreadError(f"names the grid mapping {shown(names[0])!r}, which is not in the file")
    return named or variables.find("spatial_ref", variable)


def _crs(
    variables: Variables, variable: Variable, mapping: Mapping[str, Any], x: Variable | None, y: Variable | None
) -> tuple[Any | None, tuple[str, ...]]:
    """Return the CRS (rasterio) of a variable, and a note on an assumed or an unknown one."""
    try:
        found, unread = _stated_crs(variables, variable, mapping)
        if found is not None:
            _check_crs(found)
            return found, ()
    except (CRSError, CPLE_BaseError, ProjCRSError, ValueError, KeyError, TypeError) as error:
        raise UnreadError("has a grid mapping (CF) that is no usable CRS") from error
    units = [axis.text("units").lower() for axis in (x, y) if axis is not None]
    if any(unit in (*_DEGREES_EAST, *_DEGREES_NORTH) for unit in units):
        given = unread or "The file gives longitude and latitude without a grid mapping."
        return rasterio.crs.CRS.from_epsg(4326), (f"{given} They were taken as those of WGS 84.",)
    return None, (f"{unread or 'The file names no CRS (no grid mapping)'}: the results have no CRS.",)


def _stated_crs(variables: Variables, variable: Variable, mapping: Mapping[str, Any]) -> tuple[Any | None, str]:
    """Return the CRS that a variable states, or else a clause about a text that is no CRS."""
    unread = ""
    for name in _WKT:
        text = as_text(mapping.get(name))
        if text.lstrip().startswith(_GEODETIC):  # other texts can name files, as PROJ strings do
            if names_files(text):
                raise UnreadError(f"has a grid mapping (CF) whose `{name}` names a file of its own, which is not read")
            return rasterio.crs.CRS.from_wkt(text), ""
        unread = unread or (f"The file's `{name}`, {shown(text)!r}, is no WKT and was not read" if text else "")
    if as_text(mapping.get("grid_mapping_name")):
        given = {name: _plain(value) for name, value in mapping.items() if name not in _WKT}
        return rasterio.crs.CRS.from_wkt(CRS.from_cf(given).to_wkt()), ""
    for name in ("proj:code", "proj:epsg"):
        value = variables.inherited(name, variable)
        number = as_text(value).upper().removeprefix("EPSG:") or next((f"{n:.0f}" for n in as_numbers(value)), "")
        if number.isdecimal() and len(number) <= _CODE_DIGITS:
            return rasterio.crs.CRS.from_epsg(int(number)), ""
    return None, unread


def _plain(value: Any) -> Any:
    """Return an attribute as `pyproj` takes it: text, a number, or a list of numbers."""
    text, numbers = as_text(value), as_numbers(value)
    return text or (numbers[0] if len(numbers) == 1 else numbers)


def _check_crs(crs: Any) -> None:
    """Raise `UnreadError` for a CRS that a GeoTIFF, which the results are, cannot hold."""
    text = crs.to_wkt().upper()
    if "POLE_ROTATION" in text or "POLE ROTATION" in text or "OB_TRAN" in text or "DERIVINGCONVERSION" in text:
        raise UnreadError("is on a rotated pole, whose CRS no GeoTIFF holds: bring it onto another grid first")
    if "GEOSTATIONARY" in text:
        raise UnreadError(
            "is in the view of a geostationary satellite, whose CRS no GeoTIFF holds: bring it onto another grid first"
        )


def _geotransform(mapping: Mapping[str, Any]) -> Any | None:
    """Return the transform that GDAL writes: six numbers in the attribute `GeoTransform`."""
    words = as_text(mapping.get("GeoTransform")).split()
    return _usable([float(word) for word in words], gdal=True) if all(map(_is_number, words)) else None


def _usable(numbers: list[float], *, gdal: bool) -> Any | None:
    if len(numbers) != 6 or not all(map(math.isfinite, numbers)):
        return None
    found = rasterio.Affine.from_gdal(*numbers) if gdal else rasterio.Affine(*numbers)
    return found if found.determinant != 0 else None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
