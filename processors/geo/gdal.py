"""GDAL, made safe before it is loaded. Every module here that needs rasterio gets it from this one.

GDAL reads these settings from the environment: some when it registers its drivers, so they must stand before the first
import. They keep it from reading anything but the file it is given: no neighbours (sidecar files), no `.aux.xml`, and
no formats whose files are lists of other files or addresses.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import MediaUnreadable

_SETTINGS = {
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_PAM_ENABLED": "NO",
    "GDAL_SKIP": "VRT,WMS,WCS,WMTS,HTTP,GTI,STACTA,STACIT,DAAS,EEDA,EEDAI,NGW,OGCAPI,PLMOSAIC,PLSCENES,TileDB,Zarr",
    "VRT_VIRTUAL_OVERVIEWS": "NO",
    # Megabytes of decoded blocks, of all the process's scenes together.
    "GDAL_CACHEMAX": "128",
}
os.environ.update({name: value for name, value in _SETTINGS.items() if name not in os.environ})

import rasterio  # noqa: E402
import rasterio.shutil  # noqa: E402
import rasterio.windows  # noqa: E402
from rasterio._err import CPLE_BaseError  # noqa: E402
from rasterio.enums import ColorInterp, Resampling  # noqa: E402
from rasterio.errors import CRSError, NotGeoreferencedWarning, RasterioError  # noqa: E402

__all__ = ["ColorInterp", "Resampling", "rasterio", "reading", "without_georeference"]


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Translate GDAL's errors while a caller's file is read: `MediaUnreadable` with `what` and GDAL's words."""
    try:
        yield
    except (RasterioError, CRSError, CPLE_BaseError) as error:
        said = re.sub(r"(?<!\w)'?/\S+'?", "the file", str(error.__cause__ or error))  # our paths are nobody's business
        raise MediaUnreadable(f"{what}; it is damaged or incomplete ({said.rstrip('.')}).") from error


@contextmanager
def without_georeference() -> Iterator[None]:
    """Open files that have no georeference without rasterio's warning: a scene may well have none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield
