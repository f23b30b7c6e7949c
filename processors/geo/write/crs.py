"""The name and the proj4 text of a scene's coordinate reference system, for clients that draw its rasters."""

from __future__ import annotations

import math
import warnings
from typing import Any

from pyproj import CRS, Transformer
from pyproj.exceptions import CRSError, ProjError

#: Metres between a datum and WGS 84 below which they are taken as one.
_SAME_M = 0.5
_WGS84 = CRS.from_epsg(4326)


def crs_to_json(crs: Any | None, x: float, y: float) -> dict[str, str | None] | None:
    """Return `name` (`EPSG:32633`, or the name in its WKT) and `proj4` of a CRS of rasterio; None without a CRS.

    (x, y) is the scene's middle. `proj4` is null where the CRS has none, such as that of a plan. A proj4 text cannot
    name most datums: the shift to WGS 84 at the middle stands in it as `+towgs84`.
    """
    if crs is None:
        return None
    try:
        found = CRS.from_wkt(crs.to_wkt())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # pyproj warns of each text that a WKT says more than
            proj4 = found.to_proj4() or None
    except CRSError:
        return {"name": str(crs)[:100], "proj4": None}
    authority = found.to_authority()
    name = ":".join(authority) if authority else found.name
    return {"name": name, "proj4": proj4 and _with_shift(found, proj4, x, y)}


def _with_shift(crs: CRS, proj4: str, x: float, y: float) -> str | None:
    """Return the text with the shift of its datum at (x, y); None where the place has no longitude and latitude."""
    own = crs.geodetic_crs
    if own is None:
        return None
    try:
        here, there = (
            _geocentric(target, *Transformer.from_crs(crs, target, always_xy=True).transform(x, y, errcheck=True))
            for target in (own, _WGS84)
        )
    except ProjError:
        return None
    shift = [b - a for a, b in zip(here, there, strict=True)]
    if math.hypot(*shift) < _SAME_M:
        return proj4
    metres = ",".join(f"{each:.3f}" for each in shift)
    return proj4.replace(" +no_defs", f" +towgs84={metres} +no_defs")


def _geocentric(crs: CRS, lon: float, lat: float) -> tuple[float, float, float]:
    """Return geocentric metres of degrees on the ellipsoid of a CRS."""
    assert crs.ellipsoid is not None  # noqa: S101  (a geodetic CRS has one)
    a, b = crs.ellipsoid.semi_major_metre, crs.ellipsoid.semi_minor_metre
    squared, phi, lam = 1 - (b / a) ** 2, math.radians(lat), math.radians(lon)
    n = a / math.sqrt(1 - squared * math.sin(phi) ** 2)
    level = n * math.cos(phi)
    return level * math.cos(lam), level * math.sin(lam), n * (1 - squared) * math.sin(phi)
